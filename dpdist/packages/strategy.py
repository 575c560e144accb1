"""For `packages.package`: chooses the measurements, sums over groups of base cells, and their parts of the budget.

A record is in one group of every aggregation. Its base cell has (a, v) with a, v ≥ 0 and a + v = 1, and q of every
outcome with |q| ≤ v. It adds f a, and λ(g q + h v) of every outcome, to the group's sums, with f ≤ 1, g + |h| ≤ 1 and
parts λ that sum to 1. f is the cell's weight cap over the group's extent, 1 at most; g and h are the half-width, and the
distance of the cell's centre from the group's, in the same way. An extent below the largest limit has less noise for all
cells, and shows less of the cells beyond it. So every measurement is a linear function of the base cells' sums. With
h = 0, outcomes are measured about the cells' own centres. The noise is smaller, but shifts of weight between cells with
unlike outcomes are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import cycle
from typing import NamedTuple, Protocol

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.packages.workload import Workload

FACTOR_STEPS = 2**10
"""Factors are whole multiples of 1/FACTOR_STEPS, so that sums of whole numbers stay whole."""
EDGE = 1e-12
MOST_BASE_CELLS = 1_000
"""Number of base cells above which measuring all of them is not tried unless it is named, or has the fewest sums."""
MOST_SUMS_TRIED = 6_000
"""Number of sums above which no set above the tables is added: that of the sums that can be held."""
SHARE_PARTS = 2**12
"""Parts of the budget are whole multiples of 1/SHARE_PARTS."""
EXTENTS = 2.0 ** (-np.arange(21) / 4.0)
"""Extents that are tried, over a group's largest limit."""
CLEARLY = 1e-9
"""Relative gain by which a shorter extent is better: without a gain the longer one is taken, on every processor."""


class Aggregation(NamedTuple):
    """Groups of base cells: a name, and a matrix of 0 and 1, (group, cell), in which every cell has one group."""

    name: str
    matrix: scipy.sparse.csr_array


class Measured(NamedTuple):
    """An aggregation with whole factors f, and λg and λh of every outcome, (group, cell) each, in 1/`FACTOR_STEPS`.

    If weights are public, there is no sum of f a: `of_weight` has no group.
    If numbers of records are secret, every outcome has two sums: (f v + g q + h v)/2 of all, then (f v − g q − h v)/2.
    """

    name: str
    of_weight: scipy.sparse.csr_array
    of_outcome: tuple[scipy.sparse.csr_array, ...]
    of_level: tuple[scipy.sparse.csr_array, ...]
    extents: tuple[Floats, ...] = ()
    """Limits from which on a group's factors are whole, of weights and then of every outcome, (group,) each."""

    def exact(self, sums: Floats) -> Floats:
        """The exact measurement from sums of base cells, (cell, 2 + outcomes): by group, weights first; whole."""
        pairs = zip(self.of_level, self.of_outcome, cycle(sums.T[2:]), strict=False)
        return np.concatenate([self.of_weight @ sums[:, 0], *(level @ sums[:, 1] + g @ q for level, g, q in pairs)])

    def saturated(self, sums: Floats, most: int) -> Floats:
        """The exact measurement of a secret number of records. Sums beyond `most` are set to it: none is rounded."""
        whole = (factors.astype(np.int64) for factors in (self.of_weight, *self.of_outcome, *self.of_level))
        of_weight, *others = map(scipy.sparse.csr_array, whole)
        number = len(self.of_outcome)
        exact = Measured(self.name, of_weight, tuple(others[:number]), tuple(others[number:])).exact(sums.astype(np.int64))
        return np.clip(exact, -most, most).astype(np.float64)

    def moves(self, outcomes: int) -> tuple[Floats, Floats]:
        """By how much a record of a base cell with a = 1, and with v = 1, moves all sums in L1 at most, (cell,) each.

        Sums are linear in every q, and convex in L1: each outcome moves its sums most at q = v or q = −v.
        """
        alone, pairs = np.zeros(self.of_weight.shape[1]), list(zip(self.of_level, self.of_outcome, strict=True))
        for k in range(outcomes):
            ends = ([abs(level + sign * g).sum(axis=0) for level, g in pairs[k::outcomes]] for sign in (1.0, -1.0))
            alone = alone + np.max([np.sum(end, axis=0) for end in ends], axis=0)
        return np.asarray(abs(self.of_weight).sum(axis=0)), alone

    @property
    def groups(self) -> int:
        """Number of groups of base cells."""
        return int(self.of_outcome[0].shape[0])

    @property
    def weighted(self) -> bool:
        """Whether sums of weights are measured."""
        return bool(self.of_weight.shape[0])

    @property
    def rows(self) -> int:
        """Number of measured sums."""
        return (self.weighted + len(self.of_outcome)) * self.groups


class Signal(NamedTuple):
    """What measured sums are about: variances a priori of the base cells' sums, and of noise at equal parts of the budget.

    The sums are a, and every outcome as it is measured, (cell, 1 + outcomes). `noise` is that of a group's sum of f a.
    """

    variance: Floats
    noise: float

    @property
    def of_sums(self) -> list[tuple[Floats, float]]:
        """Variances, (cell,), and the noise's, of a and of every outcome: outcomes have equal parts."""
        of_outcomes = self.noise * (self.variance.shape[1] - 1) ** 2
        return [(of_one, of_outcomes if k else self.noise) for k, of_one in enumerate(self.variance.T)]


class Strategy(Protocol):
    """A way to measure a package."""

    @property
    def name(self) -> str: ...

    @property
    def least_gain(self) -> float:
        """The part by which the objective must be less than those of other strategies, for the strategy to be chosen.

        If it is above 0, measurements with small parts of the budget are left out.
        """
        ...

    def suits(self, workload: Workload) -> bool:
        """Whether the strategy is tried without being named."""
        ...

    def aggregations(self, workload: Workload) -> tuple[Aggregation, ...]:
        """The groups that are measured."""
        ...


class BaseCells(NamedTuple):
    """Measures every occurring base cell, and all cells together; tables are sums."""

    name: str = "base_cells"
    least_gain: float = 0.0

    def suits(self, workload: Workload) -> bool:
        # Where tables have more groups than there are base cells, each has many sums, and a small part of the budget.
        return len(workload) <= MOST_BASE_CELLS or len(workload) < sum(map(workload.number_of_groups, workload.measured))

    def aggregations(self, workload: Workload) -> tuple[Aggregation, ...]:
        every = scipy.sparse.csr_array(scipy.sparse.eye_array(len(workload), format="csr"))
        return with_all_cells((Aggregation("base cells", every),), workload)


class PerTable(NamedTuple):
    """Measures the cells of every maximal table, and all cells together, in parts of the budget."""

    name: str = "per_table"
    least_gain: float = 0.0

    def suits(self, workload: Workload) -> bool:
        return True

    def aggregations(self, workload: Workload) -> tuple[Aggregation, ...]:
        tables = tuple(Aggregation(workload.named(by), workload.summing(by)) for by in workload.measured)
        return with_all_cells(tables, workload)


class TopDown(NamedTuple):
    """Measures what pays of two: what `PerTable` does, and sets above, as levels of hierarchies, and margins.

    Its parts of the budget fit the prior closely, and gains of some percent are not seen in real files (docs/methods.md).
    So it is chosen where predicted errors are a twentieth lower.
    """

    name: str = "top_down"
    least_gain: float = 0.1

    def suits(self, workload: Workload) -> bool:
        return bool(workload.nested)

    def aggregations(self, workload: Workload) -> tuple[Aggregation, ...]:
        taken, most = list(PerTable().aggregations(workload)), MOST_SUMS_TRIED // (1 + workload.outcomes)
        for by in filter(None, workload.above):
            one = Aggregation(workload.named(by), workload.summing(by))
            if sum(other.matrix.shape[0] for other in (*taken, one)) <= most:
                taken.append(one)
        return tuple(taken)


def with_all_cells(aggregations: tuple[Aggregation, ...], workload: Workload) -> tuple[Aggregation, ...]:
    """These aggregations, and the sum of all cells, unless one of them has it.

    A sum of many noisy sums has the noise of all of them. Without a separate measurement, this noise would look like a
    drift of the whole file.
    """
    if any(aggregation.matrix.shape[0] == 1 for aggregation in aggregations):
        return aggregations
    return (*aggregations, Aggregation(workload.named(()), workload.summing(())))


STRATEGIES: tuple[Strategy, ...] = (BaseCells(), PerTable(), TopDown())


def measured(
    aggregation: Aggregation,
    cap: Floats,
    centre: Floats,
    half: Floats,
    count: Floats,
    group_centred: bool,
    parts: Sequence[float],
    secret: bool = False,
    signal: Signal | None = None,
    weighted: bool = True,
) -> Measured:
    """The factors of an aggregation from the base cells' limits: U, (cell,), and μ and R, (cell, outcome) each.

    With `group_centred`, outcomes are measured about one centre for each group, the mean of its cells' centres by U and
    `count`. `parts` are the λ of the outcomes. With `secret`, numbers of records are secret. Without a `signal`, groups
    have their largest limit as extent. Only weights that are not public are measured: `weighted`.
    """
    matrix, extents = aggregation.matrix, [partial(_largest, aggregation.matrix)] * (1 + len(parts))
    if signal is not None:
        extents = [partial(_extent, matrix, variance=of_one, noise=noise) for of_one, noise in signal.of_sums]
    extent = extents[0](cap)
    of_weight = _factors(matrix, cap, 1.0, extent) if weighted else scipy.sparse.csr_array((0, matrix.shape[1]))
    if secret:
        halves = [part / 2.0 for part in parts]
        half_of = measured(aggregation, cap, centre, half, count, group_centred, halves, signal=signal)
        weights = [_factors(matrix, cap, part, extent) for part in halves]
        signed = [
            [scipy.sparse.csr_array(of + sign * level) for of, level in zip(weights, half_of.of_level, strict=True)]
            for sign in (1.0, -1.0)
        ]
        below = tuple(-outcome for outcome in half_of.of_outcome)
        of_outcome, of_level = (*half_of.of_outcome, *below), (*signed[0], *signed[1])
        return Measured(aggregation.name, of_weight, of_outcome, of_level, half_of.extents)
    triples = [
        _of_outcome(matrix, cap, middle, width, count, group_centred, part, extent_of)
        for middle, width, part, extent_of in zip(centre.T, half.T, parts, extents[1:], strict=True)
    ]
    outcomes, levels, of_outcomes = zip(*triples, strict=True)
    return Measured(aggregation.name, of_weight, outcomes, levels, (extent, *of_outcomes))


def _of_outcome(
    matrix: scipy.sparse.csr_array,
    cap: Floats,
    centre: Floats,
    half: Floats,
    count: Floats,
    group_centred: bool,
    part: float,
    extent_of: Callable[[Floats], Floats],
) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array, Floats]:
    """λg and λh of one outcome, whose sizes add up to at most λ and are rounded towards 0, and the groups' extents."""
    if not group_centred:
        extent = extent_of(cap * half)
        return _factors(matrix, cap * half, part, extent), scipy.sparse.csr_array(matrix.shape), extent
    offset = centre - matrix.T @ middles(matrix, cap, centre, count)
    size = cap * (half + np.abs(offset))
    extent = extent_of(size)
    largest = np.maximum(matrix.T @ extent, size)
    factors = (np.trunc(FACTOR_STEPS * part * cap * factor / largest * (1.0 - EDGE)) for factor in (half, offset))
    outcome, level = (scipy.sparse.csr_array(matrix @ scipy.sparse.diags_array(factor)) for factor in factors)
    return outcome, level, extent


def middles(matrix: scipy.sparse.csr_array, cap: Floats, centre: Floats, count: Floats) -> Floats:
    """The common centre of every group, (group,): the mean of its cells' centres by U and `count`."""
    held = cap * np.maximum(count, 1e-6)
    return np.asarray((matrix @ (held * centre)) / (matrix @ held))


def _factors(matrix: scipy.sparse.csr_array, limit: Floats, part: float, extent: Floats) -> scipy.sparse.csr_array:
    scaled = scipy.sparse.csr_array(matrix @ scipy.sparse.diags_array(limit))
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(scaled.indptr))
    scaled.data = np.floor(FACTOR_STEPS * part * np.minimum(scaled.data / extent[row], 1.0))
    return scaled


def _extent(matrix: scipy.sparse.csr_array, limit: Floats, variance: Floats, noise: float) -> Floats:
    """The limit of every group from which on factors are 1, (group,): its noisy sum shows most of the exact total.

    Base cells' sums have a `variance` a priori, (cell,). If few cells have large limits, factors over the largest one
    are small, and noise is large beside them. Under noise alone, all factors would be 1.
    """
    largest, group = _largest(matrix, limit), scipy.sparse.csc_array(matrix).indices
    best, most = largest, np.zeros(len(largest))
    for part in EXTENTS:
        factor = np.minimum(limit / (part * largest)[group], 1.0)
        of_both = np.bincount(group, limit * factor * variance, len(largest))
        of_sum = np.bincount(group, factor**2 * variance, len(largest)) + noise
        squared = of_both**2 / of_sum
        clearly = squared > (1.0 + CLEARLY) * most
        best, most = np.where(clearly, part * largest, best), np.where(clearly, squared, most)
    return np.asarray(best)


def _largest(matrix: scipy.sparse.csr_array, limit: Floats) -> Floats:
    """The largest limit of every group, (group,)."""
    return np.asarray((matrix @ scipy.sparse.diags_array(limit)).max(axis=1).todense()).reshape(-1)


def least_share(number: int, steps: int = SHARE_PARTS) -> Fraction:
    """The least part of the budget of one of `number` measurements: about a sixteenth of an equal part.

    So the largest scale of noise is known before any measurement is chosen.
    """
    return Fraction(max(1, steps // (16 * number)), steps)


def whole_shares(shares: Sequence[float], steps: int = SHARE_PARTS) -> tuple[Fraction, ...]:
    """Parts of the budget that sum to 1, as multiples of 1/steps; none is below `least_share`.

    Parts are equal if `shares` say nothing: if none is above 0, or one is not finite. Raises `ValueError` if the least
    parts exceed the budget.
    """
    if len(shares) > steps // 2:
        raise ValueError(f"{len(shares):,} measured tables: at most {steps // 2:,} can share a budget")
    given = [max(share, 0.0) for share in shares]
    whole_sum = sum(given)
    wanted = np.asarray(given) / whole_sum if 0.0 < whole_sum < np.inf else np.full(len(given), 1.0 / len(given))
    least = int(least_share(len(shares), steps) * steps)
    whole = least + np.floor(wanted * (steps - least * len(shares))).astype(int)
    whole[int(np.argmax(wanted))] += steps - int(whole.sum())
    return tuple(Fraction(int(part), steps) for part in whole)


def outcome_parts(wanted: Sequence[float]) -> tuple[Fraction, ...]:
    """Parts λ of the outcomes in a measurement, as multiples of 1/`FACTOR_STEPS`, that sum to 1."""
    return whole_shares(wanted, FACTOR_STEPS)
