"""Mechanism `marginals`: noisy weighted tables of coded columns, given or selected under noise, and synthetic records."""
