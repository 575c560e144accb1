"""Makes the public folder for `release`, without records: tables, errors, synthetic sets and statement."""
