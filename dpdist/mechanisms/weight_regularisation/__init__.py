"""Mechanism `weight_regularisation`: noisy sums of cells, weights moved towards a common one (Seeman, Si and Reiter)."""
