"""A small survey with a reference, tables over four columns, and crosses that no reference record has."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.table_package.query import base_sums
from dpdist.mechanisms.table_package.sensitivity import MOVED, WHOLE, law_of
from dpdist.packages.estimates import BaseEstimates
from dpdist.packages.limits import CellLimits
from dpdist.packages.package import Package, Reference, Source, package
from dpdist.packages.posterior import Posterior
from dpdist.packages.shares import Law
from dpdist.packages.strategy import Measured, PerTable, TopDown
from dpdist.packages.sums import MarginSums, Sums, published_sums
from dpdist.packages.workload import PackageTable, Workload, margins
from dpdist.privacy.queries import Neighbour, NoisyQuery, lost

SIZES = (6, 2, 5, 4)
BOUNDS = (0.0, 400.0)
TABLES = (
    PackageTable("region x sex", (0, 1)),
    PackageTable("region x age", (0, 2)),
    PackageTable("sex x age", (1, 2)),
    PackageTable("work x age", (3, 2)),
    PackageTable("region", (0,)),
)


class Survey(NamedTuple):
    """Records: base cell, weight, outcome."""

    cell: Ints
    weight: Floats
    outcome: Floats


class World(NamedTuple):
    """Levels of all crosses, from which surveys are drawn."""

    codes: Ints
    share: Floats
    weight: Floats
    mean: Floats

    def draw(self, n: int, rng: np.random.Generator, heavier: float = 1.0, richer: float = 1.0) -> Survey:
        cell = rng.choice(len(self.share), n, p=self.share)
        return self.at(cell, rng, heavier, richer)

    def at(self, cell: Ints, rng: np.random.Generator, heavier: float = 1.0, richer: float = 1.0) -> Survey:
        """Other records of the same base cells."""
        weight = heavier * self.weight[cell] * rng.gamma(3.0, 1.0 / 3.0, len(cell))
        outcome = richer * self.mean[cell] * rng.gamma(6.0, 1.0 / 6.0, len(cell))
        return Survey(cell, weight, np.clip(outcome, *BOUNDS))


@cache
def world() -> World:
    rng = np.random.default_rng(20)
    codes = np.indices(SIZES).reshape(len(SIZES), -1).T.astype(np.int64)
    effects = [[rng.normal(0.0, size, levels) for levels in SIZES] for size in (0.5, 0.3, 0.25)]
    logs = [sum(effect[codes[:, k]] for k, effect in enumerate(each)) for each in effects]
    share = np.exp(logs[0])
    return World(codes, share / share.sum(), 20.0 * np.exp(logs[1]), 60.0 * np.exp(logs[2]))


def workload(count: Floats) -> Workload:
    return Workload(world().codes, SIZES, count, TABLES)


def reference(seed: int, n: int = 2500, without: Ints | None = None) -> Reference:
    """A reference, less the records of some base cells."""
    drawn = world().draw(n, np.random.default_rng(seed))
    kept = np.ones(n, dtype=bool) if without is None else ~np.isin(drawn.cell, without)
    return Reference(drawn.cell[kept], drawn.weight[kept], drawn.outcome[kept])


def nested_workload(count: Floats) -> Workload:
    """The workload with a fifth column, the zone of three regions in which a region lies, and tables by zone."""
    codes = np.column_stack([world().codes, world().codes[:, 0] // 3])
    tables = (*TABLES, PackageTable("zone x age", (4, 2)), PackageTable("zone", (4,)))
    return Workload(codes, (*SIZES, 2), count, tables, nested=((4, 0),))


def planned(count: Floats, source: Source, budget: Budget) -> Package:
    return package(workload(count), source, [BOUNDS], budget.law, PerTable())


def planned_top_down(count: Floats, source: Reference, budget: Budget) -> Package:
    return package(nested_workload(count), source, [BOUNDS], budget.law, TopDown())


@dataclass(frozen=True)
class Budget:
    """ε, or ρ, of all measurements together, and who are neighbours."""

    adjacency: Literal["zero_out", "substitution", "add_remove", "anywhere"]
    epsilon: Fraction | None = None
    rho: Fraction | None = None

    @property
    def neighbour(self) -> Neighbour:
        if self.adjacency == "anywhere":
            return "anywhere"
        return "same_x" if self.adjacency == "substitution" else "off"

    @property
    def joint(self) -> NoisyQuery:
        if self.epsilon is not None:
            return NoisyQuery.losing("all", MOVED, self.epsilon, self.neighbour)
        assert self.rho is not None
        return NoisyQuery.losing_rho("all", MOVED, self.rho, self.neighbour)

    @property
    def law(self) -> Law:
        return law_of(self.joint)


@dataclass(frozen=True)
class JointQuery:
    """All measurements of a package, with the noise and the loss that the mechanism's own queries give them."""

    limits: CellLimits
    measurements: tuple[Measured, ...]
    shares: tuple[Fraction, ...]
    budget: Budget

    @property
    def queries(self) -> list[NoisyQuery]:
        return [self.budget.joint.share(str(number), share) for number, share in enumerate(self.shares)]

    @property
    def loss(self) -> Fraction:
        return lost(self.queries, self.budget.neighbour)

    def loss_between(self, one: Floats, other: Floats) -> Fraction:
        """The loss between two files with these sums of base cells, (cell, 3): that of queries which move as far."""
        total = Fraction(0)
        for measurement, query in zip(self.measurements, self.queries, strict=True):
            moves = [Fraction(int(x)) for x in np.abs(measurement.exact(one) - measurement.exact(other))]
            if query.law == "laplace":
                total += sum(moves, Fraction(0)) / query.scale
            else:
                total += sum((x * x for x in moves), Fraction(0)) / (2 * query.scale**2)
        return total

    def in_records(self, sums: Floats) -> Floats:
        """Exact measurements from sums of base cells, (cell, 3), in records as the posterior takes them, (row,)."""
        return np.concatenate([measurement.exact(sums) for measurement in self.measurements]) / WHOLE


def query_of(made: Package, budget: Budget) -> JointQuery:
    return JointQuery(made.prior.limits, made.measurements, made.shares, budget)


def noisy(made: Package, budget: Budget, current: Survey, rng: np.random.Generator) -> Floats:
    """Measurements of a survey in records; the noise has the variance of the released one's, and is NumPy's."""
    query = query_of(made, budget)
    exact = query.in_records(base_sums(query.limits, *current[:3]))
    return exact + rng.laplace(0.0, np.sqrt(made.posterior.noise / 2.0))


PURE = Budget("substitution", epsilon=Fraction(4))


class TableEstimates(NamedTuple):
    """Figures of a table's cells with standard errors about the population's; NaN for a mean of nothing.

    Counts are (cell,), means and totals (cell, outcome).
    """

    counts: Floats
    means: Floats
    totals: Floats
    errors_of_counts: Floats
    errors_of_means: Floats
    errors_of_totals: Floats


def table_estimates(posterior: Posterior, table: PackageTable, base: BaseEstimates) -> TableEstimates:
    """A table's figures and standard errors, from the projected base cells."""
    matrix = posterior.prior.workload.published(table)
    rows, adding = margins(matrix)
    counts, *totals = (MarginSums(rows, sums) for sums in published_sums(adding, posterior.prior.levels))
    count, total = matrix @ base.counts, matrix @ base.totals
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(count[:, None] > 0.0, total / count[:, None], np.nan)
    means = [mean_sums(counts, of_total, count, column) for of_total, column in zip(totals, mean.T, strict=True)]
    of_count, *of_others = (np.sqrt(posterior.about_population(sums)) for sums in (counts, *means, *totals))
    of_mean, of_total = (np.column_stack(part) for part in (of_others[: len(means)], of_others[len(means) :]))
    return TableEstimates(count, mean, total, of_count, np.where(np.isfinite(mean), of_mean, np.nan), of_total)


def mean_sums(counts: MarginSums, totals: MarginSums, count: Floats, mean: Floats) -> MarginSums:
    """Means linearised at counts and means, (row,), as functions of the base cells' sums; 0 without a count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale, slope = (np.where(count > 0.0, factor, 0.0) for factor in (1.0 / count, mean / count))
    rows = [scipy.sparse.diags_array(factor) @ sums.rows for factor, sums in ((scale, totals), (-slope, counts))]
    pairs = zip(totals.fine.parts, counts.fine.parts, strict=True)
    fine = (scipy.sparse.csr_array(scipy.sparse.vstack(pair, format="csr")) for pair in pairs)
    return MarginSums(scipy.sparse.csr_array(scipy.sparse.hstack(rows, format="csr")), Sums(tuple(fine)))
