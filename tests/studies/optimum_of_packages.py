"""How far a package's measurements are from the best linear ones, by public sizes and the reference alone.

    python tests/studies/optimum_of_packages.py --data FOLDER [--files nhis …] [--epsilon 1 4] [--tables 10] [--rounds 60]

The objective is the package's: squared errors of all tables' counts and means under the planned drift, at its own limits.
Queries are sums of the base cells' clipped sums, counts and outcomes apart, with any factors. Under zCDP a strategy costs
the largest squared length of a column of its matrix K, and the objective is convex in X = K'K. So a stationary K comes with
a dual bound: no X is below it. Under pure ε a column costs its L1 norm, and nothing is convex. *Best* is then the least
value found over parts of the budget for every base cell, over base cells, tables, single columns and all cells. Errors are
roots of objectives; *over* is the package's error over the best one's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from packages_of_files import FILES, Budget, parted, read, zcdp

from dpdist.core.records import Floats
from dpdist.packages.package import Package, package
from dpdist.packages.shares import wanted_of
from dpdist.packages.strategy import FACTOR_STEPS, STRATEGIES
from dpdist.packages.sums import Sums

LEAST = 1e-3
"""Part of the budget at which the search begins for queries that the package does not ask."""


class Problem(NamedTuple):
    """The clipped sums' prior covariance, (sum, sum), the figures' with them, (figure, sum), weighted, and the objective.

    `before` is the objective without a measurement. The sums are those of all base cells' counts, then of their outcomes.
    """

    prior: Floats
    figures: Floats
    before: float

    @classmethod
    def of(cls, made: Package) -> Problem:
        prior, cells = made.prior, len(made.prior.workload)
        none, one = scipy.sparse.csr_array((cells, cells)), scipy.sparse.eye_array(cells, format="csr")
        tilt, share = (
            scipy.sparse.diags_array(values[:, 0]).tocsr() for values in (-prior.limits.tilt, prior.limits.share)
        )
        columns = ((none, none), (none, none), (one, tilt), (none, share))
        stacked = (scipy.sparse.csr_array(scipy.sparse.vstack(column, format="csr")) for column in columns)
        posterior = replace(made.posterior, measured=Sums(tuple(stacked)), constant=np.zeros(2 * cells))
        objective = wanted_of(prior)
        published, weight = objective.sums.whole, objective.weight
        c = made.posterior.covariance(published)
        won = (c * made.posterior.solver(c.T).T).sum(axis=1)
        figures = np.sqrt(weight)[:, None] * posterior.covariance(published)
        return cls(posterior.without_noise, figures, float(weight @ (made.posterior.errors(published).file + won)))

    def left(self, halves: Floats) -> tuple[float, Floats]:
        """The objective under a precision X of counts and of outcomes, (2, cell, cell), and how it falls by X."""
        x = scipy.linalg.block_diag(*halves)
        turned = np.linalg.inv(np.eye(len(x)) + x @ self.prior)
        pulled = self.figures @ turned
        cells = len(x) // 2
        falls = [pulled[:, half].T @ pulled[:, half] for half in (slice(0, cells), slice(cells, None))]
        return self.before - float(np.vdot(pulled @ x, self.figures)), np.stack(falls)


class Best(NamedTuple):
    """The least objective that was found, and one that no strategy is below."""

    value: float
    bound: float


def best_by_length(given: Problem, start: Floats, variance: float, rounds: int) -> Best:
    """Any K with columns of length 1, (2, query, cell), under noise of a variance."""

    def units(flat: Floats) -> tuple[Floats, Floats]:
        k = flat.reshape(start.shape)
        length = np.sqrt((k**2).sum(axis=1, keepdims=True))
        return k / length, length

    def falling(flat: Floats) -> tuple[float, Floats]:
        k, length = units(flat)
        value, falls = given.left(k.transpose(0, 2, 1) @ k / variance)
        slope = -2.0 * k @ falls / variance
        slope -= k * (k * slope).sum(axis=1, keepdims=True)
        return value, (slope / length).reshape(-1)

    k, _ = units(_searched(falling, start, rounds))
    x = k.transpose(0, 2, 1) @ k / variance
    value, falls = given.left(x)
    return Best(value, value + float(np.vdot(falls, x)) - sum(_most(f, part) for f, part in zip(falls, x, strict=True)))


def _most(falls: Floats, x: Floats) -> float:
    """A bound of <G, X'> over all X' ≥ 0 with the diagonal of X: multipliers of X, until their diagonal is above G."""
    multiplier = np.maximum((falls * x).sum(axis=1) / np.diag(x), 1e-6 * np.diag(falls).max())
    above = float(np.linalg.eigvalsh(falls / np.sqrt(np.outer(multiplier, multiplier)))[-1])
    return above * float(multiplier @ np.diag(x))


def best_by_parts(given: Problem, groups: list[Floats], start: Floats, variance: float, rounds: int) -> float:
    """Parts (2, aggregation, cell) of the budget, 1 together for every cell; noise of a variance at a part of 1."""

    def falling(flat: Floats) -> tuple[float, Floats]:
        root = flat.reshape(start.shape)
        length = (root**2).sum(axis=1, keepdims=True)
        parts = root**2 / length
        rows = [[part[k][None, :] * matrix for k, matrix in enumerate(groups)] for part in parts]
        value, falls = given.left(np.stack([sum(row.T @ row for row in half) for half in rows]) / variance)
        slope = np.stack(
            [
                [-2.0 * ((row @ fall) * matrix).sum(axis=0) / variance for row, matrix in zip(half, groups, strict=True)]
                for half, fall in zip(rows, falls, strict=True)
            ]
        )
        slope -= (parts * slope).sum(axis=1, keepdims=True)
        return value, (2.0 * root * slope / length).reshape(-1)

    return falling(_searched(falling, np.sqrt(start), rounds))[0]


def _searched(falling: Callable[[Floats], tuple[float, Floats]], start: Floats, rounds: int) -> Floats:
    options = {"maxiter": rounds, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-9}
    found = scipy.optimize.minimize(falling, start.reshape(-1), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x)


def compared(made: Package, budget: Budget, rounds: int) -> dict[str, object]:
    """A package's error beside the best one's."""
    given, workload, variance = Problem.of(made), made.prior.workload, budget.law.variance(Fraction(1))
    sets = [tuple(range(len(workload.sizes))), *workload.measured, *((k,) for k in range(len(workload.sizes))), ()]
    groups = [workload.summing(by).toarray() for by in dict.fromkeys(sets)]
    parts = np.full((2, len(groups), len(workload)), LEAST)
    for measurement, aggregation, share in zip(made.measurements, made.aggregations, made.shares, strict=True):
        same = next(
            k for k, g in enumerate(groups) if g.shape == aggregation.matrix.shape and (g == aggregation.matrix).all()
        )
        for part, factors in zip(parts, (measurement.of_weight, *measurement.of_outcome), strict=True):
            part[same] += float(share) * np.asarray(factors.sum(axis=0)) / FACTOR_STEPS
    value = made.objective
    if budget.rho is None:
        best = Best(best_by_parts(given, groups, parts, variance, rounds), np.nan)
    else:
        start = np.stack(
            [np.vstack([np.sqrt(p)[None, :] * g for p, g in zip(half, groups, strict=True)]) for half in parts]
        )
        best = best_by_length(given, start, variance, rounds)
    found = {"error": value**0.5, "best": best.value**0.5, "no less than": max(best.bound, 0.0) ** 0.5}
    return found | {"over": (value / best.value) ** 0.5, "before": given.before**0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", nargs="*", default=["nhis"])
    parser.add_argument("--epsilon", nargs="*", default=["1", "4"])
    parser.add_argument("--tables", type=int, default=10, help="the first tables of each package")
    parser.add_argument("--rounds", type=int, default=60)
    taken = parser.parse_args()
    for name in taken.files:
        file = FILES[name]._replace(tables=FILES[name].tables[: taken.tables])
        parts = parted(file, read(file, taken.data), 0)
        for epsilon in taken.epsilon:
            for law, budget in (
                ("pure", Budget("substitution", epsilon=Fraction(epsilon))),
                ("zCDP", Budget("substitution", rho=zcdp(float(epsilon)))),
            ):
                for strategy in STRATEGIES:
                    begun = time.perf_counter()
                    made = package(parts.workload, parts.learned_from, parts.bounds, budget.law, strategy)
                    row = {
                        "file": name,
                        "cells": len(parts.workload),
                        "epsilon": epsilon,
                        "law": law,
                        "strategy": strategy.name,
                    }
                    row |= compared(made, budget, taken.rounds) | {"seconds": time.perf_counter() - begun}
                    print(pd.Series(row).to_frame().T.round(3).to_string(header=strategy is STRATEGIES[0]), flush=True)


if __name__ == "__main__":
    main()
