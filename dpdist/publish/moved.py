"""When a figure of two releases has moved."""

from __future__ import annotations

BEYOND = 2.0
"""Standard errors of a difference, by default."""
