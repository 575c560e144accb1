"""Lists the noisy counts of every layer for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import (
    SUM_OF_ABSENT,
    SUM_OF_V,
    Figures,
    cells_of,
)
from dpdist.mechanisms.partitions.release import PartitionCounts
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "v": SUM_OF_V,
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: PartitionCounts, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Yields the noisy sum of 1 − v where there are weights, and then the noisy counts of every layer of the tree.

    A node is described by the levels that all its cells share.
    """
    whole, cap = cells_of(release, model, stratum)[0], None if model.weights is None else model.weights[1]
    tree, absent, counts = model.measured(theta)
    moved = 2.0 if release.job.budget.adjacency == "substitution" else 1.0
    summed = [("1 - v", [dict[str, str]()], absent)] if len(absent) else []
    layers = [("v", cells, values) for cells, values in zip(model.named(tree), counts, strict=True)]
    for statistic, cells, values in (*summed, *layers):
        yield Figures(
            [{**whole, **cell} for cell in cells],
            [statistic],
            values[:, None],
            [model.scale],
            lambda *_: (None, cap, None),
            sensitivity=moved,
        )
