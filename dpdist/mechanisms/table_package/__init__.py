"""Mechanism `table_package`: tables over many columns from one budget, measured where it pays (docs/methods.md, §9c)."""
