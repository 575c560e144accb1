"""Mechanism `modips`: noisy sufficient statistics, and synthetic records from a posterior given them ([M]; METHODS §8)."""
