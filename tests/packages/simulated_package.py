"""A small survey with a reference, tables over four columns, and crosses that no reference record has."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.packages.levels import ReferenceRecords
from dpdist.packages.package import Package, package
from dpdist.packages.query import Budget, JointQuery, base_sums
from dpdist.packages.strategy import PerTable
from dpdist.packages.workload import PackageTable, Workload

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


def reference(seed: int, n: int = 2500, without: Ints | None = None) -> ReferenceRecords:
    """A reference, less the records of some base cells."""
    drawn = world().draw(n, np.random.default_rng(seed))
    kept = np.ones(n, dtype=bool) if without is None else ~np.isin(drawn.cell, without)
    return ReferenceRecords(drawn.cell[kept], drawn.weight[kept], drawn.outcome[kept])


def planned(count: Floats, known: ReferenceRecords, budget: Budget) -> Package:
    return package(workload(count), known, BOUNDS, budget.law, PerTable())


def query_of(made: Package, budget: Budget) -> JointQuery:
    return JointQuery(made.prior.limits, made.measurements, made.shares, budget)


def noisy(made: Package, budget: Budget, current: Survey, rng: np.random.Generator) -> Floats:
    """Measurements of a survey in records; the noise has the variance of the released one's, and is NumPy's."""
    query = query_of(made, budget)
    exact = query.in_records(query.exact(base_sums(query.limits, *current)))
    return exact + rng.laplace(0.0, np.sqrt(made.posterior.noise / 2.0))


PURE = Budget("substitution", epsilon=Fraction(4))
