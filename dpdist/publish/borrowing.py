"""For `publish.statement`: cells whose distributions a score model takes in part from similar cells of the reference."""

from __future__ import annotations

from typing import Any

from dpdist.job.families import family_facts
from dpdist.models.on_reference import OnDistributions
from dpdist.publish.released import ReleasedObject

WEIGHTS = (
    "Small-area borrowing: cells with few reference records take part of their distributions from other cells. The weight "
    "of a cell's own records is smaller where these are fewer, and where they are more like the others."
)


def borrowing(released: ReleasedObject) -> dict[str, Any]:
    """The statement's entry on shapes taken from similar cells; empty if no cell borrows."""
    cells = _borrowed_scores(released)
    return {"in_words": WEIGHTS, "cells": cells} if cells else {}


def _borrowed_scores(released: ReleasedObject) -> list[dict[str, Any]]:
    """Returns one entry for each cell that borrows: its number of reference records, and their weight by distribution.

    A distribution with weight 1 borrows nothing and is left out. The weight is 0 if the cell has no reference record of
    this kind.
    """
    entries = []
    for stratum, label in enumerate(released.frame.stratum_labels if family_facts(released.job).on_reference else ()):
        model = released.model(stratum)
        assert isinstance(model, OnDistributions)
        for cell, records, weights in model.borrowed_shapes():
            shares = {name: round(share, 3) for name, share in weights.items() if share < 1.0}
            if shares:
                entries.append({"stratum": label, "cell": cell, "reference_records": records, "own_weight": shares})
    return entries
