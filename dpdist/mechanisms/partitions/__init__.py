"""Mechanisms `flat_laplace`, `universal_histogram` and `steps`: counts over a partition, layer by layer ([S].

METHODS §9).
"""
