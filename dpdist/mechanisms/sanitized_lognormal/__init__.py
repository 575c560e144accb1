"""Noisy winsorised moments of lognormal records: FBS and FBP under a strict guarantee (METHODS §8)."""
