"""The kinds of study, such as simulations or real files: each defines settings, a replicate, and texts for its page."""
