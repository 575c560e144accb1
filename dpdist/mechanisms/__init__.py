"""Privacy mechanisms, one folder for each, with what they share and the registry of those that a job may name."""
