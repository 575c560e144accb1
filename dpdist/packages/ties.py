"""For `packages.posterior`: ties the smooth prior to the reference's own margins, table by table.

Levels and tails borrow from other cells. If a table's cell has many reference records, its own sums are better. So the
mean sums of a record are moved by t = Σ_A Z_A t_A, by a ridge regression of the reference's sums on the cells of all
measured tables. A cell with `TIE_RECORDS` reference records moves half of the way, a cell with many the whole way.
Without measurements, a table's cell then has the reference's own mean weight and mean outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.packages.levels import Levels, ReferenceRecords
from dpdist.packages.limits import CellLimits, Shape
from dpdist.packages.workload import Workload

TIE_RECORDS = 30.0
"""Reference records of a table's cell at which it moves half of the way to its own sums."""
TIE_PASSES = 20
"""Number of times that all tables are tied in turn."""


def ties_of(workload: Workload, levels: Levels, limits: CellLimits, records: ReferenceRecords, mean: Floats) -> Floats:
    """Changes of a record's mean sums, (cell, sum), from the prior's `mean` (cell, sum).

    Sums are tied in published or measured units: a cell's sum of e counts ω times, for instance. The part of totals
    that ties of e leave, within a table's cell, is tied by e r.
    """
    e, r = levels.standardised(records)
    group, left = limits.group[records.cell], np.empty((len(e), mean.shape[1]))
    for number, clipping in enumerate(limits.clippings):
        members = group == number
        left[members] = Shape(e[members], r[:, members], r[:, members]).sums(clipping)
    left -= mean[records.cell]
    cells = len(workload)
    held = np.bincount(records.cell, minlength=cells).astype(np.float64)
    missing = np.column_stack([np.bincount(records.cell, weights=part, minlength=cells) for part in left.T])
    tables = [workload.groups(by) for by in dict.fromkeys([(), *workload.measured])]
    moved, outcomes = np.empty_like(mean), len(r)
    of_measured = [
        (1 + outcomes, limits.cap),
        *((2 + outcomes + k, limits.cap * limits.half[:, k]) for k in range(outcomes)),
    ]
    for which, unit in ((0, levels.weight), *of_measured):
        moved[:, which] = tied(missing[:, which] * unit, held * unit, tables, float(np.average(unit, weights=held)))
    for k, outcome in enumerate(levels.outcomes, start=1):
        beyond = outcome.mean * (missing[:, 0] - held * moved[:, 0])
        unit = levels.weight * outcome.unit
        moved[:, k] = tied(
            levels.weight * beyond + unit * missing[:, k], held * unit, tables, float(np.average(unit, weights=held))
        )
    return moved


def tied(missing: Floats, held: Floats, tables: Sequence[Ints], unit: float) -> Floats:
    """Σ_A Z_A t_A, (cell,), by a ridge regression: times `held`, it adds up to `missing` in the tables' groups.

    `unit` is the mean contribution of one record.
    """
    moved = np.zeros(len(missing))
    ridge = TIE_RECORDS * float(held.sum()) / max(float((held > 0).sum()), 1.0)
    sums = [np.bincount(group, weights=held) for group in tables]
    terms = [np.zeros(len(whole)) for whole in sums]
    for _ in range(TIE_PASSES):
        for group, whole, term in zip(tables, sums, terms, strict=True):
            left = np.bincount(group, weights=missing - held * moved) + whole * term
            now = left / np.maximum(whole + ridge, 1e-300)
            moved += (now - term)[group]
            term[:] = now
    return moved
