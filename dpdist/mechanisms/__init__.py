"""Mechanisms: the forms (how records are visited) and their presets (what a job may name)."""
