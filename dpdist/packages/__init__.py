"""A package of tables from one budget: what is published, what is measured, and the posterior (docs/methods.md, §9c)."""
