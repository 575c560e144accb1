"""Records beside reference tables: drawn by a score model of the reference, moved to the released means, made to agree.

What sampling of the draws leaves is taken out by tilting weights within every cell. All of it is post-processing of the
released object, which holds the reference's distributions; one that was fixed on an earlier release, or on histograms, has
points alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.keys import open_uniforms
from dpdist.models.agreeing import agree
from dpdist.models.cell_laws import laws_of, moved
from dpdist.models.protocol import Draws
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.scores import Scores
from dpdist.points import CELL
from dpdist.publish.released import Release, shape_name
from dpdist.records import Codes, Floats, Records


class Drawn(NamedTuple):
    """A stratum's cells, and for every outcome its model and its parameters."""

    cells: ReferenceCells
    laws: tuple[tuple[Scores, Draws], ...]
    whole: tuple[bool, ...]
    """Which outcomes are whole numbers."""

    @classmethod
    def of(cls, release: Release, cells: ReferenceCells, stratum: int) -> Drawn:
        label = release.frame.stratum_labels[stratum]
        means, found = release.theta(cells, stratum, 0)["means"][0], []
        for k, (name, law) in enumerate(zip(cells.outcomes, laws_of(release.job, cells), strict=True)):
            facts = release.facts.get(shape_name(label, name))
            if facts is None:
                facts = law.told(_points(release, cells, stratum, name), release.seed.child(f"points {label}"))
            known = law.within(facts)
            found.append((known, known.draws_of(moved(known, means[:, 1 + k]))))
        columns = release.job.outcome_columns.values()
        whole = tuple(column.whole or law.kind == "binary" for column, (law, _) in zip(columns, found, strict=True))
        return cls(cells, tuple(found), whole)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes and weights that have their cells' released means; several outcomes share a weight's place."""
        uniforms = open_uniforms(rng, (len(self.laws), len(frame_row), 3))
        uniforms[:, :, 1] = uniforms[0, :, 1]
        drawn = [law.placed(own, frame_row, places) for (law, own), places in zip(self.laws, uniforms, strict=True)]
        outcomes, weight = np.column_stack([outcome for outcome, _ in drawn]), drawn[0][1].copy()
        cell, means = self.cells.pattern(frame_row), theta["means"][0]
        for k in np.unique(cell).tolist():
            own = cell == k
            weight[own], outcomes[own] = agree(
                *(weight[own], outcomes[own], means[k, 0], means[k, 1:], self.cells.bounds, self.cells.weighted),
                whole=self.whole,
            )
        return outcomes if outcomes.shape[1] > 1 else outcomes[:, 0], weight


def _points(release: Release, cells: ReferenceCells, stratum: int, variable: str) -> Records:
    """The points that a release carries of an outcome, as records of the stratum."""
    assert release.points is not None
    job, frame, start = release.job, release.frame, release.frame.rows_of(stratum).start
    points = release.points.to_pandas()
    points = points[points["variable"] == variable]
    row = {
        tuple(str(frame.levels[name][frame.codes[name][start + first]]) for name in job.cell_columns): start + first
        for first in cells.first
    }
    keys = list(zip(*(points[f"{CELL}{name}"].astype(str) for name in job.cell_columns), strict=True)) or [()] * len(points)
    number = np.array([row.get(key, -1) for key in keys], dtype=np.int32)
    own = np.flatnonzero(number >= 0)
    own = own[np.argsort(number[own], kind="stable")]
    outcomes, weights = (points[name].to_numpy()[own] for name in ("outcome", "weight"))
    return Records(np.arange(len(own)), number[own], outcomes, weights, np.full(len(own), -1, dtype=np.int32))
