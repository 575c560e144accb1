"""Derivatives of a cell's means by its number of records, for the same clipped sums (delta method).

They are for standard errors where sample counts are noisy. A cell's statistics, mean (1 − v) and mean vc, are its noisy
sums over its count. Clipping is inverted at a count of STEP more and of STEP less, in logarithms. A cell that is shrunk
towards others keeps a part k of its change. The cells' common mean is held fixed, because it averages the errors of many
counts. This is post-processing.
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
    """The derivatives d log(mean weight)/d log n and d(mean outcome)/d log n, with n the count, (cell, 2).

    `invert_clipping` has the same first arguments, and `inverted` is its result.
    """
    made = np.empty((len(cells), 2))
    for k, (cell, own, total) in enumerate(zip(cells, zip(*limits, strict=True), sums / UNIT, strict=True)):
        ends = [np.array(cell.solve(1.0 - total[0] / n, total[1] / n, own)) for n in count[k] * np.exp([STEP, -STEP])]
        moved = inverted.kept[k] * (ends[0] - ends[1]) / 2.0
        at = float(inverted.scale[k, 1])
        made[k] = moved[0], (cell.mean_at(at + moved[1]) - cell.mean_at(at - moved[1])) / 2.0
    return made / STEP
