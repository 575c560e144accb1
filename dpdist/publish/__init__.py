"""The public folder: tables, errors, synthetic sets and statement, made from what was released; no record is seen."""
