"""Lists the noisy moments of logarithms for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.figures import (
    GAUSSIAN,
    LAPLACE,
    NO_LIMITS,
    UNIT,
    Figures,
    cells_of,
)
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.sensitivity import REACH, SENSITIVITY_2, SHARE
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "p1": f"location: the share {SHARE} of the budget; p = A (log y, log w)' less the reference's mean, over {REACH:g}, "
    "shortened to length 1; A is `whitening` and the mean is `reference` in released/set-1.json",
    "p2": "as p1, of the second component",
    "1 - |p|^2": "scatter, over all cells of the stratum: the other share of the budget",
    "p1^2 - p2^2": "as 1 - |p|^2",
    "2 p1 p2": "as 1 - |p|^2",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: SanitizedLognormal, stratum: int, theta: Draws) -> Iterator[Figures]:
    law = GAUSSIAN if model.noise == "gaussian" else LAPLACE
    distance = float(SENSITIVITY_2[release.job.budget.adjacency] / UNIT) if law == GAUSSIAN else None
    cells, (sums, scatter) = cells_of(release, model, stratum), (p.dims[-1][1] for p in model.parameters[:2])
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    kinds = ((cells, sums, theta["sums"][0]), ([whole], scatter, theta["scatter"][0][None]))
    for where, statistics, values in kinds:
        scales = [model.scale] * len(statistics)
        yield Figures(where, statistics, values, scales, lambda *_: NO_LIMITS, law=law, sensitivity=distance)
