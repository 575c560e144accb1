"""For `packages.posterior`: ties the smooth prior to the reference's own margins, table by table.

Levels and tails borrow from other cells. If a table's cell has many reference records, its own sums are better. So the
mean sums of a record are moved by t = Σ_A Z_A t_A, by a ridge regression of the reference's sums on the cells of all
measured tables. A cell with `TIE_RECORDS` reference records moves half of the way, a cell with many the whole way.
Without measurements, a table's cell then has the reference's own mean weight and mean outcome. Means are tied, not
totals: otherwise the part of a count that its tie leaves would move the mean, which a column may nearly determine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Ints, rows_of_groups
from dpdist.packages.levels import Levels, ReferenceRecords
from dpdist.packages.limits import CellLimits, Shape
from dpdist.packages.workload import Workload

TIE_RECORDS = 150.0
"""Reference records of a table's cell at which it moves half of the way to its own sums. With fewer, levels borrow less."""
TIE_PASSES = 20
"""Number of times that all tables are tied in turn."""


def ties_of(workload: Workload, levels: Levels, limits: CellLimits, records: ReferenceRecords, mean: Floats) -> Floats:
    """Changes of a record's mean sums, (cell, sum), from the prior's `mean` (cell, sum).

    Sums are tied in published or measured units: a cell's sum of e counts ω times, for instance. Ties of e r bring every
    table's mean outcome to the reference's own, given the counts that ties of e leave.
    """
    (e, r), new = levels.standardised(records), levels.as_new(records)
    of_groups, left = rows_of_groups(limits.group[records.cell], len(limits.clippings)), np.empty((len(e), mean.shape[1]))
    for rows, clipping in zip(of_groups, limits.clippings, strict=True):
        left[rows] = Shape(new.e[rows], new.r[:, rows], new.r[:, rows]).sums(clipping)
    left[:, : 1 + len(r)] = np.column_stack([e, *(e * r)])  # published sums are tied to the reference's own
    left -= mean[records.cell]
    # Limits of other records are no larger where this record is: its own weight is not in them.
    left[:, 1 + len(r) :] *= np.column_stack([new.weight, *(new.weight * new.unit)])
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
        of_tables = [np.bincount(group, weights=missing[:, which] * unit).astype(np.float64) for group in tables]
        moved[:, which] = tied(of_tables, held * unit, tables, float(np.average(unit, weights=held)))
    left_of_counts = levels.weight * (missing[:, 0] - held * moved[:, 0])
    weight = np.bincount(records.cell, weights=records.weight, minlength=cells)
    for k, (outcome, y) in enumerate(zip(levels.outcomes, records.outcomes, strict=True), start=1):
        unit, product = levels.weight * outcome.unit, np.bincount(records.cell, records.weight * y, cells)
        of_tables = []
        for group in tables:
            with np.errstate(divide="ignore", invalid="ignore"):
                own_mean = (np.bincount(group, weights=product) / np.bincount(group, weights=weight))[group]
            between = np.where(np.isfinite(own_mean), outcome.mean - own_mean, 0.0)
            off = left_of_counts * between + unit * missing[:, k]
            of_tables.append(np.bincount(group, weights=off).astype(np.float64))
        moved[:, k] = tied(of_tables, held * unit, tables, float(np.average(unit, weights=held)))
    return moved


def tied(missing: Sequence[Floats], held: Floats, tables: Sequence[Ints], unit: float) -> Floats:
    """Σ_A Z_A t_A, (cell,), by a ridge regression: times `held`, (cell,), it adds up to what every table's groups miss.

    `missing` is (group,) for every table, and `unit` the mean contribution of one record.
    """
    moved, ridge = np.zeros(len(held)), TIE_RECORDS * unit
    sums = [np.bincount(group, weights=held) for group in tables]
    terms = [np.zeros(len(whole)) for whole in sums]
    for _ in range(TIE_PASSES):
        for group, of_table, whole, term in zip(tables, missing, sums, terms, strict=True):
            left = of_table - np.bincount(group, weights=held * moved) + whole * term
            now = left / np.maximum(whole + ridge, 1e-300)
            moved += (now - term)[group]
            term[:] = now
    return moved
