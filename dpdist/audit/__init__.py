"""Confidential audits for the privacy officer: record losses, lower bounds on ε, and attacks on synthetic records."""
