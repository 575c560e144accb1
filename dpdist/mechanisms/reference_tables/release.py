"""The model of reference tables: noisy clipped sums of base cells, and means estimated with a reference (METHODS §7b).

The released parameters are the noisy sums with their clipping limits, and the mean weight and mean outcomes of every cell
with covariances. The reference's points, moved to these means, are released for the next period. Margins are sums of
cells. Synthetic records are drawn from the points and calibrated to the means (dpdist.publish.reference_records).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Frame, Ints, Records
from dpdist.estimation.weighted_points import MOST_POINTS
from dpdist.job import Job
from dpdist.job.noisy_mechanisms import ReferenceTables
from dpdist.mechanisms.reference_tables.borrowing import complete
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.clipping_intervals import Noise, choose
from dpdist.mechanisms.reference_tables.clipping_inversion import invert_clipping
from dpdist.mechanisms.reference_tables.collapsing import Spread, collapsed, fewest, pooled, spread
from dpdist.mechanisms.reference_tables.elasticity import elasticities
from dpdist.mechanisms.reference_tables.redrawn_means import noised_again, recounted, resampled
from dpdist.mechanisms.reference_tables.released_form import covariances, padded, released_form, unpadded
from dpdist.mechanisms.reference_tables.saturation import set_into, spans, weight_bounds
from dpdist.mechanisms.reference_tables.sensitivity import UNIT, Limits, noise_scales
from dpdist.models.described import recall_draws
from dpdist.models.design import counted, counted_again, design
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws, Extremes, Parameter
from dpdist.privacy.units import record_epsilon


class Sized(NamedTuple):
    """Sums of 1 − v, and of vc for every outcome, in units of 1/UNIT; `size` of every cell; noise variance of log size."""

    sums: Floats
    size: Floats
    variance: Floats


Told = list[list[Cell]]
"""Summary of a reference: the cells of each outcome."""


class Inverted(NamedTuple):
    """Results of inverting the clipping, one list entry for each outcome.

    `departure` is the distance of units from the reference. `ends` are ranges of means that the sums do not identify, of
    the weight first. `elasticity` are derivatives by the sample count, where counts are noisy.
    """

    cells: list[Spread]
    departure: list[Floats]
    ends: list[Floats]
    elasticity: list[Floats]


@dataclass(frozen=True)
class ReferenceCells(OutcomeModel):
    """Base cells of one stratum; once `limits` are known, the statistics are (cell, 1 + outcome) in units of 1/UNIT."""

    labels: tuple[str, ...]
    outcomes: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    """Public bounds of every outcome."""
    codes: Codes
    """Levels of the tables' columns in every cell, (cell, column)."""
    count: Floats
    """Sample records of every cell, public."""
    scales: tuple[Fraction, Fraction]
    """Scales of the noise on Σ(1 − v) and on every other sum, in units of 1/UNIT."""
    weighted: bool
    shrinkage: bool
    simplex: bool = False
    """True if sample sizes are secret; statistics are then those of `Limits.simplex`."""
    limits: Limits | None = None
    unit: Ints | None = None
    """The unit of every cell, (cell,); the cells of a unit have one common sum."""
    weight_bounds: tuple[float, float] | None = None
    """Public bounds of the weight, if histograms fix the limits; figures that sums do not identify are then sought."""
    noisy_counts: bool = False
    """True where sample counts have noise of their own (`predictors: {protect}`)."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> ReferenceCells:
        columns = tuple(name for name in job.cell_columns if name not in frame.strata)
        cells = design(frame, columns, rows)
        first = [int(np.flatnonzero(cells.pattern == cell)[0]) + rows.start for cell in range(len(cells.matrix))]
        labels = tuple(" / ".join(str(frame.levels[c][frame.codes[c][row]]) for c in columns) or "all" for row in first)
        codes = np.array([[frame.codes[c][row] for c in columns] for row in first], dtype=np.int32).reshape(len(first), -1)
        count = counted(frame, rows, cells)
        bounds = tuple(column.bounds or (0.0, 1.0) for column in job.outcome_columns.values())
        scales = noise_scales(record_epsilon(job, job.epsilon_of_tables), job.budget.adjacency, len(bounds))
        weighted = job.survey.weight is not None
        assert isinstance(job.mechanism, ReferenceTables)
        return cls(
            *(cells, bounds[0], labels, job.outcomes, bounds, codes, count, scales, weighted),
            *(job.mechanism.shrinkage, job.sizes_in_sums),
            weight_bounds=weight_bounds(job),
            noisy_counts=job.predictors is not None,
        )

    @property
    def first(self) -> list[int]:
        """The first frame row of every cell, counted within the stratum."""
        return [int(row) for row in np.unique(self.design.pattern, return_index=True)[1]]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        histograms = self.weight_bounds is not None
        return released_form(self.labels, self.outcomes, self.simplex, histograms, self.noisy_counts)

    @property
    def noise(self) -> Noise:
        """Variances of the noise on Σ(1 − v) and on Σvc, in squared records."""
        first, other = (2.0 * (float(scale) / UNIT) ** 2 for scale in self.scales)
        return Noise(first, 2.0 * other if self.simplex else other)

    noise_at_least: ClassVar[bool] = False
    """Whether `noise_of_one` is a lower bound."""

    @property
    def noise_of_one(self) -> tuple[float, float]:
        """Approximate noise of a count and of a mean of one record, in direct standard errors.

        For n records it is 1/√n times as large (METHODS §7b).
        """
        of_count, of_mean = (float(scale) / UNIT for scale in self.scales)
        return 6.0 * of_count, 12.0 * of_mean

    def sized(self, sums: Floats, count: Floats) -> Sized:
        """Sums of units in the form that they have under public sizes, with the units' sizes.

        `count` are the public sizes. Secret sizes are estimated from the noisy sums.
        """
        if not self.simplex:
            return Sized(sums, count, np.zeros_like(count))
        above, below = np.split(sums[:, 1:], 2, axis=1)
        left, held = np.maximum(sums[:, 0], 0.0), np.maximum((above + below).mean(axis=1), UNIT / 1000.0)
        size = np.maximum(np.rint((left + held) / UNIT), 1.0)
        variance = self.noise.weight, self.noise.product / len(self.outcomes)
        return Sized(np.column_stack([left, above - below]), (left + held) / UNIT, sum(variance) / size**2)

    def summarise(self, reference: Sequence[Records], sizes: Floats | None = None) -> Told:
        """Summary of every cell from the reference's records, which are given for each outcome.

        `sizes` (cell,) are effective numbers of records, where the records are points that represent others.
        """
        found = []
        for records, bounds in zip(reference, self.bounds, strict=True):
            cell = self.pattern(records.frame)
            order = np.argsort(cell, kind="stable")
            own = np.split(order, np.searchsorted(cell[order], np.arange(1, len(self.labels))))
            cells = [Cell.of(records.weight[k], records.outcome[k], bounds, self.weighted) for k in own]
            if sizes is not None:
                cells = [replace(each, records=max(1, int(n))) for each, n in zip(cells, sizes, strict=True)]
            found.append(complete(cells, self.codes))
        return found

    def units(self, summary: Told) -> Ints:
        """The unit of every cell, (cell,), from the reference and the noise."""
        return collapsed(summary[0], self.codes, fewest(self.scales))

    def _sizes(self, summary: Told) -> Floats:
        """Public sizes of cells; if sizes are secret, the reference's sizes."""
        return np.array([cell.records for cell in summary[0]], dtype=np.float64) if self.simplex else self.count

    def _whole(self, summary: Told, unit: Ints) -> Told:
        """For each outcome its units, each as one cell."""
        sizes, members = self._sizes(summary), [np.flatnonzero(unit == number) for number in range(unit.max() + 1)]
        return [[pooled([cells[k] for k in own], sizes[own]) for own in members] for cells in summary]

    def limited(self, summary: Told) -> Limits:
        """The limits μ, U and R of every cell, which it shares with its unit."""
        unit = self.units(summary)
        sizes = np.bincount(unit, weights=self._sizes(summary))
        whole = zip(zip(*self._whole(summary, unit), strict=True), sizes, strict=True)
        chosen = [choose(cells, int(n), self.noise) for cells, n in whole]
        found = (np.array([getattr(each, name) for each in chosen], dtype=np.float64) for name in Limits._fields)
        return Limits(*(each[unit] for each in found))

    def within(self, limits: Limits, unit: Ints) -> ReferenceCells:
        """This model with the limits and the units that a reference fixed."""
        return replace(self, limits=limits, unit=unit)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        assert self.limits is not None
        assert self.unit is not None
        cell, units = self.pattern(records.frame), int(self.unit.max()) + 1
        body = self.limits.simplex if self.simplex else self.limits.cone
        rows = alpha[:, None] * body(cell, records.weight, records.outcomes)
        return np.column_stack([np.bincount(self.unit[cell], weights=column, minlength=units) for column in rows.T])

    def clipping_inverted(self, sums: Floats, summary: Told) -> Draws:
        """The released parameters, from noisy sums of units and the reference."""
        assert self.unit is not None
        unit, sized = self.unit, self.sized(sums, np.bincount(self.unit, weights=self.count).astype(np.float64))
        found, departure, ends, elasticity = self._inverted(sized, summary)
        weight, *means = [found[0].estimate[:, 0], *(each.estimate[:, 1] for each in found)]
        if ends:
            weight, *means = (set_into(value, own) for value, own in zip((weight, *means), ends, strict=True))
        values = {
            "sums": sums[unit],
            "unit": unit.astype(np.float64),
            "limits": np.column_stack(self.limits or ()),
            "means": np.column_stack([weight, *means]),
            "departure": _by_column(departure),
            **{name: covariances([getattr(each, name) for each in found]) for name in ("sampling", "noise", "alone")},
            **({"elasticity": _by_column(elasticity)} if elasticity else {}),
            **self._of_the_summary(found, ends, summary),
            "common": _by_column([each.common for each in found]),
        }
        if self.simplex:
            share = self._sizes(summary) / np.bincount(unit, weights=self._sizes(summary))[unit]
            values["size"] = np.maximum(np.rint(sized.size[unit] * share), 1.0)
            values["noise"][:, 0] += sized.variance[unit]
        values |= {"standing": np.array([cell.effective_size for cell in summary[0]], dtype=np.float64)}
        values |= {"points": _points(summary, weight, means)}
        return Draws({name: value[None] for name, value in values.items()})

    def _inverted(self, sized: Sized, summary: Told) -> Inverted:
        """Estimates from inverting the clipping of every outcome's sums."""
        assert self.limits is not None
        assert self.unit is not None
        unit, whole = self.unit, self._whole(summary, self.unit)
        centre, cap, reach = (each[np.unique(unit, return_index=True)[1]] for each in self.limits)
        found, departure, unknown, elasticity = [], [], list[tuple[Floats, Floats]](), list[Floats]()
        for k, (cells, units) in enumerate(zip(summary, whole, strict=True)):
            limits, own = Limits(centre[:, k], cap, reach[:, k]), sized.sums[:, [0, 1 + k]]
            each = invert_clipping(units, limits, own, sized.size, self.noise, self.shrinkage)
            found.append(spread(each, cells, units, unit))
            departure.append(each.departure[unit])
            if self.noisy_counts:
                elasticity.append(elasticities(units, limits, own, sized.size, each)[unit])
            if self.weight_bounds is not None:
                unknown.append(spans(units, limits, own, sized.size, self.noise, self.weight_bounds))
        ends = [unknown[0][0], *(of_mean for _, of_mean in unknown)] if unknown else []
        return Inverted(found, departure, ends, elasticity)

    def _of_the_summary(self, cells: Sequence[Spread], ends: Sequence[Floats], summary: Told) -> dict[str, Floats]:
        """Released parameters that exist only with histograms, or only for cells whose shape is partly borrowed."""
        values = dict[str, Floats]()
        if ends:
            values["spans"] = np.column_stack(ends)
            values["tail"] = _by_column([each.tail for each in cells])
            values["group"] = np.array([cell.group for cell in summary[0]], dtype=np.float64)
        if self.weight_bounds is None:
            values["borrowed"] = np.array([[cell.borrowed for cell in each] for each in summary]).T
        return values

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        means = theta["means"][:, self.design.pattern]
        return means[..., 0], means[..., 0] * means[..., 1 + outcome]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        means = theta["means"][0, self.pattern(frame_row)]
        return means[:, 1:] if len(self.outcomes) > 1 else means[:, 1], means[:, 0]

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other samples of the reference and of the current file, without noise (see `redrawn_means`)."""
        return resampled(theta, draws, rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other noise, for standard errors only."""
        return noised_again(theta, draws, rng)

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """Means from the same sums under other sample counts (draw, row), by the delta method."""
        return recounted(theta, counted_again(self.design, counts), self.count)

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Sums have no density of a record, so there is no log likelihood."""
        return np.full((len(draws), len(records)), np.nan)

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        return Extremes(np.full(len(records), np.inf), np.full(len(records), -np.inf))

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """Reads the released parameters that are present, because a released job does not name an earlier release."""
        return recall_draws([each for each in self.parameters if each.name in described], described)

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        first, other = self.scales
        scale = f"scale {first}" + (f" on 1 - v and {other} on vc" if other != first else "")
        said = {"standing": theta["standing"][0].tolist(), "points": unpadded(theta["points"][0])}
        if self.simplex:
            said["size"] = theta["size"][0].tolist()
        return {**super().describe(theta), **said, "noise_law": f"discrete Laplace, {scale}, in units of 2^-20"}


def _by_column(pairs: Sequence[Floats]) -> Floats:
    """Joins the weight's values, from the first outcome's pairs (cell, 2), with each outcome's values, (cell, …)."""
    return np.column_stack([pairs[0][:, 0], *(each[:, 1] for each in pairs)])


def _points(summary: Told, weight: Floats, means: Sequence[Floats]) -> Floats:
    """The reference's points moved to the released means, (outcome, cell, point, 2), filled up with NaN."""
    moved = [
        [cell.transported(w, m, MOST_POINTS) for cell, w, m in zip(cells, weight, mean, strict=True)]
        for cells, mean in zip(summary, means, strict=True)
    ]
    return np.array([[padded(*pair) for pair in cells] for cells in moved])


def model_of(job: Job) -> type[ReferenceCells]:
    """The model of every job under the mechanism."""
    return ReferenceCells
