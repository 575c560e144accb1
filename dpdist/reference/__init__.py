"""For `reference_tables`: what a public reference teaches of a table: limits, tails, shapes, drift; no records."""
