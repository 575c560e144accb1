"""Computes quantiles of an outcome in a table's cells, and their confidence limits by Woodruff's method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.unit_sums import Sum, Units, below_of, total_of

NOMINAL = 0.95
"""One-sided confidence level of either limit of a quantile."""
HALVINGS = 52
"""Number of bisection steps in the search for a quantile."""
ROUNDING = 1e-12
"""Relative rounding error that is allowed when a share of the weight is compared with a level."""
LARGEST_VALUE = 1e300
"""Absolute value at which the search for limits of an unbounded outcome stops."""


class Ends(NamedTuple):
    """Limits of a quantile, its standard error, and the slope of the distribution function between them, (cell,) each."""

    lower: Floats
    upper: Floats
    error: Floats
    slope: Floats


def woodruff(quantile: Callable[[Floats], Floats], level: float, error: Floats, df: float) -> Ends:
    """Confidence limits of a quantile, from the standard error (cell,) of the share of weight below it.

    `quantile` is a function that gives the quantiles at other levels, (cell,). The limits are NaN where the standard
    error is unknown. They are also NaN where an outcome without bounds has no quantile at a limit's level.
    """
    critical = float(scipy.special.stdtrit(df, NOMINAL))
    lower, upper = (quantile(level + sign * critical * np.nan_to_num(error)) for sign in (-1.0, 1.0))
    finite = np.isfinite(error) & np.isfinite(lower) & np.isfinite(upper)
    lower, upper = (np.where(finite, limit, np.nan) for limit in (lower, upper))
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = (upper - lower) / (2.0 * critical)
        return Ends(lower, upper, reach, error / reach)


def quantiles(cells: Cells, units: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> Floats:
    """The smallest value with at least a share `level` (cell,) of the weight at or below it, (cell,), under the first draw.

    It is NaN for a cell without weight. Levels of 0 or less, and of 1 or more, give the outcome's bounds.
    """
    weight = total_of(Sum(cells.membership, units.weight), units)[0]
    value = _sorted(cells, units, outcome, level) if units.outcomes is not None else np.empty(0)
    if units.outcomes is None:
        low, value = (np.full(len(cells), end) for end in _ends(cells, units, outcome, level, bounds))
        for _ in range(HALVINGS):
            middle = (low + value) / 2.0
            reached = below_of(cells.membership, units, outcome, middle)[0] >= level * weight * (1.0 - ROUNDING)
            low, value = np.where(reached, low, middle), np.where(reached, middle, value)
    held = np.where(level <= 0, bounds[0], np.where(level >= 1, bounds[1], value))
    return np.where(weight > 0, held, np.nan)


def _sorted(cells: Cells, units: Units, outcome: int, level: Floats) -> Floats:
    """Quantiles of units that are records, (cell,), by sorting."""
    assert units.outcomes is not None
    values, weight, inside = units.outcomes[outcome], units.weight[0], cells.membership
    values_of_cells = np.full(len(cells), np.nan)
    for cell in range(len(cells)):
        rows = inside.indices[inside.indptr[cell] : inside.indptr[cell + 1]]
        if len(rows):
            rows = rows[np.argsort(values[rows], kind="stable")]
            reached = np.cumsum(weight[rows])
            position = np.searchsorted(reached, level[cell] * reached[-1] * (1.0 - ROUNDING))
            values_of_cells[cell] = values[rows[min(int(position), len(rows) - 1)]]
    return values_of_cells


def _ends(cells: Cells, one: Units, outcome: int, level: Floats, bounds: tuple[float, float]) -> tuple[float, float]:
    """Finite limits between which every quantile lies: the outcome's bounds, or ± powers of 2 where it has none."""
    low, high = bounds
    size = 1.0
    while not np.isfinite([low, high]).all() and size < LARGEST_VALUE:
        weight = total_of(Sum(cells.membership, one.weight), one)[0]
        under, over = (below_of(cells.membership, one, outcome, np.full(len(cells), end))[0] for end in (-size, size))
        inside = (level <= 0) | (level >= 1) | ((under < level * weight) & (over >= level * weight)) | ~(weight > 0)
        if inside.all():
            break
        size *= 2.0
    return (low if np.isfinite(low) else -size), (high if np.isfinite(high) else size)
