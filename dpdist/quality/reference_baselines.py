"""Computes comparators of a strict table that use its reference (METHODS §7b), with noise from keys; nothing is released.

- `laplace_finest`: noisy sums of base cells, as in `laplace_strict`. Weights are clipped at a high quantile of the
  reference's weights, outcomes at their public bounds.
- `reference_only`: the current file's public sizes times the reference's means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Codes, Floats, Frame
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import group_sums
from dpdist.job import Job, StatisticName
from dpdist.privacy.cell_sums import CellBounds, noise_scale
from dpdist.privacy.queries import record_epsilon

QUANTILE = 0.99
REFERRED = ("laplace_finest", "reference_only")


class ReferenceBaselines(NamedTuple):
    """Σw and Σwy of every base cell under each comparator, (cell, 2). `row` is a frame row of each cell."""

    row: Codes
    finest: Floats
    reference: Floats

    def figures(self, how: str, cells: Cells) -> dict[StatisticName, Floats]:
        sums = self.finest if how == "laplace_finest" else self.reference
        inside = cells.membership.tocsc()[:, self.row]
        count, total = (inside @ sums[:, k] for k in range(2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return {"count": count, "mean": total / count, "total": total}


def reference_baselines(
    job: Job, frame: Frame, current: Iterable[Records], reference: Iterable[Records], key: Key
) -> ReferenceBaselines:
    """Computes both comparators. The records of both files have rows of the same frame."""
    group, labels = frame.group(job.cell_columns)
    cells, row = len(labels), np.unique(group, return_index=True)[1].astype(np.int32)
    held, weights = np.zeros((cells, 3)), []
    for records in reference:
        columns = (np.ones(len(records)), records.weight, records.weight * records.outcome)
        held += np.column_stack([group_sums(group[records.frame], column, cells) for column in columns])
        weights.append(records.weight)
    size = group_sums(group, frame.count.astype(np.float64), cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (size / held[:, 0])[:, None] * held[:, 1:]
    bounds = CellBounds(float(np.quantile(np.concatenate(weights), QUANTILE)), *(job.outcome_column.bounds or (0.0, 1.0)))
    pairs = np.zeros((cells, 2))
    for records in current:
        units = bounds.pairs(np.minimum(records.weight, bounds.weight), records.outcome)
        pairs += np.column_stack([group_sums(group[records.frame], column, cells) for column in units.T])
    noise = key.generator("compare laplace_finest", "all").laplace(
        0.0, float(noise_scale(record_epsilon(job, job.budget.epsilon))), pairs.shape
    )
    return ReferenceBaselines(row, bounds.sums(pairs + noise), scaled)
