"""What a public reference teaches of a table: limits, tails, shapes of cells and how they drift; no record is read here."""
