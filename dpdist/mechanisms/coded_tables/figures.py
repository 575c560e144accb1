"""Lists the noisy counts of coded tables for `measurements.parquet`, the public list of a release's noisy figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.coded_tables.sensitivity import moved
from dpdist.mechanisms.figures import (
    SUM_OF_V,
    Figures,
    cells_of,
)
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws

DEFINITIONS = {
    "v": SUM_OF_V,
}
"""Definitions of the statistics by name, for the metadata of the file."""


def figures(release: ReleaseView, model: CodedTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of one table after another; a cell has the levels of the table's columns and of the stratum's columns."""
    whole = {name: level for name, level in cells_of(release, model, stratum)[0].items() if name in release.frame.strata}
    cap = model.weights[1] if release.job.survey.weight is not None else None
    keys, met = model.keys_of(theta), Counter[Marginal]()
    for key, scale, values in zip(keys, model.scales_of(theta), model.parts(keys, theta["sums"]), strict=True):
        cells = [whole | levels for levels in model.labelled(release.job, key)]
        met[key] += 1
        again = f", measurement {met[key]}" if met[key] > 1 else ""
        yield Figures(
            cells,
            ["v"],
            values[0].reshape(-1, 1),
            [scale],
            lambda *_: (None, cap, None),
            table=" x ".join(model.columns[column] for column in key) + again,
            sensitivity=float(moved(model.adjacency) * model.sharing(key)),
        )
