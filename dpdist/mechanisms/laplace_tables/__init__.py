"""Mechanisms `laplace` and `laplace_composed`: noisy figures of whole tables, with noise on margins too ([T].

METHODS §7).
"""
