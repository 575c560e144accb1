"""Mechanism `modips`: sufficient statistics under noise, a posterior given them, and synthetic records ([M].

METHODS §8).
"""
