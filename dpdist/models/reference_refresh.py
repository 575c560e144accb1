"""An earlier release's shapes brought up to date by noisy histograms of the current file (METHODS §7b).

Bins are orders of the carried points, cell by cell, so that cells of one group share a histogram: it tells how the current
file's distribution lies relative to the carried one (Handcock and Morris 1999). The carried shares q are a Dirichlet prior
worth 1/D records: a share's variance about them is D q, at least that of sampling both files; D is what the noisy shares
differ by beyond their noise (by moments). A noisy share x of noise variance s² then moves q by D q/(D q + s²) of the way,
and points take the values that their orders have under the new shares: ranks, and with them what weight and outcome have in
common, stay. Where nothing but noise is seen the carried shape is all but kept; where much is, the histogram's is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.job import Job
from dpdist.models.clipping import Blur, Cell
from dpdist.models.reference_cells import ReferenceCells, Told
from dpdist.models.reference_histograms import LEAST, grouped
from dpdist.privacy.reference_bins import count_scale_of
from dpdist.privacy.reference_orders import Orders, numbers
from dpdist.records import Codes, Floats, Records


class Moved(NamedTuple):
    """One group's shares before and after (bin,), and their covariance about the current file's own (bin, bin).

    `way` is the mean share of the way to the noisy shares; `drift` the variance of the shape per share, beyond sampling.
    """

    before: Floats
    share: Floats
    covariance: Floats
    way: float
    drift: float


@dataclass(frozen=True)
class Refresh:
    """Counts (group, bin) of the weight, then of every outcome that has a shape, all by orders of `told`."""

    model: ReferenceCells
    told_before: Told
    group: Codes
    """Of every cell, (cell,)."""
    shaped: tuple[int, ...]
    """Outcomes of more than two values."""
    orders: tuple[tuple[Orders, ...], ...]
    """By histogram and cell."""
    scale: Fraction

    @classmethod
    def build(cls, job: Job, model: ReferenceCells, told: Told) -> Refresh:
        """`told` is what an earlier release carried: public, and so are the bins."""
        assert job.reference is not None
        assert job.reference.histogram is not None
        shaped = tuple(k for k, column in enumerate(job.outcome_columns.values()) if not column.two_valued)
        orders = [tuple(Orders.of(cell.weight, 0.0, np.inf) for cell in told[0])] if model.weighted else []
        orders += [tuple(Orders.of(cell.outcome, cell.low, cell.top) for cell in told[k]) for k in shaped]
        epsilon = job.reference.histogram.epsilon
        scale = count_scale_of(len(orders), epsilon, job.budget.adjacency)
        group = grouped(model.codes, model.count, LEAST * len(orders) / float(epsilon))
        return cls(model, told, group, shaped, tuple(orders), scale)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        values = [records.weight] if self.model.weighted else []
        values += [records.outcomes[k] for k in self.shaped]
        cell, groups = self.model.pattern(records.frame), int(self.group.max()) + 1
        found = []
        for orders, column in zip(self.orders, values, strict=True):
            edges = np.array([each.edges for each in orders])
            size = edges.shape[1] + 1
            key = self.group[cell] * np.int64(size) + numbers(edges, cell, column)
            found.append(np.bincount(key, weights=alpha, minlength=groups * size).reshape(groups, size))
        return np.concatenate(found, axis=1)

    def told(self, noisy: Floats) -> Told:
        """Every outcome's cells, from noisy counts."""
        parts = np.split(noisy, len(self.orders), axis=1)
        moved = [self._moved(orders, counts) for orders, counts in zip(self.orders, parts, strict=True)]
        of_weight = moved.pop(0) if self.model.weighted else None
        by_outcome = dict(zip(self.shaped, moved, strict=True))
        return [
            [self._cell(k, cell, of_weight, by_outcome.get(k)) for cell in range(len(cells))]
            for k, cells in enumerate(self.told_before)
        ]

    def _moved(self, orders: tuple[Orders, ...], counts: Floats) -> list[Moved]:
        """Of every group, for one histogram."""
        variance = 2.0 * float(self.scale) ** 2
        found = []
        for number, row in enumerate(counts):
            own = self.group == number
            n = self.model.count[own]
            before = np.average([each.share for each, mine in zip(orders, own, strict=True) if mine], axis=0, weights=n)
            standing = sum(cell.records for cell, mine in zip(self.told_before[0], own, strict=True) if mine)
            found.append(towards(before, row, float(n.sum()), float(standing), variance))
        return found

    def _own(self, orders: tuple[Orders, ...], cell: int, moved: list[Moved]) -> tuple[Floats, Floats]:
        """A cell's shares and their covariance: its carried shares change as its group's do."""
        found, own = moved[self.group[cell]], orders[cell].share
        rate = np.divide(own, found.before, out=np.ones_like(own), where=found.before > 0)
        share = rate * found.share
        return share / share.sum(), rate[:, None] * found.covariance * rate

    def _cell(self, outcome: int, number: int, of_weight: list[Moved] | None, of_outcome: list[Moved] | None) -> Cell:
        cell = self.told_before[outcome][number]
        values, parts = [cell.weight, cell.outcome], [(np.ones(1), np.zeros((1, 1)))] * 2
        found = [of_weight, of_outcome]
        place = [0, self.model.weighted + self.shaped.index(outcome) if of_outcome is not None else 0]
        for k, moved in enumerate(found):
            if moved is not None:
                orders = self.orders[place[k]]
                share, covariance = self._own(orders, number, moved)
                values[k] = orders[number].relocated(values[k], share)
                parts[k] = (orders[number].places, covariance)
        n = float(self.model.count[self.group == self.group[number]].sum())
        last = next(moved[self.group[number]] for moved in reversed(found) if moved is not None)
        records = 1.0 / (last.way**2 / n + (1.0 - last.way) ** 2 * (last.drift + 1.0 / cell.records))
        blur = Blur(parts[0][0], parts[0][1], parts[1][0], parts[1][1])
        return replace(cell, weight=values[0], outcome=values[1], records=max(1, round(records)), blur=blur)


def towards(before: Floats, noisy: Floats, n: float, standing: float, variance: float) -> Moved:
    """Shares between the carried ones, which stand on `standing` records, and counts of n under noise of `variance`."""
    told, noise = noisy / n, variance / n**2
    least = 1.0 / n + 1.0 / standing
    excess = float(((told - before) ** 2).sum()) - len(told) * noise
    per_share = max(least, excess / max(1.0 - float((before**2).sum()), 1.0 / n))
    prior = per_share * np.maximum(before, 1.0 / standing)
    rate = prior / (prior + noise)
    share = np.maximum(before + rate * (told - before), 0.0)
    share /= share.sum()
    error, across = rate * noise, np.outer(share, rate * noise)
    covariance = np.diag(error) - across - across.T + error.sum() * np.outer(share, share)  # of shares that sum to 1
    return Moved(before, share, covariance, float(before @ rate), per_share - least)
