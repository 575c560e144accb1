"""Lists the noisy counts for `measurements.parquet`."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import NO_LIMITS, Figures, cells_of
from dpdist.mechanisms.words import ReleaseView
from dpdist.models.protocol import Draws
from dpdist_counts.release import Counts

DEFINITIONS = {"zeros": "the number of records with the outcome 0", "ones": "the number of records with the outcome 1"}


def figures(release: ReleaseView, model: Counts, stratum: int, theta: Draws) -> Iterator[Figures]:
    cells = cells_of(release, model, stratum)
    yield Figures(cells, ["zeros", "ones"], theta["counts"][0], [model.scale] * 2, lambda *_: NO_LIMITS, unit=1)
