"""The public folder, made without records: tables, errors, synthetic sets and statement."""
