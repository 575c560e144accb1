"""Names, for the privacy statement, cells that are collapsed, and cells whose errors are mostly not the sample's own.

Both lists follow from released figures alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.publish.reference_strata import described, strata_with
from dpdist.publish.released import ReleasedObject

MISSING = 2
"""Number of its most influential records that a sample may lack."""
LARGER = 1.0
"""Ratio of the other errors to the sampling error from which a figure is named."""

MOST = 99.0
"""Ratio that stands for itself and all larger ones."""


def collapsed(release: ReleasedObject) -> list[list[str]]:
    """The names of cells that share a noisy sum, one list for each sum of several cells."""
    found = []
    for each in strata_with(release, "unit"):
        unit = described(release, each.stratum, "unit").astype(np.int64)
        found += [[each.cells[k] for k in np.flatnonzero(unit == one)] for one in np.flatnonzero(np.bincount(unit) > 1)]
    return found


def beyond_sampling(release: ReleasedObject) -> dict[str, dict[str, float]]:
    """The ratio of a figure's other errors to its sampling error, by variable and cell, where it is above LARGER.

    The other errors are those of noise and of the reference. The sampling error is one that the current sample may show:
    without its MISSING most influential records, because a sample may happen to have no record of a distribution's tail.
    So it is the least standard error that the unprotected estimate is likely to have. It is 0 in cells of no more than
    MISSING records. Cells without a record are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for stratum, model, _, cells in strata_with(release, "common"):
        points = model.points_of_cells(release, stratum)[0]
        there = release.sets[0][release.frame.stratum_labels[stratum]]
        variances = [described(release, stratum, name) for name in ("noise", "sampling", "alone")]
        deviations = [described(release, stratum, name) for name in ("common", "tail") if name in there]
        whole = np.sum([*(each[:, ::2] for each in variances), *(each**2 for each in deviations)], axis=0)
        for k, what in enumerate(("weight", *model.outcomes)):
            for cell, n, own, total, noise in zip(
                cells, model.count, points[max(k - 1, 0)], whole[:, k], variances[0][:, 2 * k], strict=True
            ):
                if n < 1:
                    continue
                every, least = _sampling(own, float(n), of_weight=k == 0)
                other = max(float(total) - every, float(noise))
                if other > LARGER**2 * least:
                    ratio = round(float(np.sqrt(other / least)), 2) if least > 0.0 else MOST
                    found.setdefault(what, {})[cell] = min(ratio, MOST)
    return found


def _sampling(points: Floats, n: float, of_weight: bool) -> tuple[float, float]:
    """Sampling variances of the log mean weight, or of the mean outcome, of n records like these points (weight, outcome).

    The second is without the records of most influence.
    """
    weight, outcome = points.T
    share = weight / weight.mean()
    squares = np.sort((share - 1.0 if of_weight else share * (outcome - np.average(outcome, weights=weight))) ** 2)
    kept = squares[: int(np.ceil(len(squares) * max(0.0, 1.0 - MISSING / n)))]
    return float(squares.mean()) / n, float(kept.mean()) / n if len(kept) else 0.0


def entries(release: ReleasedObject, words: Mapping[str, str]) -> dict[str, Any]:
    """Both lists as entries of the statement, with their texts; empty where no cell is named."""
    units, ratios = collapsed(release), beyond_sampling(release)
    return {
        **({"collapsed": {"in_words": words["collapsed"], "units": units}} if units else {}),
        **({"beyond_sampling": {"in_words": words["beyond_sampling"], **ratios}} if ratios else {}),
    }
