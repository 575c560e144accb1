"""For `reference_tables.query`: noisy histograms of groups of cells, in place of a reference or to update one.

Groups of cells follow from public sizes. Noisy counts are smoothed and turned into points, or update the points of an
earlier release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Column, Job
from dpdist.mechanisms.reference_tables.cells import CellsByOutcome
from dpdist.mechanisms.reference_tables.points import BaseCells
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import histogram_counts, law_of
from dpdist.privacy.queries import NoisyQuery, record_epsilon
from dpdist.reference.clipping import AT_THE_BOUND, Blur, Cell
from dpdist.reference.histogram_cells import Ends, Hidden, HistogramCell
from dpdist.reference.histograms import (
    DECADES,
    FEWEST_POOLED,
    HISTOGRAM_POINTS,
    PRECISE,
    Bins,
    evenly_placed,
    explained,
    fall,
    grouped,
    holds_two_values,
    in_common,
    paired_levels,
    smoothed,
    sure_ends,
)
from dpdist.reference.quantile_bins import Moved, QuantileLevels, nearest, numbers, towards, transported


class SizedCells(BaseCells, Protocol):
    """Base cells with public bounds of weights."""

    @property
    def public_weights(self) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Histograms:
    """Histograms of groups of cells; the statistics are counts (group, bin), first of the weight, then of each outcome."""

    model: SizedCells
    group: Codes
    """Group of every cell, (cell,)."""
    bins: tuple[Bins, ...]
    query: NoisyQuery
    """The query of all histograms' counts, with their loss."""
    in_common: Floats
    """Factor on the square of an error that cells share, (group,)."""
    typical: Floats
    """Typical weight of a cell, by which its weights are divided, (cell,); 1 for weights as they are."""
    typical_error: Floats
    """Standard deviation of the logarithm of `typical`, (cell,)."""

    @classmethod
    def build(cls, job: Job, model: SizedCells, amount: Fraction) -> Histograms:
        """The histograms of weights as they are. Their counts may lose this ε of a record, or this ρ."""
        measured = job.survey.measured_weight
        weight = job.columns[measured].bounds if measured is not None else None
        bins = [] if weight is None else [Bins.within(*weight, atoms=(False, True))]
        bins += [Bins.within(*(column.bounds or (0.0, 1.0)), _whole(column)) for column in job.outcome_columns.values()]
        query = histogram_counts(len(bins), amount, job.budget.adjacency, law_of(job))
        group = grouped(model.codes, model.count, FEWEST_POOLED * query.scale_as_laplace)
        common = in_common(model.codes, model.count, group, _margins(job))
        return cls(model, group, tuple(bins), query, common, np.ones(len(group)), np.zeros(len(group)))

    def relative_to(self, typical: Floats, error: Floats) -> Histograms:
        """The histograms of weights relative to the typical weights of cells, (cell,), with errors of their logarithms."""
        low, high = self.bins[0].left[0], self.bins[0].right[-1]
        decades = DECADES + float(np.log10(typical.max() / typical.min()))
        weight = Bins.within(low / typical.max(), high / typical.min(), atoms=(False, True), decades=decades)
        return replace(self, bins=(weight, *self.bins[1:]), typical=typical, typical_error=error)

    def recalled(self, typical: Floats, error: Floats) -> Histograms:
        """The histograms of a release. No typical weights were learned for it: they are 1, without errors."""
        return self

    @property
    def shaped(self) -> range:
        """Numbers of the outcomes that have a histogram: all of them."""
        return range(len(self.model.outcomes))

    def binned(self, cell: Codes, columns: Sequence[Floats]) -> Iterator[tuple[int, Ints]]:
        """For every histogram its number of bins, and the bin of every value of its column, (record,)."""
        weighted = self.model.weighted
        for number, (bins, column) in enumerate(zip(self.bins, columns, strict=True)):
            yield len(bins.left), self._of_weights(cell, column) if weighted and number == 0 else bins.number(column)

    @cached_property
    def counted(self) -> Ints:
        """Marks the cells whose weights are in histograms, (cell,); all cells if too few have a precise typical weight.

        Imprecise relative weights would make a histogram wider than the weights of any cell.
        """
        precise = self.typical_error <= PRECISE
        enough = self.model.count[precise].sum() >= min(
            FEWEST_POOLED * self.query.scale_as_laplace, self.model.count.sum() / 2.0
        )
        of_group = np.bincount(self.group, weights=self.model.count * precise)
        return np.asarray(precise | (not enough) | (of_group == 0.0)[self.group])

    def _of_weights(self, cell: Codes, weight: Floats) -> Ints:
        """The bin of every relative weight, (record,), and −1 for a record that is not counted.

        The last bin is of weights at or beyond the public bound.
        """
        bins, bound = self.bins[0], self.model.public_weights[1]
        relative = np.minimum(weight / self.typical[cell], np.nextafter(bins.right[-1], 0.0))
        number = bins.number(np.where(weight >= bound, bins.right[-1], relative))
        return np.asarray(np.where(self.counted[cell], number, -1))

    def of_groups(self, noisy: Floats) -> list[list[HistogramCell]]:
        """A cell of every group for each outcome, with relative weights, from noisy counts."""
        size = np.bincount(self.group, weights=self.model.count)
        edges = np.cumsum([len(bins.left) for bins in self.bins])[:-1]
        noise = self.query.variance * len(size)
        columns = np.split(noisy, edges, axis=1)
        two = [holds_two_values(counts.sum(axis=0), noise, bins) for counts, bins in zip(columns, self.bins, strict=True)]
        if any(two):
            kept = [counts[:, [0, -1]] if ends else counts for counts, ends in zip(columns, two, strict=True)]
            bins = [rows.ends if ends else rows for rows, ends in zip(self.bins, two, strict=True)]
            return replace(self, bins=tuple(bins)).of_groups(np.concatenate(kept, axis=1))
        rows = enumerate(zip(noisy, size, strict=True))
        counted = np.bincount(self.group, weights=self.model.count * self.counted)
        return [self._of_group(np.split(row, edges), n, float(counted[number]), number) for number, (row, n) in rows]

    def summarise(self, noisy: Floats) -> CellsByOutcome:
        """The cells of each outcome, from noisy counts.

        The cells of a group are shrunk towards each other. A cell that is alone in its group is not shrunk.
        """
        groups = self.of_groups(noisy)
        pairs = np.column_stack([self.group, self.typical])
        scaled = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        within = np.where(np.bincount(scaled)[scaled] > 1, scaled, -1).tolist()
        cells = list(zip(self.group, self.typical, self.typical_error, scaled.tolist(), within, strict=True))
        bounds = self.model.public_weights
        return [
            [
                replace(groups[group][k].of_size(typical, bounds), scale_error=error, group=number, shrunk_within=shrunk)
                for group, typical, error, number, shrunk in cells
            ]
            for k in range(len(self.model.outcomes))
        ]

    def _of_group(self, counts: list[Floats], n: float, counted: float, group: int) -> list[HistogramCell]:
        """One cell for each outcome, with relative weights, from the noisy histograms of n records of a group.

        `counted` of these records have their weight in a histogram.
        """
        sizes = [counted, *[n] * (len(counts) - 1)] if self.model.weighted else [n] * len(counts)
        variance = self.query.variance
        fitted = [smoothed(row, size, variance, bins) for row, size, bins in zip(counts, sizes, self.bins, strict=True)]
        errors = [covariance for _, covariance in fitted]
        spread = [
            bins.value_at(*evenly_placed(share, order))
            for bins, (share, _), order in zip(self.bins, fitted, paired_levels(len(self.bins)), strict=True)
        ]
        places = [bins.value_at(np.arange(len(bins.left)), np.full(len(bins.left), 0.5)) for bins in self.bins]
        if not self.model.weighted:
            spread, places = [np.ones(HISTOGRAM_POINTS), *spread], [np.ones(1), *places]
            errors = [np.zeros((1, 1)), *errors]
        hidden = self._hidden(counts, n, fitted)
        at_bound = self._at_bound(counts[0], float(fitted[0][0][-1]), counted, variance) if self.model.weighted else 0.0
        return [
            HistogramCell(
                weight=spread[0],
                outcome=spread[1 + k],
                low=low,
                top=top,
                scaled=Cell.of(spread[0], spread[1 + k], (low, top)).scaled,
                records=int(n),
                weighted=self.model.weighted,
                blur=Blur(places[0], errors[0], places[1 + k], errors[1 + k]),
                largest_weight=self.model.public_weights[1] if self.model.weighted else np.inf,
                hidden=hidden[k],
                in_common=float(self.in_common[group]),
                at_bound=at_bound,
            )
            for k, (low, top) in enumerate(self.model.bounds)
        ]

    @staticmethod
    def _at_bound(noisy: Floats, share: float, n: float, variance: float) -> float:
        """The share of weights at their public bound, from noisy counts and the fitted share of the last bin."""
        noise = explained(np.zeros(len(noisy)), 0.0, variance)[-1]
        if noisy[-1] > noise:
            return share
        return 0.0 if noise <= AT_THE_BOUND * n else np.nan

    def _hidden(self, counts: list[Floats], n: float, fitted: Sequence[tuple[Floats, Floats]]) -> list[Hidden]:
        """For each outcome, the records that the noise of a group's histograms may hide, with the ends for the weight."""
        variance, share = self.query.variance, 2.0**0.5 * self.query.scale_as_laplace / n
        ends = [
            _ends(sure_ends(row, variance), fit, bins) for row, fit, bins in zip(counts, fitted, self.bins, strict=True)
        ]
        weight = ends[0][1]._replace(last=float(self.bins[0].right[-1])) if self.model.weighted else Ends(1.0, 1.0)
        outcomes = zip(ends[-len(self.model.bounds) :], self.model.bounds, strict=True)
        return [
            Hidden(share, weight, lower._replace(last=-low), upper._replace(last=top))
            for (lower, upper), (low, top) in outcomes
        ]


def _ends(sure: tuple[int, int], fit: tuple[Floats, Floats], bins: Bins) -> tuple[Ends, Ends]:
    """The lower and the upper tail beyond the sure bins, without their last values; signs of the lower one are turned."""
    first, last = sure
    lower = Ends(-float(bins.left[first]), np.nan, fall(*fit, bins, first, -1))
    return lower, Ends(float(bins.right[last]), np.nan, fall(*fit, bins, last, 1))


def _margins(job: Job) -> list[tuple[int, ...]]:
    """For each published table or margin, the positions of its columns among the cells' columns, without columns of
    strata.
    """
    columns = [name for name in job.cell_columns if name not in job.strata]
    margins = list[tuple[int, ...]]()
    for table in job.tables:
        by = [columns.index(name) for name in table.by if name in columns]
        sizes = range(len(by) + 1) if table.margins else (len(by),)
        within = [columns.index(name) for name in table.universe if name in columns]
        margins += [tuple(dict.fromkeys((*margin, *within))) for size in sizes for margin in combinations(by, size)]
    return margins


def _whole(column: Column) -> bool:
    """True if the job states that the outcome is a whole number."""
    return column.whole or (column.codes is not None and all(float(code).is_integer() for code in column.codes.values()))


@dataclass(frozen=True)
class Refresh:
    """Histograms in quantile bins of an earlier release's points, `carried`, by group of cells.

    The statistics are counts (group, bin): of the weight, then of every outcome with more than two values.
    """

    model: ReferenceCells
    carried: CellsByOutcome
    group: Codes
    """The group of every cell, (cell,)."""
    shaped: tuple[int, ...]
    """Numbers of the outcomes with more than two values."""
    orders: tuple[tuple[QuantileLevels, ...], ...]
    """Quantile bins, by histogram and cell."""
    query: NoisyQuery
    """The query of all histograms' counts, with their loss."""

    @classmethod
    def build(cls, job: Job, model: ReferenceCells, earlier: CellsByOutcome) -> Refresh:
        """Builds the bins from the cells of an earlier release. That release is public, and so are the bins."""
        assert job.reference is not None
        assert job.reference.paid is not None
        shaped = tuple(k for k, column in enumerate(job.outcome_columns.values()) if not column.two_valued)
        orders = [tuple(QuantileLevels.of(cell.weight, 0.0, np.inf) for cell in earlier[0])] if model.weighted else []
        orders += [tuple(QuantileLevels.of(cell.outcome, cell.low, cell.top) for cell in earlier[k]) for k in shaped]
        epsilon = record_epsilon(job, job.reference.paid.epsilon)
        query = histogram_counts(len(orders), epsilon, job.budget.adjacency)
        group = grouped(model.codes, model.count, FEWEST_POOLED * query.scale_as_laplace)
        return cls(model, earlier, group, shaped, tuple(orders), query)

    def binned(self, cell: Codes, columns: Sequence[Floats]) -> Iterator[tuple[int, Ints]]:
        """For every histogram its number of bins, and the bin of every value of its column in its cell, (record,)."""
        for levels, column in zip(self.orders, columns, strict=True):
            edges = np.array([of_cell.edges for of_cell in levels])
            yield edges.shape[1] + 1, numbers(edges, cell, column)

    def summarise(self, noisy: Floats) -> CellsByOutcome:
        """The updated cells of each outcome, from noisy counts."""
        parts = np.split(noisy, len(self.orders), axis=1)
        moved = [
            [self._moved(orders, k, row) for k, row in enumerate(counts)]
            for orders, counts in zip(self.orders, parts, strict=True)
        ]
        of_weight = moved.pop(0) if self.model.weighted else None
        by_outcome = dict(zip(self.shaped, moved, strict=True))
        return [
            [self._cell(k, number, cell, of_weight, by_outcome.get(k)) for number, cell in enumerate(cells)]
            for k, cells in enumerate(self.carried)
        ]

    def _moved(self, levels: Sequence[QuantileLevels], group: int, counts: Floats) -> Moved:
        """The changes of a group's points by one of its histograms."""
        cells = np.flatnonzero(self.group == group)
        size = self.model.count[cells]
        n, variance = float(size.sum()), self.query.variance

        def share(shift: float, stretch: float) -> Floats:
            shares = [levels[cell].under(shift, stretch).share for cell in cells.tolist()]
            return np.asarray(np.average(shares, axis=0, weights=size))

        likely = variance / n**2 + np.maximum(share(0.0, 0.0), 1.0 / n) / n
        nearby = nearest(lambda *tried: float(((counts / n - share(*tried)) ** 2 / likely).sum()))
        return Moved(*nearby, towards(share(*nearby), counts, n, variance))

    def _cell(
        self, outcome: int, number: int, cell: Cell, of_weight: list[Moved] | None, of_outcome: list[Moved] | None
    ) -> Cell:
        """A cell of one outcome with updated weights, outcomes and effective number of records."""
        weight, values, group = cell.weight, cell.outcome, self.group[number]
        records = float(cell.records)
        if of_weight is not None:
            weight = transported(self.orders[0][number], weight, of_weight[group])
            records = of_weight[group].shares.records(cell.records)
        if of_outcome is not None:
            values = transported(
                self.orders[self.model.weighted + self.shaped.index(outcome)][number], values, of_outcome[group]
            )
            records = of_outcome[group].shares.records(cell.records)
        return replace(cell, weight=weight, outcome=values, records=int(records))
