"""Lists the noisy sums of base cells for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import (
    SUM_OF_A,
    SUM_OF_B,
    Figures,
    cells_of,
)
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "a": SUM_OF_A,
    "b": SUM_OF_B,
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: CellSums, stratum: int, theta: Draws) -> Iterator[Figures]:
    limits = (model.bounds.centre, model.bounds.weight, model.bounds.half_width)
    cells = cells_of(release, model, stratum)
    yield Figures(cells, ["a", "b"], theta["sums"][0], [model.scale] * 2, lambda *_: limits)
