"""Holds the number of standard errors above which a figure counts as moved between two releases."""

from __future__ import annotations

BEYOND = 2.0
"""Default threshold, in standard errors of the difference."""
