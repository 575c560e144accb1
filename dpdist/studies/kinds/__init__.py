"""Kinds of studies: each has settings, a replicate and texts for its page."""
