"""Files read: the confidential one, references, codebooks; and records, checked and sorted by crosstab row."""
