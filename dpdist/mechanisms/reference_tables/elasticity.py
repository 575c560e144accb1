"""Derivatives of a cell's means by its sample count, for the same clipped sums (delta method).

A cell's statistics are mean (1 − v) and mean vc, its noisy sums over its count. The clipping is inverted at a count of
STEP more and of STEP less, in logarithms. Cells that are shrunk together keep a part k of a change in one of them. Their
common mean is held fixed, because it averages the errors of many counts. This is post-processing, for standard errors
where sample counts are noisy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.clipping_inversion import ClippingInversion
from dpdist.mechanisms.reference_tables.sensitivity import UNIT, Limits

STEP = 0.05
"""Step of the numerical derivative, in the logarithm of the count."""


def elasticities(cells: Sequence[Cell], limits: Limits, sums: Floats, count: Floats, inverted: ClippingInversion) -> Floats:
    """The derivatives d log(mean weight)/d log n and d(mean outcome)/d log n, (cell, 2).

    Arguments are those of `invert_clipping`.
    """
    made = np.empty((len(cells), 2))
    for k, (cell, own, total) in enumerate(zip(cells, zip(*limits, strict=True), sums / UNIT, strict=True)):
        ends = [np.array(cell.solve(1.0 - total[0] / n, total[1] / n, own)) for n in count[k] * np.exp([STEP, -STEP])]
        moved = inverted.kept[k] * (ends[0] - ends[1]) / 2.0
        at = float(inverted.scale[k, 1])
        made[k] = moved[0], (cell.mean_at(at + moved[1]) - cell.mean_at(at - moved[1])) / 2.0
    return made / STEP
