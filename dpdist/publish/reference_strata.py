"""Iterates over strata and base cells whose means a reference completes, to name cells in the statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.outputs import CompletedCells
from dpdist.models.protocol import Draws
from dpdist.publish.released import ReleasedObject


class ReferenceStratum(NamedTuple):
    """A stratum with its model and its released parameters; `cells` names its base cells in the statement."""

    stratum: int
    model: CompletedCells
    theta: Draws
    cells: list[str]


def described(release: ReleasedObject, stratum: int, parameter: str) -> Floats:
    """A released parameter as the release describes it.

    A released job does not name an earlier release, and its model then leaves parameters out.
    """
    said = release.sets[0][release.frame.stratum_labels[stratum]][parameter]
    return np.array(said["values"], dtype=np.float64)


def strata_with(release: ReleasedObject, parameter: str) -> Iterator[ReferenceStratum]:
    """The strata whose released parameters include `parameter`. A cell's name has its stratum if there are several."""
    labels = release.frame.stratum_labels
    for stratum, label in enumerate(labels):
        model = release.model(stratum)
        if isinstance(model, CompletedCells) and parameter in release.sets[0][label]:
            where = f"{label} / " if len(labels) > 1 else ""
            yield ReferenceStratum(
                stratum, model, release.theta(model, stratum, 0), [where + name for name in model.labels]
            )


def cells_where(
    release: ReleasedObject, parameter: str, holds: Callable[[float], bool], every: int = 1
) -> dict[str, dict[str, float]]:
    """Values of a released parameter (cell, variable) for which a condition holds, by variable and cell.

    The variables are the outcomes, after "weight" if the parameter has a column for it. Only each `every`-th column is
    read. Variables without such a cell are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for each in strata_with(release, parameter):
        columns = described(release, each.stratum, parameter)[:, ::every].T.tolist()
        names = ("weight", *each.model.outcomes)[-len(columns) :]
        for variable, values in zip(names, columns, strict=True):
            such = {cell: value for cell, value in zip(each.cells, values, strict=True) if holds(value)}
            found.setdefault(variable, {}).update(such)
    return {variable: cells for variable, cells in found.items() if cells}
