"""Lists the noisy figures of regularised weights for `measurements.parquet`, the public list of a release's figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist.mechanisms.figures import Figures, cells_of
from dpdist.mechanisms.weight_regularisation.release import ASKED, RegularisedCells
from dpdist.mechanisms.weight_regularisation.sensitivity import MOVED_BY
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws
from dpdist.privacy.queries import moves

DEFINITIONS = {
    "a_r": "the sum of a = w_r / U_r, with w_r = (1 - r) min(w, U) + r t the moved weight, U the weight_cap, and "
    "U_r = (1 - r) U + r t; t and r are `used` in released/set-1.json",
    "b_r": "as b, with a as in a_r",
    "sum of weights": "over all cells of the stratum: the sum of min(w, U) / U, with w the weight and U the weight_cap",
    "distance": "the sum over cells of |sum of (min(w, U) - t) / U|, with t as in a_r",
    "distance of products": "as distance, each term times (clip(y, c - R, c + R) - c) / R in the notation of b",
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: RegularisedCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Figures of the whole stratum, then sums of cells.

    A figure that the job itself fixes was not measured and is not listed.
    """
    cells, bounds, twice = cells_of(release, model, stratum), model.under(theta).bounds, moves(release.job)
    whole = {name: level for name, level in cells[0].items() if name in release.frame.strata}
    scales = (model.mean_scale, model.choice_scale, model.choice_scale)
    for name, value, scale, moved_by in zip(ASKED, theta["asked"][0], scales, MOVED_BY, strict=True):
        limits = (None, model.plain.bounds.weight, None)
        if np.isfinite(value):
            one = np.array([[value]])
            yield Figures([whole], [name], one, [scale], lambda *_, own=limits: own, sensitivity=float(moved_by * twice))
    own = (bounds.centre, model.plain.bounds.weight, bounds.half_width)
    yield Figures(cells, ["a_r", "b_r"], theta["sums"][0], [model.scale] * 2, lambda *_: own, sensitivity=2.0 * twice)
