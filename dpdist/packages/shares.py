"""For `packages.package`: the parts of the budget at which the published figures' predicted errors are least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.packages.posterior import Posterior
from dpdist.packages.prior import Prior
from dpdist.packages.strategy import Measured, outcome_parts, whole_shares
from dpdist.packages.sums import MarginSums
from dpdist.packages.table_figures import TableFigures, figures

SHARING_ROUNDS = 5
"""Number of times that the budget's parts are recomputed from the errors that they predict."""
LEAVING_ROUNDS = 8
"""The same number where measurements with less than half of an equal part are left out."""
NOISE_OF_NOTHING = 1e18
"""Noise variance, in squared records, under which a sum shows nothing."""
STABLE = 0.02
"""Change of a part, relative to itself, under which no further round is worth its time where sums are many."""
ROUNDS_WITH_ALL = 2
"""Number of these rounds before any is left out."""
LARGEST_ROUNDS, LARGEST_POWER = 24, 32.0
"""Number of times that weights move towards the figures of the largest errors, and the last power of squared errors."""
LEAST_LOWER = 0.001
"""Part by which a largest squared error must be lower to be worth other parts. So no choice hangs on a last digit."""


class Law(NamedTuple):
    """The law of the noise: its variance in squared records by part of the budget, and the exponent of the best parts.

    The exponent is 1/3 if the variance falls with the square of a part (Laplace noise), and 1/2 if it falls with the
    part (Gaussian noise under zCDP).
    """

    variance: Callable[[Fraction], float]
    exponent: float


class Parts(NamedTuple):
    """The measurements' parts of the budget, 0 for what is left out, and in each the parts λ of the outcomes."""

    shares: tuple[Fraction, ...]
    outcomes: tuple[tuple[Fraction, ...], ...]

    @classmethod
    def equal(cls, measurements: int, outcomes: int) -> Parts:
        return cls(whole_shares([1.0] * measurements), (outcome_parts([1.0] * outcomes),) * measurements)

    def change(self, other: Parts) -> float:
        """The largest change from other parts, as a part of itself; infinite between different numbers of measurements."""
        (one, of_one), (before, of_before) = self, other
        if len(one) != len(before):
            return np.inf
        now, then = (np.array([*shares, *chain(*of)], dtype=float) for shares, of in ((one, of_one), (before, of_before)))
        return float(np.abs(now / then - 1.0).max())

    def among_all(self, kept: Ints, every: Sequence[tuple[Fraction, ...]]) -> Parts:
        """These parts at the kept positions, and elsewhere 0 with the outcomes' parts of `every`."""
        of_kept = dict(zip(kept.tolist(), zip(*self, strict=True), strict=True))
        return Parts(*zip(*(of_kept.get(k, (Fraction(0), of_one)) for k, of_one in enumerate(every)), strict=True))


def best_parts(
    posterior: Posterior, target: Wanted, whole: Sequence[Measured], law: Law, leave_out: bool, stable: float = 0.0
) -> Parts:
    """The parts at which no shift between measurements, or between outcomes, lowers the mean squared error.

    `whole` has outcomes with parts of 1, so that their noise is 1/λ² times as large. Let c_k be the sum, over the rows
    of k, of the objective's derivative by their noise variance. If the variance falls with the square of a part, the
    best parts are proportional to c_k^{1/3} of the variance at part 1. The parts λ follow the same rule, under every
    law. Because c_k depends on the parts, they are recomputed some times, or until none changes by more
    than `stable` of itself. With `leave_out`, small parts become 0.
    """
    slopes = posterior.slopes(target.sums, target.weight)
    parts = Parts.equal(len(whole), len(posterior.prior.tails) - 1)
    kept, every = np.arange(len(whole)), parts.outcomes
    for number in range(LEAVING_ROUNDS if leave_out else SHARING_ROUNDS):
        shared = _Shared(whole, kept, parts)
        wanted, by_measurement = shared.wanted(slopes(shared.noise(law)), law)
        large = wanted >= wanted.mean() / 2.0
        if leave_out and number >= ROUNDS_WITH_ALL and not large.all():
            kept, wanted = kept[large], wanted[large]
            by_measurement = [one for one, stays in zip(by_measurement, large, strict=True) if stays]
        parts, last = shared.parts(wanted, by_measurement), parts
        if number >= ROUNDS_WITH_ALL - 1 and parts.change(last) < stable:
            break
    return parts.among_all(kept, every) if leave_out else parts


def parts_of_largest(posterior: Posterior, target: Wanted, whole: Sequence[Measured], law: Law, first: Parts) -> Parts:
    """The parts of the least largest squared error, from the best ones of the mean squared error.

    A figure's weight is its squared error to a power, which grows from round to round. The best parts for these weights
    follow, and the root of their product with the latest ones is taken, because weights react fast. What `first` leaves
    out is not measured.
    """
    kept = np.flatnonzero(list(map(float, first.shares)))
    shares, of_outcomes = zip(*(one for one in zip(*first, strict=True) if one[0]), strict=True)
    parts = Parts(shares, of_outcomes)
    least, best = np.inf, parts
    for power in np.geomspace(1.0, LARGEST_POWER, LARGEST_ROUNDS):
        shared = _Shared(whole, kept, parts)
        noise = shared.noise(law)
        square = target.squares(posterior.under(noise))
        if (largest := float(square.max())) < least * (1.0 - LEAST_LOWER):
            least, best = largest, parts
        slopes = posterior.slopes(target.sums, target.unit * (square / largest) ** (power - 1.0))
        wanted, by_measurement = shared.wanted(slopes(noise), law)
        parts = shared.parts(np.sqrt(wanted * np.array(parts.shares, dtype=float)), by_measurement)
    return best.among_all(kept, first.outcomes)


class _Shared(NamedTuple):
    """Measurements with parts of 1 for every outcome, the positions of the kept ones, and the parts of these."""

    whole: Sequence[Measured]
    kept: Ints
    now: Parts

    @property
    def _times(self) -> int:
        return len(self.whole[0].of_outcome) // len(self.now.outcomes[0])

    @property
    def _tried(self) -> list[Measured]:
        return [self.whole[k] for k in self.kept.tolist()]

    @property
    def _held(self) -> Ints:
        """The kept measurements' rows, in order."""
        rows = [one.rows for one in self.whole]
        return np.flatnonzero(np.repeat(np.isin(np.arange(len(rows)), self.kept), rows))

    @property
    def _scales(self) -> list[Floats]:
        return [
            np.repeat([*one.weighted * [1.0], *self._times * tuple(map(float, of_one))], one.groups)
            for one, of_one in zip(self._tried, self.now.outcomes, strict=True)
        ]

    def noise(self, law: Law) -> Floats:
        """Noise variances of all measurements, (row,)."""
        noise = np.full(sum(one.rows for one in self.whole), NOISE_OF_NOTHING)
        noise[self._held] = noise_of(self._tried, self.now.shares, law) / np.concatenate(self._scales) ** 2
        return noise

    def wanted(self, slopes: Floats, law: Law) -> tuple[Floats, list[Floats]]:
        """What every kept measurement's part is proportional to, and its rows of an objective's slopes by noise."""
        by_measurement = np.split(slopes[self._held], np.cumsum([one.rows for one in self._tried])[:-1])
        pairs = zip(by_measurement, self._scales, strict=True)
        return np.array([max(float((one / scale**2).sum()), 0.0) ** law.exponent for one, scale in pairs]), by_measurement

    def parts(self, wanted: Floats, by_measurement: Sequence[Floats]) -> Parts:
        times, outcomes, first = self._times, len(self.now.outcomes[0]), int(self.whole[0].weighted)
        return Parts(
            whole_shares(wanted.tolist()),
            tuple(
                outcome_parts(np.cbrt(of_sums[first:].reshape(times, -1).sum(axis=0)))
                for of_sums in (one.reshape(first + times * outcomes, -1).sum(axis=1) for one in by_measurement)
            ),
        )


class Wanted(NamedTuple):
    """All published figures as functions of the sums, and what the objective makes of their squared errors.

    The objective is the sum of squared errors by `weight`, (row,), or the largest one by `unit`, (row,). Both are 0
    where no direct standard error is known.
    """

    sums: MarginSums
    weight: Floats
    unit: Floats
    largest: bool
    tables: tuple[TableFigures, ...]

    def squares(self, posterior: Posterior) -> Floats:
        """Squared errors by priority, in direct standard errors, (row,)."""
        return self.unit * posterior.errors(self.sums).file

    def risk(self, posterior: Posterior) -> float:
        """The objective."""
        return float(self.squares(posterior).max()) if self.largest else posterior.risk(self.sums, self.weight)


def wanted_of(prior: Prior) -> Wanted:
    """All tables' counts and means as functions of the sums, and the objective of their errors."""
    weights, units = list[Floats](), list[Floats]()
    priorities = [table.priority for table in prior.workload.tables]
    tables = tuple(figures(prior, table) for table in prior.workload.tables)
    for table, of_table in zip(prior.workload.tables, tables, strict=True):
        for error in of_table.direct:
            square = np.where(np.isfinite(error) & (error > 0), error, np.inf) ** 2
            weights.append(table.priority / (max(np.isfinite(square).sum(), 1) * square))
            units.append(table.priority * len(priorities) / sum(priorities) / square)
    every = float(len(prior.tails)) * sum(priorities)
    sums = MarginSums.stacked([of_table.sums for of_table in tables])
    return Wanted(sums, np.concatenate(weights) / every, np.concatenate(units), prior.workload.largest, tables)


def noise_of(made: Sequence[Measured], shares: Sequence[Fraction], law: Law) -> Floats:
    return np.concatenate([np.full(part.rows, law.variance(share)) for part, share in zip(made, shares, strict=True)])
