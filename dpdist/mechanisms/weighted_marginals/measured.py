"""Lists the noisy weighted counts and sums of values of weighted marginals for `measurements.parquet`."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.mechanisms.coded_tables import figures as of_tables
from dpdist.mechanisms.coded_tables.sensitivity import moved
from dpdist.mechanisms.figures import UNIT, Figures, cells_of
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

SUM_OF_VALUES = (
    "the sum of v (y - c) / R, v = min(w, U) / U, with w the weight and U the weight_cap, 1 without weights; y the "
    "column's level, c the centre and R the half_width of its levels"
)
DEFINITIONS = of_tables.DEFINITIONS | {"vu": SUM_OF_VALUES}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: Marginals, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of one table after another, then of sums of values."""
    yield from of_tables.figures(release, model, stratum, theta)
    whole = {name: level for name, level in cells_of(release, model, stratum)[0].items() if name in release.frame.strata}
    cap = model.weights[1] if release.job.survey.weight is not None else None
    for told in model.value_sums(theta):
        levels, name = model.levels[told.column], model.columns[told.column]
        limits = (min(levels) + max(levels)) / 2.0, cap, (max(levels) - min(levels)) / 2.0
        cells = [whole] if told.by is None else [whole | cell for cell in model.labelled(release.job, (told.by,))]
        yield Figures(
            cells,
            ["vu"],
            told.values[0].reshape(-1, 1) * (UNIT / model.weights[1]),
            [model.value_scale],
            lambda *_, own=limits: own,
            table=name if told.by is None else f"{name} by {model.columns[told.by]}",
            sensitivity=float(moved(model.adjacency) * model.sharing((model.listed or model.singles)[0])),
        )
