"""Public half of `reference_tables`, for `query` and `publish`: means from noisy clipped sums and a reference.

Released parameters are the noisy sums with their limits, and every cell's mean weight and mean outcomes with
covariances. The reference's points, moved to these means, are released for the next period's release. Margins are sums
of cells. Synthetic records are drawn from the points and calibrated to the means (`points`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.estimation.donors import Donors
from dpdist.estimation.weighted_points import MOST_POINTS
from dpdist.job import Job
from dpdist.mechanisms.figures import (
    SUM_OF_ABSENT,
    Figures,
    cells_of,
)
from dpdist.mechanisms.reference_tables.cells import (
    CellsByOutcome,
    ClippedCells,
    ReferenceRecords,
    ReferenceSummary,
    summary_of,
)
from dpdist.mechanisms.reference_tables.points import Drawn, Transported, points_of_cells
from dpdist.mechanisms.reference_tables.released_means import (
    cell_facts,
    covariances,
    noised_again,
    padded,
    recounted,
    released_form,
    resampled,
    unpadded,
)
from dpdist.mechanisms.reference_tables.words import WORDS
from dpdist.models.design import counted_again
from dpdist.models.outputs import CellFacts, Point, ReleaseView
from dpdist.models.protocol import Draws, Parameter, recall_draws
from dpdist.reference.collapsing import Spread, spread
from dpdist.reference.histogram_pairs import all_paired
from dpdist.reference.inversion import elasticities, invert_clipping
from dpdist.reference.limits import Limits
from dpdist.reference.relative_weights import rescaled
from dpdist.reference.saturation import set_into, spans

__all__ = ["DEFINITIONS", "WORDS", "ReferenceCells", "figures", "model_of"]

DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "vc": "the sum of v c, c = clip((y - m) / R, -1, 1), with y the outcome, m the centre and R the half_width",
    "v(1 + c)/2": "the sum of v (1 + c) / 2, in the notation of vc",
    "v(1 - c)/2": "the sum of v (1 - c) / 2, in the notation of vc",
}
"""Definitions of the statistics by name, for the metadata of the file."""
QUERIES = dict.fromkeys(DEFINITIONS, "clipped sums of base cells")
"""The query that every statistic answers, by the names of both."""


class Sized(NamedTuple):
    """Sums of 1 − v, and of vc for every outcome, in units of 1/UNIT; `size` of every cell; variance of log size by
    noise.
    """

    sums: Floats
    size: Floats
    variance: Floats


class Inverted(NamedTuple):
    """Results of inverting the clipping, one list entry for each outcome.

    `departure` is the distance of units from the reference, in standard deviations. `ends` are ranges of unidentified
    means, the weight's first. `kept` is the weight of a unit's own log scales in their estimate. `elasticity` is the
    derivative by the sample count, if counts are noisy.
    """

    cells: list[Spread]
    departure: list[Floats]
    kept: list[Floats]
    ends: list[Floats]
    elasticity: list[Floats]


@dataclass(frozen=True)
class ReferenceCells(ClippedCells):
    """The model of the tables, given the noisy sums of `ClippedCells` and a reference."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        histograms = self.weight_bounds is not None
        return released_form(self.labels, self.outcomes, self.simplex, histograms, self.noisy_counts)

    def learned(self, records: ReferenceRecords, copied: pa.Table | None) -> ReferenceSummary:
        """The summary of a reference's records, with donors."""
        cells = summary_of(self, [records.about(k) for k in range(len(self.outcomes))])
        return cells._replace(donors=Donors.of(self.pattern(records.frame), records.weight, records.outcomes, copied))

    def learned_from_points(self, points: Sequence[ReferenceRecords], effective_sizes: Floats) -> ReferenceSummary:
        """The summary of points that an earlier release passed on, with effective sample sizes of cells, (cell,)."""
        return summary_of(self, points, effective_sizes)

    def sized(self, sums: Floats, count: Floats) -> Sized:
        """Units' sums in their form under public sizes, with the units' sizes.

        `count` are the public sizes. Secret sizes are estimated from the noisy sums.
        """
        if not self.simplex:
            return Sized(sums, count, np.zeros_like(count))
        above, below = np.split(sums[:, 1:], 2, axis=1)
        left, held = np.maximum(sums[:, 0], 0.0), np.maximum((above + below).mean(axis=1), UNIT / 1000.0)
        size = np.maximum(np.rint((left + held) / UNIT), 1.0)
        variance = self.noise.weight, self.noise.product / len(self.outcomes)
        return Sized(np.column_stack([left, above - below]), (left + held) / UNIT, sum(variance) / size**2)

    def clipping_inverted(self, sums: Floats, summary: CellsByOutcome) -> Draws:
        """The released parameters, from noisy sums of units and the reference."""
        assert self.unit is not None
        assert self.limits is not None
        unit, sized = self.unit, self.sized(sums, np.bincount(self.unit, weights=self.count).astype(np.float64))
        if self.weight_bounds is not None:
            sums_of_cells, sizes = sized.sums[unit] / UNIT, sized.size[unit]
            v = 1.0 - sums_of_cells[:, 0] / np.maximum(sizes, 1.0)
            summary = rescaled(summary, self.limits.cap, v, sizes, self.noise.weight, self.public_weights)
            summary = all_paired(summary, self.limits, sums_of_cells, sizes, self.noise)
        spreads, departure, kept, ends, elasticity = self._inverted(sized, summary)
        weight = np.clip(spreads[0].estimate[:, 0], *self.public_weights)
        means = [column.estimate[:, 1] for column in spreads]
        if ends:
            weight, *means = (set_into(value, span) for value, span in zip((weight, *means), ends, strict=True))
        limits = self.limits
        if self.design_weight is not None:
            weight, limits = weight * self.design_weight, limits._replace(cap=limits.cap * self.design_weight)
            ends = [ends[0] * self.design_weight[:, None], *ends[1:]] if ends else []
        values = {
            "sums": sums[unit],
            "unit": unit.astype(np.float64),
            "limits": np.column_stack(limits),
            "means": np.column_stack([weight, *means]),
            "departure": _by_column(departure),
            "kept": _by_column(kept),
            **{name: covariances([getattr(column, name) for column in spreads]) for name in ("sampling", "noise", "alone")},
            **({"elasticity": _by_column(elasticity)} if elasticity else {}),
            **self._of_the_summary(spreads, ends, summary),
            "common": _by_column([column.common for column in spreads]),
        }
        if self.simplex:
            share = self.sizes(summary) / np.bincount(unit, weights=self.sizes(summary))[unit]
            values["size"] = np.maximum(np.rint(sized.size[unit] * share), 1.0)
            values["noise"][:, 0] += sized.variance[unit]
        values |= {"standing": np.array([cell.effective_size for cell in summary[0]], dtype=np.float64)}
        values |= {"points": _points(summary, weight, means)}
        return Draws({name: value[None] for name, value in values.items()})

    def _inverted(self, sized: Sized, summary: CellsByOutcome) -> Inverted:
        """Estimates of every outcome after clipping is inverted."""
        assert self.limits is not None
        assert self.unit is not None
        unit, whole = self.unit, self.whole(summary, self.unit)
        centre, cap, reach = (column[np.unique(unit, return_index=True)[1]] for column in self.limits)
        spreads, departure, kept, unknown, elasticity = [], [], [], list[tuple[Floats, Floats]](), list[Floats]()
        for k, (cells, units) in enumerate(zip(summary, whole, strict=True)):
            limits, unit_sums = Limits(centre[:, k], cap, reach[:, k]), sized.sums[:, [0, 1 + k]]
            column = invert_clipping(units, limits, unit_sums, sized.size, self.noise, self.shrinkage)
            spreads.append(spread(column, cells, units, unit))
            departure.append(column.departure[unit])
            kept.append(column.kept[unit])
            if self.noisy_counts:
                elasticity.append(elasticities(units, limits, unit_sums, sized.size, column)[unit])
            if self.weight_bounds is not None:
                unknown.append(spans(units, limits, unit_sums, sized.size, self.noise, self.weight_bounds))
        ends = [unknown[0][0], *(of_mean for _, of_mean in unknown)] if unknown else []
        return Inverted(spreads, departure, kept, ends, elasticity)

    def _of_the_summary(
        self, cells: Sequence[Spread], ends: Sequence[Floats], summary: CellsByOutcome
    ) -> dict[str, Floats]:
        """Released parameters that only exist with histograms, or with partly borrowed shapes."""
        values = dict[str, Floats]()
        if ends:
            values["spans"] = np.column_stack(ends)
            values["tail"] = _by_column([column.tail for column in cells])
            for name in ("group", "at_bound"):
                values[name] = np.array([getattr(cell, name) for cell in summary[0]], dtype=np.float64)
        if self.weight_bounds is None:
            values["borrowed"] = np.array([[cell.borrowed for cell in column] for column in summary]).T
        return values

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        means = theta["means"][:, self.design.pattern]
        return means[..., 0], means[..., 0] * means[..., 1 + outcome]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        means = theta["means"][0, self.pattern(frame_row)]
        return means[:, 1:] if len(self.outcomes) > 1 else means[:, 1], means[:, 0]

    def donor_records(self, release: ReleaseView, stratum: int) -> Drawn:
        """Synthetic records that are copies of donors, moved to the released means."""
        return Drawn.of(release, self, stratum)

    def points_of_cells(self, release: ReleaseView, stratum: int) -> tuple[list[list[Floats]], Floats]:
        """Points (weight, outcome) of every outcome and cell, and the number of records that they stand for, (cell,)."""
        return points_of_cells(release, self, stratum)

    def distribution(self, release: ReleaseView, stratum: int) -> Transported:
        """The reference's distributions, moved to the released means."""
        return Transported.of(release, self, stratum)

    def cell_facts(self, described: Mapping[str, Any]) -> CellFacts | None:
        """Facts of the cells in the written parameters; None if these have no means."""
        return cell_facts(described, self.count) if "means" in described else None

    def sizes_of_rows(self, described: Mapping[str, Any]) -> Ints:
        """The number of sample records of every frame row, (row,), estimated from noisy sums."""
        return np.array(described["size"], dtype=np.int64)[self.design.pattern]

    def passed_on(self, described: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Point]]:
        """The written parameters without points, and the points for the next release."""
        left = {name: value for name, value in described.items() if name not in ("points", "standing")}
        cells = enumerate(zip(self.first, described["standing"], strict=True))
        return left, [
            Point(row, variable, standing, points[number])
            for number, (row, standing) in cells
            for variable, points in zip(self.outcomes, described["points"], strict=True)
        ]

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other samples of the reference and of the current file, without noise (see `released_means`)."""
        return resampled(theta, draws, rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Means under other noise, for standard errors only."""
        return noised_again(theta, draws, rng)

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """Means under other sample counts (draw, row), by the delta method."""
        return recounted(theta, counted_again(self.design, counts), self.count)

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """Reads the released parameters that are present: the released job does not name an earlier release."""
        return recall_draws([parameter for parameter in self.parameters if parameter.name in described], described)

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        first, other = self.scales
        scale = f"scale {first}" + (f" on 1 - v and {other} on vc" if other != first else "")
        passed = {"standing": theta["standing"][0].tolist(), "points": unpadded(theta["points"][0])}
        if self.simplex:
            passed["size"] = theta["size"][0].tolist()
        return {**super().describe(theta), **passed, "noise_law": f"discrete Laplace, {scale}, in units of 2^-20"}


def _by_column(pairs: Sequence[Floats]) -> Floats:
    """Joins values of the weight, from the first outcome's pairs (cell, 2), with those of each outcome, (cell, …)."""
    return np.column_stack([pairs[0][:, 0], *(pair[:, 1] for pair in pairs)])


def _points(summary: CellsByOutcome, weight: Floats, means: Sequence[Floats]) -> Floats:
    """The reference's points moved to the released means, (outcome, cell, point, 2), filled up with NaN."""
    moved = [
        [cell.transported(w, m, MOST_POINTS) for cell, w, m in zip(cells, weight, mean, strict=True)]
        for cells, mean in zip(summary, means, strict=True)
    ]
    return np.array([[padded(*pair) for pair in cells] for cells in moved])


def model_of(job: Job) -> type[ReferenceCells]:
    """The model of every job under the mechanism."""
    return ReferenceCells


def figures(release: ReleaseView, model: ReferenceCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of a stratum's cells, with each sum's clipping limits.

    The first sum is of 1 − v. The others are of the outcomes in turn.
    """
    named = {parameter.name: parameter.dims[1][1] for parameter in model.parameters if parameter.name == "sums"}
    several, limits = len(model.outcomes), theta["limits"][0]

    def of(i: int, j: int) -> tuple[float | None, float | None, float | None]:
        k = (j - 1) % several
        window = (None, None) if j == 0 else (float(limits[i, k]), float(limits[i, several + 1 + k]))
        return window[0], float(limits[i, several]), window[1]

    values, unit = theta["sums"][0], theta["unit"][0].astype(int).tolist()
    scales = [model.scales[0], *[model.scales[1]] * (values.shape[1] - 1)]
    yield Figures(cells_of(release, model, stratum), named["sums"], values, scales, of, units=unit)
