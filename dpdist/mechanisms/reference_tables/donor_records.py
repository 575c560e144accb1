"""Draws synthetic records for reference tables: copies of public donor records, scaled and weighted to released means.

First, outcomes of all cells are moved by one common scale, until the reference has the table's grand mean. This removes
drift between periods. What then remains in a cell is mostly sampling error and noise; exponentially tilted weights of the
donors remove it. All of this is post-processing of the released object, which includes the donors. Where limits were fixed
on an earlier release or on histograms, there are no donors, and released points (weight, outcome) take their place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.donors import Donors
from dpdist.estimation.weighted_points import CELL, MOST_POINTS
from dpdist.mechanisms.reference_tables.clipped_cells import ClippedCells
from dpdist.models.copula.model import kind_of
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws
from dpdist.reference.calibration import Domain, agree


class Drawn(NamedTuple):
    """A stratum's cells, its donors after the common scale, and the domain in which every outcome's values may move."""

    cells: ClippedCells
    donors: Donors
    domains: tuple[Domain, ...]

    @classmethod
    def of(cls, release: ReleaseView, cells: ClippedCells, stratum: int) -> Drawn:
        known = release.donors.get(release.frame.stratum_labels[stratum])
        donors = known or _points(release, cells, stratum)
        columns = release.job.outcome_columns.values()
        domains = tuple(
            Domain.of(values, bounds, column.whole or kind_of(column) == "binary" or (not known and _on(values, bounds)))
            for values, bounds, column in zip(donors.outcomes.T, cells.bounds, columns, strict=True)
        )
        means = release.theta(cells, stratum, 0)["means"][0]
        return cls(cells, _at_the_common_scale(donors, cells.count * means[:, 0], means[:, 1:], domains), domains)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
        """Outcomes and weights whose means are their cells' released means, and the positions of their donors."""
        cell, means = self.cells.pattern(frame_row), theta["means"][0]
        weight, outcomes = np.empty(len(frame_row)), np.empty((len(frame_row), len(self.domains)))
        donor = np.empty(len(frame_row), dtype=np.int64)
        for k in np.unique(cell).tolist():
            own = np.flatnonzero(cell == k)
            donor[own] = drawn = self.donors.drawn(k, self.cells.codes, len(own), rng)
            weight[own], outcomes[own] = agree(
                *(self.donors.weight[drawn], self.donors.outcomes[drawn], means[k, 0], means[k, 1:]),
                *(self.domains, self.cells.weighted and not self.cells.one_weight),
            )
            if self.cells.one_weight:
                weight[own] = means[k, 0]
        return outcomes if outcomes.shape[1] > 1 else outcomes[:, 0], weight, donor


def _on(values: Floats, bounds: tuple[float, float]) -> bool:
    """True if all points of an outcome are at its public bounds: then histograms showed an outcome that is yes or no."""
    return bool(np.isin(values, bounds).all())


def _at_the_common_scale(donors: Donors, counts: Floats, means: Floats, domains: tuple[Domain, ...]) -> Donors:
    """Moves outcomes by one scale for all cells, so that donors have the grand mean of the released table.

    `counts` are released counts (cell,), to which donors are weighted; `means` are released means (cell, outcome). Values
    that many records have do not move, and round figures stay round. If no scale gives the mean, the outcome does not
    change.
    """
    held = np.bincount(donors.cell, weights=donors.weight, minlength=len(counts))
    present = held > 0
    weight = donors.weight * np.divide(counts, held, out=np.zeros_like(held), where=present)[donors.cell]
    aims = np.average(means[present], weights=counts[present], axis=0)
    moved = []
    for values, aim, domain in zip(donors.outcomes.T, aims, domains, strict=True):
        scaled = domain.scaled(values, weight, float(aim))
        moved.append(values if scaled is None else domain.rounded(scaled, values))
    return replace(donors, outcomes=np.column_stack(moved))


def _points(release: ReleaseView, cells: ClippedCells, stratum: int) -> Donors:
    """The released points, in the form of donors; points of several outcomes are paired by the order of their weights."""
    parts = []
    for k, each in _by_cell(release, cells, stratum).items():
        ordered = [_by_weight(pairs) for pairs, _ in each]
        parts.append((np.full(MOST_POINTS, k), ordered[0][:, 0], np.column_stack([pairs[:, 1] for pairs in ordered])))
    cell, weight, outcomes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Donors.of(cell, weight, outcomes)


def points_of_cells(release: ReleaseView, cells: ClippedCells, stratum: int) -> tuple[list[list[Floats]], Floats]:
    """Points (weight, outcome) of every outcome and cell, and the number of records that they stand for, (cell,)."""
    found = _by_cell(release, cells, stratum)
    numbers, outcomes = range(len(cells.labels)), range(len(cells.outcomes))
    return [[found[k][j][0] for k in numbers] for j in outcomes], np.array([found[k][0][1] for k in numbers])


def _by_cell(release: ReleaseView, cells: ClippedCells, stratum: int) -> dict[int, list[tuple[Floats, float]]]:
    """By cell, a list by outcome: the points (point, 2), and the number of records that they stand for."""
    assert release.points is not None
    job, frame, start = release.job, release.frame, release.frame.rows_of(stratum).start
    points = release.points.to_pandas()
    number = {
        tuple(str(frame.levels[name][frame.codes[name][start + first]]) for name in job.cell_columns): k
        for k, first in enumerate(cells.first)
    }
    keys = list(zip(*(points[f"{CELL}{name}"].astype(str) for name in job.cell_columns), strict=True)) or [()] * len(points)
    points["cell"] = [number.get(key, -1) for key in keys]
    found = {}
    for k, own in points[points["cell"] >= 0].groupby("cell"):
        each = [own[own["variable"] == name] for name in cells.outcomes]
        found[int(k)] = [(of[["weight", "outcome"]].to_numpy(), float(of["standing"].iloc[0])) for of in each]
    return found


def _by_weight(pairs: Floats) -> Floats:
    """`MOST_POINTS` of these pairs (weight, outcome), at even steps in the order of weights."""
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    places: Ints = ((np.arange(MOST_POINTS) + 0.5) * len(ordered) / MOST_POINTS).astype(np.int64)
    return np.asarray(ordered[places])
