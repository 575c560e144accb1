"""For `table_package`: plans a package before data, from reference and budget: limits, measurements, predicted errors.

All of it is a function of the workload, the reference and the law of the noise. No record of the current file enters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from dpdist.core.progress import steps, within
from dpdist.core.records import Floats
from dpdist.core.this_process import available_memory
from dpdist.packages.direct_errors import moments, of_means, predicted_at
from dpdist.packages.large import MOST_EXACT, posterior_of, refuse_beyond_memory
from dpdist.packages.levels import Deviations, Levels, ReferenceRecords, Terms, levels_of, sizes_of
from dpdist.packages.limits import limits_of, tails_of
from dpdist.packages.posterior import Errors, Posterior
from dpdist.packages.prior import Prior, Represented
from dpdist.packages.shares import (
    LEAST_LOWER,
    STABLE,
    Law,
    Parts,
    Wanted,
    best_parts,
    noise_of,
    parts_of_largest,
    wanted_of,
)
from dpdist.packages.strategy import (
    STRATEGIES,
    Aggregation,
    Measured,
    Signal,
    Strategy,
    measured,
    whole_shares,
)
from dpdist.packages.sums import MarginSums, measured_sums
from dpdist.packages.workload import Workload


class Figures(NamedTuple):
    """A table's counts, (cell,), and means and totals of every outcome, (cell, outcome); NaN for totals that nobody asks
    for.
    """

    counts: Floats
    means: Floats
    totals: Floats


class Predicted(NamedTuple):
    """A table's predicted errors about the file's figures, in direct standard errors; NaN in cells without a record.

    `freedom` (cell, outcome) are degrees of freedom of the direct variances of means. They are infinite if no records
    tell how these vary.
    """

    table: str
    error: Figures
    reference_alone: Figures
    freedom: Floats


@dataclass(frozen=True)
class Package:
    """A strategy with its measurements, and the posterior that they will have."""

    strategy: str
    aggregations: tuple[Aggregation, ...]
    measurements: tuple[Measured, ...]
    parts: Parts
    """Parts of all that the strategy may measure. A part of 0 is not measured."""
    posterior: Posterior
    wanted: Wanted | None = None
    """The objective, where it is made already."""

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The measurements' parts of the budget."""
        return tuple(share for share in self.parts.shares if share)

    @property
    def prior(self) -> Prior:
        return self.posterior.prior

    @cached_property
    def objective(self) -> float:
        """Squared error of the figures, in direct standard errors, by priority: its mean over tables of their means, or
        its largest.
        """
        return (self.wanted or wanted_of(self.prior)).risk(self.posterior)

    @property
    def many(self) -> bool:
        """Whether it has so many sums that choices are not tried again for another budget."""
        return len(self.posterior.measured) > MOST_EXACT

    @property
    def group_centred(self) -> bool:
        """Whether outcomes are measured about the groups' centres."""
        return any(level.nnz for one in self.measurements for level in one.of_level)

    def predicted(self, with_totals: Collection[str] = (), records: ReferenceRecords | None = None) -> list[Predicted]:
        """Predicted errors of every table under the planned drift; `with_totals` are names of tables.

        With the reference's `records`, direct standard errors of means are those that cells' own records show.
        """
        wanted, workload = self.wanted or wanted_of(self.prior), self.prior.workload
        pairs = list(zip(workload.tables, wanted.tables, strict=True))
        totals = [of_table.totals for table, of_table in pairs if table.name in with_totals]
        of_sums = _by_table(self.posterior.errors(wanted.sums), [of_table.sums for of_table in wanted.tables])
        of_totals = _by_table(self.posterior.errors(MarginSums.stacked(totals)), totals) if totals else iter(())
        crosses = workload if records is None else records.crosses(workload)
        powers, predictions = [] if records is None else moments(records, len(crosses)), []
        for (table, of_table), of_rows in zip(pairs, of_sums, strict=True):
            direct, cells = of_table.direct, len(of_table.direct[0])
            variances, freedom = of_rows.reshape(2, -1, cells), np.full((cells, len(of_table.of_totals)), np.inf)
            if powers:
                rows, adding = crosses.margins(table)
                count, by_law = adding @ crosses.count, zip(powers, direct[1:], strict=True)
                shown = [of_means(rows, adding @ of_one, count, error) for of_one, error in by_law]
                for k, one in enumerate(shown, start=1):
                    variances[:, k] = predicted_at(variances[0, k], variances[1, k], direct[k], one.error)
                direct = [direct[0], *(one.error for one in shown)]
                freedom = np.column_stack([one.freedom for one in shown])
            added = next(of_totals) if table.name in with_totals else np.full((2, len(of_table.totals)), np.nan)
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = np.sqrt(np.hstack([variances, added.reshape(2, -1, cells)]))
                relative /= np.array([*direct, *of_table.of_totals])
            error, alone = (Figures(one[0], one[1 : len(direct)].T, one[len(direct) :].T) for one in relative)
            predictions.append(Predicted(table.name, error, alone, freedom))
        return predictions


def _by_table(errors: Errors, several: Sequence[MarginSums]) -> Iterator[Floats]:
    """Variances about the file's figures, by all measurements and by the reference alone, (2, row), of every table."""
    starts = np.cumsum([len(sums) for sums in several])[:-1]
    return iter(np.split(np.array(errors), starts, axis=1))


class Source(Protocol):
    """The source of levels, limits and what lies beyond them: a reference's records, or noisy histograms in their place.

    Methods raise `ValueError` for a source that cannot serve. `bounds` are the outcomes' public bounds. `size` and
    `noise` are those of `limits_of`.
    """

    def crosses(self, workload: Workload) -> Workload:
        """The file's base cells, then further ones from which levels are learned, without a record of the file."""
        ...

    def levels(self, workload: Workload, terms: Terms, bounds: Sequence[tuple[float, float]]) -> Levels:
        """The levels of all base cells, with errors."""
        ...

    def sizes(self, workload: Workload, terms: Terms) -> tuple[Floats, Deviations]:
        """Expected numbers of records of all base cells, (cell,), and errors of their deviations."""
        ...

    def prior(
        self,
        workload: Workload,
        terms: Terms,
        levels: Levels,
        bounds: Sequence[tuple[float, float]],
        size: Floats,
        noise: Floats,
    ) -> Prior:
        """The prior of the file's base cells with the limits of the least predicted error, from levels of all `crosses`."""
        ...


def _levels(
    source: Source, workload: Workload, terms: Terms, bounds: Sequence[tuple[float, float]]
) -> tuple[Workload, Levels]:
    """The workload, with expected sizes of base cells if these are secret, and the levels."""
    levels = source.levels(source.crosses(workload), terms, bounds)
    if not workload.secret:
        return workload, levels
    expected, of_size = source.sizes(workload, terms)
    return replace(workload, count=expected), replace(levels, of_size=of_size)


class Reference(ReferenceRecords):
    """A reference's records as a source."""

    def levels(self, workload: Workload, terms: Terms, bounds: Sequence[tuple[float, float]]) -> Levels:
        return levels_of(workload, terms, self, bounds)

    def sizes(self, workload: Workload, terms: Terms) -> tuple[Floats, Deviations]:
        return sizes_of(workload, terms, self)

    def prior(
        self,
        workload: Workload,
        terms: Terms,
        levels: Levels,
        bounds: Sequence[tuple[float, float]],
        size: Floats,
        noise: Floats,
    ) -> Prior:
        crosses, kept = self.crosses(workload), self.inside(len(workload))
        # Levels of rare crosses are poor, and a record may be hundreds of times its level: laws are of the file's crosses.
        few = Reference(self.cell[kept], self.weight[kept], self.outcome[kept])
        limits = limits_of(crosses, levels.about(kept), few, bounds, size, noise)
        prior = Prior.of(crosses, terms, levels, limits, tails_of(crosses, terms, levels.about(kept), limits, few))
        represented = Represented(float(self.weight.sum()), float(np.linalg.norm(self.weight)))
        return replace(prior.tied(self).first(workload), represented=represented)


class Chosen(NamedTuple):
    """A package's earlier choices of measurements: their parts, and whether groups have a common centre."""

    parts: Parts
    group_centred: bool


OF_LEVELS = 0.35
"""Share of the time of learning that levels take."""


def _started(
    workload: Workload, reference: Source, bounds: Sequence[tuple[float, float]], before: Package | None
) -> tuple[Workload, Terms, Levels]:
    """What no law of noise changes."""
    if before is not None:
        return before.prior.workload, *before.prior.learned
    terms = Terms.of(reference.crosses(workload))
    workload, levels = _levels(reference, workload, terms, bounds)
    return workload, terms, levels


def package(
    workload: Workload,
    reference: Source,
    bounds: Sequence[tuple[float, float]],
    law: Law,
    strategy: Strategy,
    chosen: Chosen | None = None,
    before: Package | None = None,
) -> Package:
    """The package under one strategy; `chosen` are its earlier choices, and `before` is it under another law.

    Raises `ValueError`, with the reason, for a package that cannot be held or learned.
    """
    if chosen is None:  # a package that was released once is made again wherever it can be
        refuse_beyond_memory(reference.crosses(workload), available_memory())
    return _package(*_started(workload, reference, bounds, before), reference, bounds, law, strategy, chosen, before)


def best_package(
    workload: Workload,
    reference: Source,
    bounds: Sequence[tuple[float, float]],
    law: Law,
    strategies: Sequence[Strategy] = STRATEGIES,
    before: Package | None = None,
) -> list[Package]:
    """The packages of all strategies, the one of the least predicted objective first.

    `before` is the package under another law. If it has many sums, only its strategy and its centres are tried.
    """
    refuse_beyond_memory(reference.crosses(workload), available_memory())
    with within(0.0, OF_LEVELS):
        start = _started(workload, reference, bounds, before)
    repeated = before if before is not None and before.many else None
    suited = [strategy for strategy in strategies if strategy.suits(start[0])]
    kept = [strategy for strategy in suited if repeated is None or strategy.name == repeated.strategy]
    with within(OF_LEVELS, 1.0):
        made = [_package(*start, reference, bounds, law, strategy, before=repeated) for strategy in steps(kept)]
    if len(made) == 1:
        return made
    gains = {strategy.name: strategy.least_gain for strategy in kept}
    return sorted(made, key=lambda package: package.objective / (1.0 - gains[package.strategy]))


def _package(
    workload: Workload,
    terms: Terms,
    levels: Levels,
    reference: Source,
    bounds: Sequence[tuple[float, float]],
    law: Law,
    strategy: Strategy,
    chosen: Chosen | None = None,
    before: Package | None = None,
) -> Package:
    aggregations = strategy.aggregations(workload)
    size, noise = _typical(workload, aggregations, _equal_noise(workload, aggregations, law))
    prior = reference.prior(workload, terms, levels, bounds, size, noise)
    if chosen is not None:
        return _measuring(prior, law, strategy, aggregations, chosen.group_centred, chosen.parts)
    # If weights and numbers of records are public, no weight moves between cells: there is nothing that a centre shows.
    public = workload.weight is not None and not workload.secret
    alone = public or all(aggregation.matrix.shape[0] == len(workload) for aggregation in aggregations)
    tried, wanted = (False,) if alone else (False, True), wanted_of(prior)
    if before is not None and before.many:
        tried = (before.group_centred,)
    sharing = partial(_measuring, prior, law, strategy, aggregations, wanted=wanted)
    if len(tried) > 1 and _many(workload, aggregations):
        if all(aggregation.matrix.shape[0] in (1, len(workload)) for aggregation in aggregations):
            tried = (False,)  # of many sums only one has a centre
        else:
            equal = Parts.equal(len(aggregations), workload.outcomes)
            least = _least([sharing(group_centred, chosen=equal) for group_centred in tried])
            return sharing(least.group_centred, equal=least)
    return _least([sharing(group_centred) for group_centred in steps(tried)])


def _least(made: list[Package]) -> Package:
    """The package of the least objective, which takes long to learn."""
    return made[0] if len(made) == 1 else min(made, key=lambda package: package.objective)


def _many(workload: Workload, aggregations: Sequence[Aggregation]) -> bool:
    return (1 + workload.outcomes) * sum(one.matrix.shape[0] for one in aggregations) > MOST_EXACT


def _measuring(
    prior: Prior,
    law: Law,
    strategy: Strategy,
    aggregations: tuple[Aggregation, ...],
    group_centred: bool,
    chosen: Parts | None = None,
    wanted: Wanted | None = None,
    equal: Package | None = None,
) -> Package:
    """The package with outcomes measured about the groups' centres, or about the base cells' own.

    The parts of the budget and of outcomes are the best ones, or earlier choices. `equal` is the package at equal parts,
    where it is made already.
    """
    limits, workload = prior.limits, prior.workload
    outcomes, signal = limits.half.shape[1], _signal(prior, _equal_noise(workload, aggregations, law))

    def under(kept: Sequence[Aggregation], parts: Sequence[Sequence[Fraction]]) -> tuple[Measured, ...]:
        named = zip(kept, parts, strict=True)
        bounds, count, weighted = (limits.cap, limits.centre, limits.half), workload.count, workload.weight is None
        return tuple(
            measured(one, *bounds, count, group_centred, list(map(float, of_one)), workload.secret, signal, weighted)
            for one, of_one in named
        )

    def posterior(made: tuple[Measured, ...], shares: Sequence[Fraction]) -> Posterior:
        sums = measured_sums(made, limits, workload.count, workload.secret)
        return posterior_of(prior, *sums, noise_of(made, shares, law), prior.planned)

    parts = chosen or Parts.equal(len(aggregations), outcomes)

    def under_parts(parts: Parts) -> Package:
        kept, shares, of_outcomes = zip(*(one for one in zip(aggregations, *parts, strict=True) if one[1]), strict=True)
        made = under(kept, of_outcomes)
        return Package(strategy.name, kept, made, parts, posterior(made, shares), wanted)

    if wanted is not None and chosen is None and (len(aggregations) > 1 or outcomes > 1):
        if equal is not None and outcomes == 1:  # its one outcome has a part of 1 already
            whole, at_equal = equal.measurements, equal.posterior
        else:
            # Nobody asks for the outcomes with a part of 1 each. Their noise is taken as 1/λ² times as large.
            whole = under(aggregations, [(Fraction(1),) * outcomes] * len(aggregations))
            at_equal = posterior(whole, parts.shares)
        stable = STABLE if _many(workload, aggregations) else 0.0
        parts = best_parts(at_equal, wanted, whole, law, strategy.least_gain > 0.0, stable)
        if wanted.largest:
            first, other = map(under_parts, (parts, parts_of_largest(at_equal, wanted, whole, law, parts)))
            return other if other.objective < first.objective * (1.0 - LEAST_LOWER) else first
        if outcomes == 1 and all(parts.shares):  # the measurements are these already
            shared = at_equal.under(noise_of(whole, parts.shares, law))
            return Package(strategy.name, aggregations, whole, parts, shared, wanted)
    return under_parts(parts)


def _equal_noise(workload: Workload, aggregations: Sequence[Aggregation], law: Law) -> float:
    """The noise's variance at an equal part of the budget for every measured table."""
    fine = min(sum(aggregation.matrix.shape[0] > 1 for aggregation in aggregations), len(workload.measured))
    return law.variance(whole_shares([1.0] * max(fine, 1))[0])


def _signal(prior: Prior, noise: float) -> Signal:
    """Variances a priori of the sums that are measured, without terms that cells share, beside this noise."""
    limits, first = prior.limits, len(prior.tails)
    varying = np.einsum("cii->ci", prior.block())[:, first : 2 * first]
    of_outcomes = limits.share**2 * varying[:, 1:] + limits.tilt**2 * varying[:, :1]
    doubled = 2.0 if prior.workload.secret else 1.0  # a count, and an outcome, are then the sum and difference of two sums
    return Signal(np.column_stack([varying[:, 0], of_outcomes]), doubled * noise)


def _typical(workload: Workload, aggregations: Sequence[Aggregation], noise: float) -> tuple[Floats, Floats]:
    """For every base cell, records and noise variance of a typical published cell that contains it, (cell,) each."""
    sizes, sums = [], []
    for by in workload.measured:
        group = workload.groups(by)
        sizes.append(np.bincount(group, weights=workload.count)[group])
        sums.append(np.bincount(group)[group].astype(float))
    noise *= 2.0 if workload.secret else 1.0  # a count, and an outcome, are then the sum and difference of two sums
    by_cell = aggregations[0].matrix.shape[0] == len(workload)
    added = np.median(sums, axis=0) if by_cell else np.ones(len(workload))
    return np.median(sizes, axis=0), noise * added
