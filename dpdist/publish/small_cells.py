"""Names, for the privacy statement, cells that are collapsed, and cells whose errors are mostly not the sample's own.

Both lists follow from released figures alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.models.protocol import Draws
from dpdist.publish.reference_records import points_of_cells
from dpdist.publish.released import ReleasedObject

NEEDED = frozenset({"unit", "noise", "sampling", "alone", "common"})
"""Names of the released parameters from which cells are named."""
MISSING = 2.0
"""Number of its most influential records that a sample may lack."""
LARGER = 1.0
"""Ratio of the other errors to the sampling error from which a figure is named."""


def collapsed(release: ReleasedObject) -> list[list[str]]:
    """The names of cells that share a noisy sum, one list for each sum of several cells."""
    found = []
    for _, model, where, theta in _cells(release):
        unit = theta["unit"][0].astype(np.int64)
        names = [where + name for name in model.labels]
        found += [[names[k] for k in np.flatnonzero(unit == one)] for one in np.flatnonzero(np.bincount(unit) > 1)]
    return found


def beyond_sampling(release: ReleasedObject) -> dict[str, dict[str, float]]:
    """The ratio of a figure's other errors to its sampling error, by variable and cell, where it is above LARGER.

    The other errors are those of noise and of the reference. The sampling error is one that the current sample may show:
    without its MISSING most influential records, because a sample may happen to have no record of a distribution's tail.
    So it is the least standard error that the unprotected estimate is likely to have.
    """
    found: dict[str, dict[str, float]] = {}
    for stratum, model, where, theta in _cells(release):
        points = points_of_cells(release, model, stratum)[0]
        for k, what in enumerate(("weight", *model.outcomes)):
            place = 2 * k
            whole = sum(theta[name][0][:, place] for name in ("noise", "sampling", "alone"))
            for name in ("common", "tail"):
                whole = whole + (theta[name][0][:, k] ** 2 if name in theta.values else 0.0)
            for cell, n, own, total, noise in zip(
                model.labels, model.count, points[max(k - 1, 0)], whole, theta["noise"][0][:, place], strict=True
            ):
                every, least = _sampling(own, float(n), of_weight=k == 0)
                other = max(float(total) - every, float(noise))
                if other > LARGER**2 * least:
                    ratio = round(float(np.sqrt(other / least)), 2) if least > 0.0 else float("inf")
                    found.setdefault(what, {})[where + cell] = min(ratio, 99.0)
    return found


def _sampling(points: Floats, n: float, of_weight: bool) -> tuple[float, float]:
    """Sampling variances of the log mean weight, or of the mean outcome, of n records like these points (weight, outcome).

    The second is without the records of most influence.
    """
    weight, outcome = points.T
    share = weight / weight.mean()
    squares = np.sort((share - 1.0 if of_weight else share * (outcome - np.average(outcome, weights=weight))) ** 2)
    kept = max(1, int(np.ceil(len(squares) * max(0.0, 1.0 - MISSING / n))))
    return float(squares.mean()) / n, float(squares[:kept].mean()) / n


def _cells(release: ReleasedObject) -> Iterator[tuple[int, ReferenceCells, str, Draws]]:
    """Every stratum of reference tables: its number, its model, the prefix of its cells' names and its parameters.

    Strata of releases without these parameters are left out.
    """
    for stratum, label in enumerate(release.frame.stratum_labels):
        model = release.model(stratum)
        if isinstance(model, ReferenceCells) and set(release.sets[0][label]) >= NEEDED:
            where = f"{label} / " if len(release.frame.stratum_labels) > 1 else ""
            yield stratum, model, where, release.theta(model, stratum, 0)


def entries(release: ReleasedObject, words: Mapping[str, str]) -> dict[str, Any]:
    """Both lists as entries of the statement, with their texts; empty where no cell is named."""
    units, ratios = collapsed(release), beyond_sampling(release)
    return {
        **({"collapsed": {"in_words": words["collapsed"], "units": units}} if units else {}),
        **({"beyond_sampling": {"in_words": words["beyond_sampling"], **ratios}} if ratios else {}),
    }
