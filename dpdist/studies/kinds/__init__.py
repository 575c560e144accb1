"""Kinds of studies: what each may say, one replicate of it, its page."""
