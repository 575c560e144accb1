"""Mechanism `reference_tables`: noisy sums of base cells, clipped at limits from a reference (METHODS §7b)."""
