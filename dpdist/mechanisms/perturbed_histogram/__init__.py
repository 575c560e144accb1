"""Mechanism `perturbed_histogram`: noisy counts of equal bins over public bounds ([G], Supplement 1)."""
