"""For the methodologist, and confidential: published figures and records beside direct ones, and beside comparators."""
