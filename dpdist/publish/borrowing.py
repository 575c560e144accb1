"""Cells of a score model whose distributions are not all their own: all that is said here follows from the reference."""

from __future__ import annotations

from typing import Any

from dpdist.models.copula.model import Scores
from dpdist.models.copula.reference_summary import SHAPES
from dpdist.publish.released import Release


def borrowing(release: Release) -> list[dict[str, Any]]:
    """One entry a cell that borrows: its reference records, and the weight of these in each of its distributions.

    A weight of 1 is left out: that distribution is the cell's own. Weights of 0 are a cell without a record of that kind.
    """
    found = []
    for stratum, label in enumerate(release.frame.stratum_labels if release.job.family == "scores" else ()):
        model = release.model(stratum)
        assert isinstance(model, Scores)
        for cell, records, own in zip(model.cells.names, model.known.records, model.known.own.tolist(), strict=True):
            shares = {name: round(share, 3) for name, share in zip(SHAPES, own, strict=True) if share < 1.0}
            if shares:
                found.append({"stratum": label, "cell": cell, "reference_records": int(records), "own_weight": shares})
    return found
