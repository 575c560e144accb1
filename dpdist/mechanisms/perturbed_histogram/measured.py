"""Lists the noisy counts of bins for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist.mechanisms.figures import (
    Figures,
    cells_of,
)
from dpdist.mechanisms.perturbed_histogram.release import Histogram
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "count_in_bin": "the number of records whose outcome lies between centre - half_width and centre + half_width",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: Histogram, stratum: int, theta: Draws) -> Iterator[Figures]:
    (cell,) = cells_of(release, model, stratum)[:1]
    low, high = model.edges[:-1], model.edges[1:]
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    for bin, value in enumerate(theta["counts"][0]):
        limits = (float(middle[bin]), None, float(half[bin]))
        yield Figures([cell], ["count_in_bin"], np.array([[value]]), [model.scale], lambda *_, own=limits: own, 1)
