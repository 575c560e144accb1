"""For models of `reference_tables` and `table_package`: synthetic records, public donors scaled to released means.

First, one common scale moves outcomes of all cells, so that the reference has the table's grand mean. This removes
drift between periods. The remaining differences are mostly sampling error and noise. Exponentially tilted weights of
the donors remove them. All of this is post-processing of the released object, which includes the donors. If limits come
from an earlier release or from histograms, released points (weight, outcome) replace the donors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.estimation.donors import Donors
from dpdist.estimation.weighted_points import CELL, MOST_POINTS
from dpdist.models.copula.model import kind_of
from dpdist.models.design import Design
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Draws, StratumModel
from dpdist.reference.calibration import Domain, agree
from dpdist.reference.heaps import Heaps, spread


class BaseCells(Protocol):
    """Base cells of a stratum, (cell,), with public sizes and the outcomes' public bounds."""

    @property
    def outcomes(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]: ...

    @property
    def codes(self) -> Codes: ...

    @property
    def count(self) -> Floats: ...

    @property
    def weighted(self) -> bool: ...

    def pattern(self, frame_row: Codes) -> Codes: ...


class DonorCells(BaseCells, Protocol):
    """Base cells with the released parameter `means`: mean weight and mean outcomes, (cell, 1 + outcome)."""

    @property
    def one_weight(self) -> bool: ...

    @property
    def first(self) -> list[int]: ...

    @property
    def design(self) -> Design: ...


class ReleasedCells(DonorCells, StratumModel, Protocol):
    """`DonorCells` as the model of a stratum."""


class Drawn(NamedTuple):
    """A stratum's cells, its donors after the common scale, and the domain in which every outcome's values may move."""

    cells: DonorCells
    donors: Donors
    domains: tuple[Domain, ...]

    @classmethod
    def of(cls, release: ReleaseView, cells: ReleasedCells, stratum: int, made: Donors | None = None) -> Drawn:
        """The cells with the reference's records as donors, or with `made`, or with released points."""
        passed = release.donors.get(release.frame.stratum_labels[stratum])
        donors = passed or made or _points(release, cells, stratum)
        columns = release.job.outcome_columns.values()
        domains = tuple(
            Domain.of(values, bounds, column.whole or kind_of(column) == "binary" or (not passed and _on(values, bounds)))
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
            rows = np.flatnonzero(cell == k)
            donor[rows] = drawn = self.donors.drawn(k, self.cells.codes, len(rows), rng)
            weight[rows], outcomes[rows] = agree(
                *(self.donors.weight[drawn], self.donors.outcomes[drawn], means[k, 0], means[k, 1:]),
                *(self.domains, self.cells.weighted and not self.cells.one_weight),
            )
            if self.cells.one_weight:
                weight[rows] = means[k, 0]
        return outcomes if outcomes.shape[1] > 1 else outcomes[:, 0], weight, donor


def _on(values: Floats, bounds: tuple[float, float]) -> bool:
    """True if all points of an outcome are at its public bounds, as for a yes-or-no outcome."""
    return bool(np.isin(values, bounds).all())


def _at_the_common_scale(donors: Donors, counts: Floats, means: Floats, domains: tuple[Domain, ...]) -> Donors:
    """Moves outcomes of all cells by one scale, so that donors have the grand mean of the released table.

    `counts` are released counts (cell,), to which donors are weighted; `means` are released means (cell, outcome).
    Heaped values do not move, and round figures stay round. If no scale gives the mean, the outcome does not change.
    """
    held = np.bincount(donors.cell, weights=donors.weight, minlength=len(counts))
    present = held > 0
    if not counts[present].any():  # far too low noise: there is no weight, so no mean to agree with
        return donors
    weight = donors.weight * np.divide(counts, held, out=np.zeros_like(held), where=present)[donors.cell]
    aims = np.average(means[present], weights=counts[present], axis=0)
    moved = []
    for values, aim, domain in zip(donors.outcomes.T, aims, domains, strict=True):
        scaled = domain.scaled(values, weight, float(aim))
        moved.append(values if scaled is None else domain.rounded(scaled, values))
    return replace(donors, outcomes=np.column_stack(moved))


def _points(release: ReleaseView, cells: DonorCells, stratum: int) -> Donors:
    """The released points, in the form of donors; points of several outcomes are paired by the order of their weights."""
    parts = []
    for k, variables in _by_cell(release, cells, stratum).items():
        ordered = [_by_weight(pairs) for pairs, _ in variables]
        parts.append((np.full(MOST_POINTS, k), ordered[0][:, 0], np.column_stack([pairs[:, 1] for pairs in ordered])))
    cell, weight, outcomes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Donors.of(cell, weight, outcomes)


def points_of_cells(release: ReleaseView, cells: DonorCells, stratum: int) -> tuple[list[list[Floats]], Floats]:
    """Points (weight, outcome) of every outcome and cell, and the number of records that they stand for, (cell,)."""
    points = _by_cell(release, cells, stratum)
    numbers, outcomes = range(len(cells.labels)), range(len(cells.outcomes))
    return [[points[k][j][0] for k in numbers] for j in outcomes], np.array([points[k][0][1] for k in numbers])


def _by_cell(release: ReleaseView, cells: DonorCells, stratum: int) -> dict[int, list[tuple[Floats, float]]]:
    """For each cell a list by outcome, with points (point, 2) and the number of records that they represent."""
    assert release.points is not None
    job, frame, start = release.job, release.frame, release.frame.rows_of(stratum).start
    points = release.points.to_pandas()
    number = {
        tuple(str(frame.levels[name][frame.codes[name][start + first]]) for name in job.cell_columns): k
        for k, first in enumerate(cells.first)
    }
    keys = list(zip(*(points[f"{CELL}{name}"].astype(str) for name in job.cell_columns), strict=True)) or [()] * len(points)
    points["cell"] = [number.get(key, -1) for key in keys]
    by_cell = {}
    for k, of_cell in points[points["cell"] >= 0].groupby("cell"):
        variables = [of_cell[of_cell["variable"] == name] for name in cells.outcomes]
        by_cell[int(k)] = [(of[["weight", "outcome"]].to_numpy(), float(of["standing"].iloc[0])) for of in variables]
    return by_cell


def _by_weight(pairs: Floats) -> Floats:
    """`MOST_POINTS` of these pairs (weight, outcome), at even steps in the order of weights."""
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    places: Ints = ((np.arange(MOST_POINTS) + 0.5) * len(ordered) / MOST_POINTS).astype(np.int64)
    return np.asarray(ordered[places])


STEP = 0.05
"""Step of the numerical derivative of a distribution function, as a share of the mean or of the standard deviation."""


@dataclass(frozen=True)
class Transported:
    """The points (weight, outcome) of every outcome and cell, (point, 2) each.

    `standing` (cell,) is the number of records that a cell's points represent.
    """

    cells: DonorCells
    points: Sequence[Sequence[Floats]]
    standing: Floats
    heaps: Sequence[Heaps | None] = ()
    """Heaps of every outcome in the reference's records; None if these are not released."""

    @classmethod
    def of(cls, release: ReleaseView, cells: ReleasedCells, stratum: int) -> Transported:
        donors = list(release.donors.values())
        weight = np.concatenate([part.weight for part in donors]) if donors else np.empty(0)
        outcomes = np.concatenate([part.outcomes for part in donors]).T if donors else np.empty((0, 0))
        heaps = [Heaps.of(weight, values) for values in outcomes]
        return cls(cells, *points_of_cells(release, cells, stratum), heaps)

    @cached_property
    def _steps(self) -> list[list[_Steps]]:
        """Distribution functions by outcome and cell, with ties spread where answers are heaped."""
        heaps = self.heaps or [None] * len(self.points)
        return [
            [_Steps.of(points if of_outcome is None else np.column_stack(spread(*points.T))) for points in cells]
            for of_outcome, cells in zip(heaps, self.points, strict=True)
        ]

    def answers(self, value: Floats, outcome: int) -> Floats:
        """Answers with the ranks of the given quantiles of the spread distribution, of any shape."""
        heaps = self.heaps[outcome] if self.heaps else None
        return value if heaps is None else heaps.answers(value)

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, for pairs of a frame row and a value, (draw, pair)."""
        cell, shares = self.cells.design.pattern[row], np.empty((len(theta), len(row)))
        for k in np.unique(cell).tolist():
            pairs = np.flatnonzero(cell == k)
            distinct, place = np.unique(value[pairs], return_inverse=True)
            shares[:, pairs] = self._of_cell(theta, k, distinct, outcome)[:, place]
        return shares

    def at_means(self, mean: Floats, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """`until` for other means, (pair,): `mean` (row,) are the mean outcomes of the stratum's frame rows."""
        means = np.zeros((1, len(self.standing), 1 + len(self.points)))
        means[0, self.cells.design.pattern, 1 + outcome] = mean
        return np.asarray(self.until(Draws({"means": means}), row, value, outcome)[0])

    def _of_cell(self, theta: Draws, k: int, value: Floats, outcome: int) -> Floats:
        """Shares of a cell's weight with an outcome of at most each value, (draw, value)."""
        points, (low, top) = self.points[outcome][k], self.cells.bounds[outcome]
        mean = float(np.average(points[:, 1], weights=points[:, 0]))
        moved = theta["means"][:, k, 1 + outcome, None]
        steps = self._steps[outcome][k]
        if low >= 0 and mean > 0:
            ratio = np.divide(mean, moved, out=np.ones_like(moved), where=moved > 0)
            share = steps.until(value * ratio)
        else:
            share = steps.until(value + mean - moved)
        if "shape" in theta.values:
            error = self._errors(points, steps, mean, value, low >= 0 and mean > 0) / np.sqrt(self.standing[k])
            share = share + theta["shape"][:, k, None] * error
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, np.clip(share, 0.0, 1.0)))

    @staticmethod
    def _errors(points: Floats, steps: _Steps, mean: float, value: Floats, scaled: bool) -> Floats:
        """Standard deviation, for one record, of the share at or below each value, given the mean, (value,)."""
        weight, outcome = points[:, 0] / points[:, 0].mean(), points[:, 1]
        size = mean if scaled else float(np.sqrt(np.average((outcome - mean) ** 2, weights=weight)))
        if size == 0:
            return np.zeros(len(value))
        ends = [value / (1.0 + sign * STEP) if scaled else value - sign * STEP * size for sign in (1.0, -1.0)]
        slope = (steps.until(ends[1]) - steps.until(ends[0])) / (2.0 * STEP)
        inside = (outcome[:, None] <= value) - steps.until(value) + slope * ((outcome - mean) / size)[:, None]
        return np.asarray(np.sqrt(np.mean((weight[:, None] * inside) ** 2, axis=0)))


@dataclass(frozen=True)
class _Steps:
    """A distribution function with steps: outcomes in rising order, and the share of weight up to each, starting with 0."""

    outcome: Floats
    share: Floats

    @classmethod
    def of(cls, points: Floats) -> _Steps:
        order = np.argsort(points[:, 1], kind="stable")
        weight = np.cumsum(points[order, 0])
        return cls(points[order, 1], np.concatenate([[0.0], weight / weight[-1]]))

    def until(self, value: Floats) -> Floats:
        return np.asarray(self.share[np.searchsorted(self.outcome, value, side="right")])
