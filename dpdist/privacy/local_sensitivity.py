"""Sensitivities that a file itself has, for noise that guarantees nothing ([T]; METHODS §7).

Each is the largest over a table's cells, with weight w and outcome y: for a count max w − min w; for a total max wy − min
wy; for a mean (max wy − min wy) / (Σw − (max w − min w)).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.job import StatisticName, Table

Extremes = tuple[Floats, Floats]
"""Smallest and largest value per frame row; +∞ and −∞ where a row has no record."""


def sensitivities(weight_sum: Floats, weight: Extremes, product: Extremes, cells: Cells) -> dict[StatisticName, float]:
    """Local sensitivities of a count, a mean and a total, from the extremes of the records of every frame row."""
    low_w, high_w = _over_cells(weight, cells)
    low_p, high_p = _over_cells(product, cells)
    occupied = high_w >= low_w
    weight_range = (high_w - low_w)[occupied]
    total = (cells.membership @ weight_sum)[occupied]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (high_p - low_p)[occupied] / (total - weight_range)
    return {
        "count": float(weight_range.max()),
        "mean": float(mean[np.isfinite(mean)].max(initial=0.0)),
        "total": float((high_p - low_p)[occupied].max()),
    }


def figures_met(frame: Frame, tables: Sequence[Table]) -> int:
    """Number of figures, over all tables, to which one record contributes."""
    return sum(cross(frame, table.by, table.margins).per_record * len(table.statistics) for table in tables)


def _over_cells(per_row: Extremes, cells: Cells) -> Extremes:
    coo = cells.membership.tocoo()
    low, high = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
    np.minimum.at(low, coo.row, per_row[0][coo.col])
    np.maximum.at(high, coo.row, per_row[1][coo.col])
    return low, high
