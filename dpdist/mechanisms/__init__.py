"""Privacy mechanisms: one folder for each, with the passes over records and the mechanisms that a job may name."""
