"""Mechanism `sanitized_statistics`: noisy winsorised moments of log outcome and log weight (METHODS §8)."""
