"""Decides whether a figure has moved between two releases."""

from __future__ import annotations

BEYOND = 2.0
"""Default number of standard errors of a difference."""
