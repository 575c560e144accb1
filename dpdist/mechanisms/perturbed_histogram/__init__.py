"""Noisy counts of equal bins over public bounds ([G], Supplement 1)."""
