"""Mechanism `modips`: sufficient statistics under noise, and synthetic records from a posterior given them ([M]; §8)."""
