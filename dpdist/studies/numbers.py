"""Formats numbers for a study's page."""

from __future__ import annotations

import numpy as np


def number(value: float) -> str:
    """The number with three significant digits; from 1,000 on with all whole digits, and commas between thousands."""
    size = abs(value)
    if not np.isfinite(value):
        return "∞" if value > 0 else "–"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.01:
        return f"{value:.3f}"
    return f"{value:.2g}" if size else "0"
