"""The kinds of study: each defines settings, a replicate, and texts for its page."""
