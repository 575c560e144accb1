"""Lists the noisy clipped sums of base cells for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import (
    SUM_OF_ABSENT,
    Figures,
    cells_of,
)
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "vc": "the sum of v c, c = clip((y - m) / R, -1, 1), with y the outcome, m the centre and R the half_width",
    "v(1 + c)/2": "the sum of v (1 + c) / 2, in the notation of vc",
    "v(1 - c)/2": "the sum of v (1 - c) / 2, in the notation of vc",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: ReferenceCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of a stratum's cells, with each sum's clipping limits.

    The first sum is of 1 − v. The others are of the outcomes in turn.
    """
    named = {parameter.name: parameter.dims[1][1] for parameter in model.parameters if parameter.name == "sums"}
    several, limits = len(model.outcomes), theta["limits"][0]

    def of(i: int, j: int) -> tuple[float | None, float | None, float | None]:
        k = (j - 1) % several
        own = (None, None) if j == 0 else (float(limits[i, k]), float(limits[i, several + 1 + k]))
        return own[0], float(limits[i, several]), own[1]

    values, unit = theta["sums"][0], theta["unit"][0].astype(int).tolist()
    scales = [model.scales[0], *[model.scales[1]] * (values.shape[1] - 1)]
    yield Figures(cells_of(release, model, stratum), named["sums"], values, scales, of, units=unit)
