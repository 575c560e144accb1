"""Noisy weighted tables of coded columns, and records of all columns that agree with them."""
