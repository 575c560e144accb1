"""Sums of base cells, clipped where a reference says, under noise: tables, records, errors (METHODS §7b)."""
