"""The optimum of a package's problem: the same objective as the package's, true slopes, and a bound that is below."""

from __future__ import annotations

import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))

import numpy as np
import pytest
from optimum_of_packages import Problem, compared
from simulated_package import BOUNDS, Budget, reference, workload, world

from dpdist.core.records import Floats
from dpdist.packages.package import Package, package
from dpdist.packages.strategy import FACTOR_STEPS, PerTable

PURE = Budget("substitution", epsilon=Fraction(1))
CONCENTRATED = Budget("substitution", rho=Fraction(1, 50))


@cache
def made(budget: Budget) -> Package:
    count = np.bincount(world().draw(3000, np.random.default_rng(7)).cell, minlength=len(world().share)).astype(float)
    return package(workload(count), reference(8), [BOUNDS], budget.law, PerTable())


def precision(of: Package, budget: Budget) -> Floats:
    """X of a package's queries of counts and of outcomes, (2, cell, cell)."""
    halves = np.zeros((2, len(of.prior.workload), len(of.prior.workload)))
    for measurement, share in zip(of.measurements, of.shares, strict=True):
        for half, factors in zip(halves, (measurement.of_weight, *measurement.of_outcome), strict=True):
            rows = (factors / FACTOR_STEPS).toarray()
            half += rows.T @ rows / budget.law.variance(share)
    return halves


def test_a_packages_queries_have_its_objective_and_its_slopes() -> None:
    """Differences by X are the stated slopes. Control: half of the precision leaves a larger error."""
    given, x = Problem.of(made(PURE)), precision(made(PURE), PURE)
    value, falls = given.left(x)
    assert not any(level.nnz for measurement in made(PURE).measurements for level in measurement.of_level), (
        "the queries would be others"
    )
    assert value == pytest.approx(made(PURE).objective, rel=1e-6)
    assert given.left(x / 2.0)[0] > value * 1.001
    step = 1e-4 * x
    assert value - given.left(x + step)[0] == pytest.approx(float(np.vdot(falls, step)), rel=1e-2)


@pytest.mark.parametrize("budget", [PURE, CONCENTRATED], ids=["pure", "zcdp"])
def test_the_best_is_between_its_bound_and_the_package(budget: Budget) -> None:
    found = compared(made(budget), budget, 25)
    assert found["best"] <= found["error"] < found["before"]
    if budget is CONCENTRATED:
        assert 0.9 * found["best"] < found["no less than"] <= found["best"] * (1 + 1e-9)
