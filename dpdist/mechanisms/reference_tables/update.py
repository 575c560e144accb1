"""Updates an earlier release's shapes with noisy histograms of the current file (METHODS §7b).

Bins are quantiles of the earlier release's points, cell by cell, so that the cells of a group share a histogram. The
histogram shows the current file's distribution relative to the earlier one (Handcock and Morris 1999). First, one scale
and one spread are fitted to a group's noisy shares, so that tails beyond the outermost bins move with the rest.

Next, the shares of the points after this move serve as the centre of a Dirichlet prior of the bins' shares. Let q be a
bin's share in it, and x the noisy share of n records, with noise of variance s². The prior variance of a share is A q. A
is estimated by moments: the variation of the x beyond noise and sampling. The share q is moved towards x by A q/(A q +
q/n + s²) of the distance. Points take the values of their quantile levels under the new shares. Their ranks stay, and so
does the dependence between weight and outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats
from dpdist.job import Job
from dpdist.mechanisms.reference_tables.clipped_cells import Told
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import count_scale_of, histogram_counts
from dpdist.privacy.queries import NoisyQuery, record_epsilon
from dpdist.reference.clipping import Cell
from dpdist.reference.histograms import FEWEST_POOLED, grouped
from dpdist.reference.quantile_bins import Moved, QuantileLevels, nearest, numbers, towards, transported


@dataclass(frozen=True)
class Refresh:
    """Histograms in quantile bins of an earlier release's points, `carried`, by group of cells.

    The statistics are counts (group, bin): of the weight, then of every outcome with more than two values.
    """

    model: ReferenceCells
    carried: Told
    group: Codes
    """The group of every cell, (cell,)."""
    shaped: tuple[int, ...]
    """Numbers of the outcomes with more than two values."""
    orders: tuple[tuple[QuantileLevels, ...], ...]
    """Quantile bins, by histogram and cell."""
    scale: Fraction

    @classmethod
    def build(cls, job: Job, model: ReferenceCells, earlier: Told) -> Refresh:
        """Builds the bins from the cells of an earlier release. That release is public, and so are the bins."""
        assert job.reference is not None
        assert job.reference.paid is not None
        shaped = tuple(k for k, column in enumerate(job.outcome_columns.values()) if not column.two_valued)
        orders = [tuple(QuantileLevels.of(cell.weight, 0.0, np.inf) for cell in earlier[0])] if model.weighted else []
        orders += [tuple(QuantileLevels.of(cell.outcome, cell.low, cell.top) for cell in earlier[k]) for k in shaped]
        epsilon = record_epsilon(job, job.reference.paid.epsilon)
        scale = count_scale_of(len(orders), epsilon, job.budget.adjacency)
        group = grouped(model.codes, model.count, FEWEST_POOLED * float(scale))
        return cls(model, earlier, group, shaped, tuple(orders), scale)

    @property
    def query(self) -> NoisyQuery:
        """What the counts of all histograms lose under their noise."""
        return histogram_counts(len(self.orders), self.scale)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        values = [records.weight] if self.model.weighted else []
        values += [records.outcomes[:, k] for k in self.shaped]
        cell, groups = self.model.pattern(records.frame), int(self.group.max()) + 1
        found = []
        for orders, column in zip(self.orders, values, strict=True):
            edges = np.array([each.edges for each in orders])
            size = edges.shape[1] + 1
            key = self.group[cell] * np.int64(size) + numbers(edges, cell, column)
            found.append(np.bincount(key, weights=alpha, minlength=groups * size).reshape(groups, size))
        return np.concatenate(found, axis=1)

    def summarise(self, noisy: Floats) -> Told:
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
        """The changes of one group's points, from one histogram."""
        cells = np.flatnonzero(self.group == group)
        size = self.model.count[cells]
        n, variance = float(size.sum()), 2.0 * float(self.scale) ** 2

        def share(shift: float, stretch: float) -> Floats:
            found = [levels[cell].under(shift, stretch).share for cell in cells.tolist()]
            return np.asarray(np.average(found, axis=0, weights=size))

        known = variance / n**2 + np.maximum(share(0.0, 0.0), 1.0 / n) / n
        at = nearest(lambda *tried: float(((counts / n - share(*tried)) ** 2 / known).sum()))
        return Moved(*at, towards(share(*at), counts, n, variance))

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
