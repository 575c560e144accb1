"""Mechanism `capped_totals`: noisy sums of weights, cut at a cap, of records with 0 and with 1 in every cell."""
