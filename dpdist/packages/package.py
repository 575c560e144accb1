"""A package from a reference and a budget: limits, measurements, parts of the budget, and predicted errors, before data.

All of it is a function of the workload, the reference and the law of the noise. No record of the current file enters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.packages.estimates import mean_sums
from dpdist.packages.group_shapes import GroupShapes
from dpdist.packages.levels import Levels, ReferenceRecords, Terms, levels_of
from dpdist.packages.limits import Shape, limits_of, tails_of
from dpdist.packages.posterior import MOST_SUMS, Posterior, Prior, Sums, measured_sums, published_sums
from dpdist.packages.strategy import STRATEGIES, Aggregation, Measured, Strategy, measured, whole_shares
from dpdist.packages.workload import PackageTable, Workload

SHARING_ROUNDS = 5
"""Number of times that the parts of the budget are computed anew from the errors that they predict."""


class Law(NamedTuple):
    """The law of the noise: its variance in squared records by part of the budget, and the exponent of the best parts.

    The exponent is 1/3 where the variance falls with the square of a part, as for Laplace noise, and 1/2 where it falls
    with the part, as for Gaussian noise under zCDP.
    """

    variance: Callable[[Fraction], float]
    exponent: float


class Figures(NamedTuple):
    """A table's counts and means, (cell,) each."""

    counts: Floats
    means: Floats


class Predicted(NamedTuple):
    """A table's predicted errors about the file's figures, in direct standard errors; NaN in cells without a record."""

    table: str
    error: Figures
    reference_alone: Figures


@dataclass(frozen=True)
class Package:
    """A strategy with its measurements, and the posterior that they will have."""

    strategy: str
    aggregations: tuple[Aggregation, ...]
    measurements: tuple[Measured, ...]
    shares: tuple[Fraction, ...]
    posterior: Posterior

    @property
    def prior(self) -> Prior:
        return self.posterior.prior

    def predicted(self) -> list[Predicted]:
        """Predicted errors of every table under the planned drift."""
        predictions = []
        for table in self.prior.workload.tables:
            direct, (counts, means) = figures(self.prior, table)
            errors = [self.posterior.errors(counts), self.posterior.errors(means)]
            with np.errstate(divide="ignore", invalid="ignore"):
                file, alone = ([np.sqrt(getattr(error, name)) for error in errors] for name in ("file", "prior"))
                relative = (Figures(*(a / d for a, d in zip(values, direct, strict=True))) for values in (file, alone))
                predictions.append(Predicted(table.name, *relative))
        return predictions


def figures(prior: Prior, table: PackageTable) -> tuple[Figures, tuple[Sums, Sums]]:
    """Direct standard errors of a table's counts and means by the reference, and the two as functions of the sums.

    Means are linearised at the reference's. NaN stands in cells without a record.
    """
    workload, levels = prior.workload, prior.levels
    matrix = workload.published(table)
    counts, totals = published_sums(matrix, levels)
    n, z = workload.count, prior.mean
    count, total = counts.of(z), totals.of(z)
    second = np.array([_moments(shape) for shape in prior.limits.shapes])[prior.limits.group]
    square = n * levels.weight**2
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        by_cell = matrix @ scipy.sparse.diags_array(square * second[:, 0])
        variance = np.asarray(by_cell.sum(axis=1)).reshape(-1) - count**2 / n.sum()
        offset = levels.mean
        of_square = matrix @ (
            square * (second[:, 0] * offset**2 + 2.0 * offset * levels.unit * second[:, 1] + levels.unit**2 * second[:, 2])
        )
        of_first = matrix @ (square * (second[:, 0] * offset + levels.unit * second[:, 1]))
        of_mean = (of_square - 2.0 * mean * of_first + mean**2 * (matrix @ (square * second[:, 0]))) / count**2
    occurs = np.where(matrix @ n > 0, 1.0, np.nan)
    direct = (np.sqrt(np.maximum(values, 0.0)) * occurs for values in (variance, of_mean))
    return Figures(*direct), (counts, mean_sums(counts, totals, count, mean))


def _moments(shape: Shape) -> Floats:
    """E e², E e²r and E e²r² of a group's law."""
    e, r = shape.e, shape.r
    return np.array([(e**2).mean(), (e**2 * r).mean(), (e**2 * r**2).mean()])


Source = ReferenceRecords | GroupShapes
"""The source of levels, limits and what lies beyond them: a reference's records, or noisy histograms in their place."""


def _levels(source: Source, workload: Workload, terms: Terms, bounds: tuple[float, float]) -> Levels:
    if isinstance(source, GroupShapes):
        return source.levels(workload, terms, bounds)
    return levels_of(workload, terms, source, bounds)


def _prior(
    source: Source,
    workload: Workload,
    terms: Terms,
    levels: Levels,
    bounds: tuple[float, float],
    size: Floats,
    noise: Floats,
) -> Prior:
    if isinstance(source, GroupShapes):
        return source.prior(workload, terms, levels, bounds, size, noise)
    limits = limits_of(workload, levels, source, bounds, size, noise)
    prior = Prior.of(workload, terms, levels, limits, tails_of(workload, terms, levels, limits, source))
    return prior.tied(source)


class Chosen(NamedTuple):
    """What a package chose of its measurements: the parts of the budget, and whether groups have a common centre."""

    shares: tuple[Fraction, ...]
    group_centred: bool


def package(
    workload: Workload,
    reference: Source,
    bounds: tuple[float, float],
    law: Law,
    strategy: Strategy,
    chosen: Chosen | None = None,
) -> Package:
    """The package under one strategy; `chosen` is what it chose before. Raises `ValueError` for what cannot be held or
    learned, with the reason."""
    terms = Terms.of(workload)
    levels = _levels(reference, workload, terms, bounds)
    return _package(workload, terms, levels, reference, bounds, law, strategy, chosen)


def best_package(
    workload: Workload,
    reference: Source,
    bounds: tuple[float, float],
    law: Law,
    strategies: Sequence[Strategy] = STRATEGIES,
) -> list[Package]:
    """The packages of all strategies, the one of the least predicted objective first."""
    terms = Terms.of(workload)
    levels = _levels(reference, workload, terms, bounds)
    kept = [strategy for strategy in strategies if strategy.most_cells is None or len(workload) <= strategy.most_cells]
    made = [_package(workload, terms, levels, reference, bounds, law, strategy) for strategy in kept]
    return sorted(made, key=lambda package: objective(package.posterior))


def _package(
    workload: Workload,
    terms: Terms,
    levels: Levels,
    reference: Source,
    bounds: tuple[float, float],
    law: Law,
    strategy: Strategy,
    chosen: Chosen | None = None,
) -> Package:
    aggregations = strategy.aggregations(workload)
    fine = sum(aggregation.matrix.shape[0] > 1 for aggregation in aggregations)
    size, noise = _typical(workload, aggregations, law.variance(whole_shares([1.0] * max(fine, 1))[0]))
    prior = _prior(reference, workload, terms, levels, bounds, size, noise)
    if chosen is not None:
        return _measuring(prior, law, strategy, aggregations, chosen.group_centred, chosen.shares)
    alone = all(aggregation.matrix.shape[0] == len(workload) for aggregation in aggregations)
    tried = (False,) if alone else (False, True)
    made = [_measuring(prior, law, strategy, aggregations, group_centred) for group_centred in tried]
    return min(made, key=lambda package: objective(package.posterior))


def _measuring(
    prior: Prior,
    law: Law,
    strategy: Strategy,
    aggregations: tuple[Aggregation, ...],
    group_centred: bool,
    chosen: tuple[Fraction, ...] | None = None,
) -> Package:
    """The package with outcomes measured about the groups' centres, or about the base cells' own.

    The parts of the budget are the best ones, or those that were chosen before.
    """
    limits, workload = prior.limits, prior.workload
    shares = chosen or whole_shares([1.0] * len(aggregations))
    made = tuple(
        measured(aggregation, limits.cap, limits.centre, limits.half, workload.count, group_centred)
        for aggregation in aggregations
    )
    sums, constant = measured_sums(made, limits, workload.count)
    if len(sums) > MOST_SUMS:
        fault = f"{len(sums):,} sums to measure by {strategy.name}"
        raise ValueError(f"{fault}: a package may have {MOST_SUMS:,}, so drop or coarsen columns of its largest tables")
    posterior = Posterior(prior, sums, constant, _noise(made, shares, law), prior.drifting.before)
    if len(made) > 1 and chosen is None:
        shares = _shares(posterior, made, law)
        posterior = replace(posterior, noise=_noise(made, shares, law))
    return Package(strategy.name, aggregations, made, shares, posterior)


def _shares(posterior: Posterior, made: Sequence[Measured], law: Law) -> tuple[Fraction, ...]:
    """The parts of the budget at which no shift between measurements lowers the objective.

    Let c_k be the sum, over the rows of k, of the objective's derivative by their noise variance. Where the variance falls
    with the square of a part, the best parts are proportional to c_k^{1/3} of that variance at a part of 1. As c_k depends
    on the parts, they are computed anew until they settle.
    """
    published, weight = _objective(posterior.prior)
    squared, fixed = posterior.squared(published, weight), posterior.without_noise()
    ends, shares = np.cumsum([2 * part.of_weight.shape[0] for part in made])[:-1], whole_shares([1.0] * len(made))
    for _ in range(SHARING_ROUNDS):
        factor = scipy.linalg.cho_factor(fixed + np.diag(_noise(made, shares, law)), lower=True)
        derivative = np.diag(scipy.linalg.cho_solve(factor, scipy.linalg.cho_solve(factor, squared).T))
        shares = whole_shares([float(derivatives.sum()) ** law.exponent for derivatives in np.split(derivative, ends)])
    return shares


def objective(posterior: Posterior) -> float:
    """The mean over tables of the mean squared error of their figures, in direct standard errors, by priority."""
    published, weight = _objective(posterior.prior)
    return float(weight @ posterior.errors(published).file)


def _objective(prior: Prior) -> tuple[Sums, Floats]:
    """All tables' counts and means as functions of the sums, and their weights in the objective."""
    sums, weights = [], []
    for table in prior.workload.tables:
        direct, of_table = figures(prior, table)
        for error, table_sums in zip(direct, of_table, strict=True):
            kept = np.flatnonzero(np.isfinite(error) & (error > 0))
            sums.append([part[kept] for part in table_sums.parts])
            weights.append(table.priority / (len(kept) * error[kept] ** 2) if len(kept) else np.empty(0))
    parts = [scipy.sparse.csr_array(scipy.sparse.vstack([part[k] for part in sums], format="csr")) for k in range(4)]
    whole = np.concatenate(weights)
    return Sums((parts[0], parts[1], parts[2], parts[3])), whole / (2.0 * sum(t.priority for t in prior.workload.tables))


def _noise(made: Sequence[Measured], shares: Sequence[Fraction], law: Law) -> Floats:
    return np.concatenate(
        [np.full(2 * part.of_weight.shape[0], law.variance(share)) for part, share in zip(made, shares, strict=True)]
    )


def _typical(workload: Workload, aggregations: Sequence[Aggregation], noise: float) -> tuple[Floats, Floats]:
    """For every base cell, records and noise variance of a typical published cell that holds it, (cell,) each."""
    sizes, sums = [], []
    for by in workload.measured:
        group = workload.groups(by)
        sizes.append(np.bincount(group, weights=workload.count)[group])
        sums.append(np.bincount(group)[group].astype(float))
    by_cell = aggregations[0].matrix.shape[0] == len(workload)
    added = np.median(sums, axis=0) if by_cell else np.ones(len(workload))
    return np.median(sizes, axis=0), noise * added
