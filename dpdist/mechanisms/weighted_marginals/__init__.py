"""Mechanism `weighted_marginals`: noisy weighted tables of coded columns, and synthetic records of all columns."""
