"""Mechanisms `flat_laplace`, `universal_histogram` and `steps`: noisy counts of a partition's layers ([S]; METHODS §9)."""
