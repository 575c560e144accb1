"""Simulation studies of mechanisms, for `cli.trials`: settings from YAML, replicates, tables of results, and a page."""
