"""Mechanism `weight_regularisation`: noisy sums of cells, with weights moved towards a common one (Seeman et al.)."""
