"""Mechanism `yes_no_counts`: noisy counts of records with 0 and with 1 in every cell of the tables."""
