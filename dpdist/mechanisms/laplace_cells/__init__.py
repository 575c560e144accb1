"""Noisy sums of base cells under public bounds, margins added (METHODS §7)."""
