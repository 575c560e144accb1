"""The kinds of study that `studies.file` lists: each defines settings, a replicate, and texts for its page."""
