"""Lists the noisy figures of whole tables for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from dpdist.mechanisms.figures import (
    NO_LIMITS,
    SUM_OF_A,
    SUM_OF_B,
    Figures,
)
from dpdist.mechanisms.laplace_tables.release import NoisyTables
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "a": SUM_OF_A,
    "b": SUM_OF_B,
    "count": "the table's own figure; its noise has the scale of confidential sensitivities",
    "mean": "as count",
    "total": "as count",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: NoisyTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of every table; cells without a sample record are left out, because they are known to be empty."""
    for table in model.tables:
        kept = np.flatnonzero(table.occupied)
        cells = [dict(zip(table.cells.by, table.cells.labels[k], strict=True)) for k in kept]
        values = theta[table.parameter.name][0][kept]
        if model.bounds is None:
            scales: list[Fraction | None] = [None] * len(table.statistics)
            yield Figures(cells, table.statistics, values, scales, lambda *_: NO_LIMITS, 1, table=table.name)
        else:
            bounds = model.bounds
            limits = (bounds.centre, bounds.weight, bounds.half_width)
            statistics, scales = ["a", "b"][: values.shape[1]], [model.scale] * values.shape[1]
            yield Figures(cells, statistics, values, scales, lambda *_, own=limits: own, table=table.name)
