"""Noisy sums of base cells under weights that are moved towards a common one (Seeman, Si and Reiter)."""
