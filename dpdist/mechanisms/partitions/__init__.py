"""Counts over a partition, layer by layer: `flat_laplace`, `universal_histogram` and `steps` ([S]; METHODS §9)."""
