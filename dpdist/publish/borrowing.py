"""Lists, for the privacy statement, which cells take their distribution's shape from similar cells, and how much of it.

This list follows from the reference alone. A second list has the cells whose estimates are mostly the common figure.
"""

from __future__ import annotations

from typing import Any

from dpdist.job.families import family_facts
from dpdist.models.on_reference import OnDistributions
from dpdist.publish.reference_strata import cells_where
from dpdist.publish.released import ReleasedObject

SHARES = (
    "Small-area borrowing: this share of the shape of these cells is that of cells like them in the reference, at a scale "
    "of the cell's own, and the rest its own records'. How unlike cells are is in the errors."
)
WEIGHTS = (
    "Small-area borrowing: cells with few reference records take part of their distributions from other cells. The weight "
    "of a cell's own records is smaller where these are fewer, and where they are more like the others."
)

MOSTLY = 0.5
"""Part of a cell's own figure below which its estimate is named as mostly its group's."""


def borrowing(release: ReleasedObject) -> dict[str, Any]:
    """Entries of the statement, in words and by cell; empty where no cell borrows."""
    if shares := _of_tables(release):
        return {"in_words": SHARES, **shares}
    cells = _of_scores(release)
    return {"in_words": WEIGHTS, "cells": cells} if cells else {}


def _of_scores(release: ReleasedObject) -> list[dict[str, Any]]:
    """Returns one entry for each cell that borrows: its number of reference records, and their weight by distribution.

    A distribution with weight 1 borrows nothing and is left out. The weight is 0 where the cell has no reference record
    of that kind.
    """
    found = []
    for stratum, label in enumerate(release.frame.stratum_labels if family_facts(release.job).on_reference else ()):
        model = release.model(stratum)
        assert isinstance(model, OnDistributions)
        for cell, records, weights in model.borrowed_shapes():
            shares = {name: round(share, 3) for name, share in weights.items() if share < 1.0}
            if shares:
                found.append({"stratum": label, "cell": cell, "reference_records": records, "own_weight": shares})
    return found


def mostly_common(release: ReleasedObject) -> dict[str, dict[str, float]]:
    """The part of a cell's own figure in its estimate, by variable and cell, where it is below MOSTLY."""
    return _rounded(cells_where(release, "kept", lambda share: round(share, 3) < MOSTLY))


def _of_tables(release: ReleasedObject) -> dict[str, dict[str, float]]:
    """Returns the share, from 0 to 1, of a cell's shape that is borrowed: by outcome and cell, where it is above 0."""
    return _rounded(cells_where(release, "borrowed", lambda share: share > 0.0))


def _rounded(shares: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {variable: {cell: round(share, 3) for cell, share in cells.items()} for variable, cells in shares.items()}
