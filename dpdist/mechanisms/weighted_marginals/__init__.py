"""Mechanism `weighted_marginals`, on `coded_tables`: noisy weighted tables of coded columns, and synthetic records."""
