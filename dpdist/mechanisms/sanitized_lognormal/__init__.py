"""Mechanism `sanitized_statistics`: noisy winsorised moments of lognormal records, for FBS and FBP (METHODS §8)."""
