"""Simulation studies of mechanisms: settings from YAML, replicates, tables of results, and a page."""
