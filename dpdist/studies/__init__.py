"""Simulation studies of mechanisms: settings from a YAML file, replicates, tables of results, and an HTML page."""
