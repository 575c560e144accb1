"""The joint sensitivity of a package is bounded for any records, and attained by a stated pair."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array, vstack
from simulated_package import BOUNDS, Budget, JointQuery, planned, planned_top_down, query_of, reference, workload, world

from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.stratum_sums import LossExceeded
from dpdist.mechanisms.table_package.query import base_sums, contributions, hold
from dpdist.mechanisms.table_package.sensitivity import MOVED, WHOLE
from dpdist.packages.limits import CellLimits
from dpdist.packages.package import Package, package
from dpdist.packages.strategy import (
    FACTOR_STEPS,
    Aggregation,
    PerTable,
    Signal,
    least_share,
    measured,
    outcome_parts,
    whole_shares,
)
from dpdist.privacy.queries import DIGITS

BUDGETS = [
    Budget("zero_out", epsilon=Fraction(1)),
    Budget("substitution", epsilon=Fraction(4)),
    Budget("zero_out", rho=Fraction(1, 20)),
    Budget("substitution", rho=Fraction(1, 7)),
]
ADVERSARIAL = [0.0, 1e-300, 1e-9, 0.5, 1.0, 3.0, 20.0, 1e3, 1e9, 1e300, np.inf]


CASES = [(budget, how, planned) for budget in BUDGETS for how in (False, True)] + [(BUDGETS[1], True, planned_top_down)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2].__name__}")
def joint(request: pytest.FixtureRequest) -> tuple[JointQuery, Package]:
    """A query about the base cells' own centres, or about those of groups (`levelled`)."""
    budget, levelled, plan = request.param
    count = _count()
    made = plan(count, reference(2), budget)
    limits = made.prior.limits
    measurements = tuple(
        measured(a, limits.cap, limits.centre, limits.half, count, levelled, [1.0]) for a in made.aggregations
    )
    assert any(level.nnz for each in measurements for level in each.of_level) == levelled
    return replace(query_of(made, budget), measurements=measurements), made


def test_a_pair_about_a_common_centre_attains_the_loss() -> None:
    """One base cell a group, whose centre is not the group's: a heavy record at the end, and one without weight.

    Their distance is 2 in L1. Control: against a record at the centre of the clipping interval it is less.
    """
    cells, ones = 2, np.ones(2)
    group = Aggregation("both", csr_array(np.ones((1, cells))))
    limits = planned(_count(), reference(2), BUDGETS[1]).prior.limits
    limits = replace(limits, cap=ones, centre=np.array([[-3.0], [3.0]]), half=ones[:, None])
    one = measured(group, limits.cap, limits.centre, limits.half, ones, group_centred=True, parts=[1.0])
    query = JointQuery(limits, (one,), (Fraction(1),), BUDGETS[1])
    heavy, none, middle = (
        base_sums(limits, np.array([1]), np.array([w]), np.array([y])) for w, y in ((2.0, 9.0), (0.0, 0.0), (2.0, 3.0))
    )
    lost = float(query.loss_between(heavy, none) / query.loss)
    assert 1.0 - 2.0 / FACTOR_STEPS <= lost <= 1.0
    assert query.loss_between(heavy, middle) < query.loss / 2


def test_one_cell_with_a_large_limit_does_not_lower_the_factors_of_all() -> None:
    """Under noise alone all factors are 1. Controls: factors follow limits without noise, and without a signal."""
    cap, half, group = np.append(np.ones(99), 16.0), np.ones((100, 1)), Aggregation("all", csr_array(np.ones((1, 100))))

    def factors(signal: Signal | None) -> list[Floats]:
        one = measured(group, cap, np.zeros((100, 1)), half, np.ones(100), False, [1.0], signal=signal)
        return [part.toarray()[0] / FACTOR_STEPS for part in (one.of_weight, *one.of_outcome)]

    varying = np.ones((100, 2))
    for noisy, exact, largest in zip(
        *(factors(signal) for signal in (Signal(varying, 1e9), Signal(varying, 0.0), None)), strict=True
    ):
        assert (noisy == 1.0).all()
        assert (exact == largest).all()
        assert (largest[0], largest[-1]) == (1.0 / 16.0, 1.0)
    assert all(1.0 / 16.0 < part[0] < 1.0 for part in factors(Signal(varying, 3.0)))


def test_extents_lower_the_predicted_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the package whose factors are all over the groups' largest limits."""
    budget = Budget("substitution", epsilon=Fraction(1))
    shorter = planned(_count(), reference(2), budget)
    monkeypatch.setattr("dpdist.packages.strategy.EXTENTS", np.ones(1))
    longest = planned(_count(), reference(2), budget)
    assert shorter.objective < 0.99 * longest.objective


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_several_outcomes_share_the_loss_of_one(budget: Budget) -> None:
    """All outcomes at one end against all at the other attain a pure budget, and no pair costs more under any law.

    Control: parts of outcomes that sum above 1 cost more than the budget.
    """
    limits = replace(_of_three(budget).prior.limits, cap=np.ones(2), centre=np.zeros((2, 3)), half=np.ones((2, 3)))
    group = Aggregation("both", csr_array(np.ones((1, 2))))
    ends = np.array([[9.0, 9.0, 9.0], [-9.0, -9.0, -9.0]])
    heavy = [base_sums(limits, np.array([1]), np.array([2.0]), outcomes[None]) for outcomes in ends]
    other = np.zeros_like(heavy[0]) if budget.adjacency == "zero_out" else heavy[1]
    losses = []
    for parts in (outcome_parts([0.2, 0.5, 0.3]), (Fraction(3, 4), Fraction(3, 4), Fraction(3, 4))):
        factors = measured(group, limits.cap, limits.centre, limits.half, np.ones(2), False, list(map(float, parts)))
        query = JointQuery(limits, (factors,), (Fraction(1),), budget)
        losses.append(query.loss_between(heavy[0], other) / query.loss)
    assert losses[0] == 1 if budget.rho is None else losses[0] <= 1
    assert losses[1] > 1


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_no_pair_of_records_with_several_outcomes_costs_more_than_the_budget(budget: Budget) -> None:
    """Any weights and outcomes. The parts of every measurement sum to 1, and are chosen: none is the equal part."""
    made = _of_three(budget)
    query, rng, cells = query_of(made, budget), np.random.default_rng(4), len(_count())
    for cell in rng.integers(0, cells, 100):
        weight, outcome = rng.choice(ADVERSARIAL, 2), rng.choice([-x for x in ADVERSARIAL] + ADVERSARIAL, (2, 3))
        sums = [base_sums(query.limits, np.array([cell]), weight[k : k + 1], outcome[k : k + 1]) for k in range(2)]
        assert (
            query.loss_between(sums[0], np.zeros_like(sums[0]) if budget.adjacency == "zero_out" else sums[1]) <= query.loss
        )
    assert all(sum(parts) == 1 for parts in made.parts.outcomes)
    assert set(made.parts.outcomes) != {outcome_parts([1.0] * 3)}


SECRET = [Budget("add_remove", epsilon=Fraction(1)), Budget("anywhere", epsilon=Fraction(4))]


@pytest.mark.parametrize("budget", SECRET, ids=str)
@pytest.mark.parametrize("outcomes", [1, 3])
def test_where_sizes_are_secret_a_stated_record_or_pair_attains_the_loss(budget: Budget, outcomes: int) -> None:
    """A record beyond the cap, added; and one that is exchanged for any record of another group.

    Controls: a cap that is twice as high costs less, as the other outcomes of one record do. Sums that are not halved
    would cost more, and are never asked for.
    """
    limits = _limits_of_ones(budget, outcomes)
    apart = Aggregation("cells", csr_array(np.eye(2)))
    parts = [1.0] if outcomes == 1 else [0.25, 0.5, 0.25]
    one = measured(apart, limits.cap, limits.centre, limits.half, np.ones(2), False, parts, True)
    query = JointQuery(limits, (one,), (Fraction(1),), budget)
    here, there = (base_sums(limits, np.array([cell]), np.array([2.0]), np.full((1, outcomes), 9.0)) for cell in (0, 1))
    turned = base_sums(limits, np.array([0]), np.array([2.0]), np.full((1, outcomes), -9.0))
    none, exchanged = np.zeros_like(here), budget.adjacency == "anywhere"
    assert query.loss_between(here, there if exchanged else none) == query.loss
    assert query.loss_between(here, turned if exchanged else none) == query.loss
    light = base_sums(limits, np.array([0]), np.array([0.5]), np.zeros((1, outcomes)))
    assert query.loss_between(here, light if exchanged else here) < query.loss
    hold((one,), (Fraction(1),), outcomes)
    twice = one._replace(of_outcome=tuple(2 * g for g in one.of_outcome), of_level=tuple(2 * h for h in one.of_level))
    assert replace(query, measurements=(twice,)).loss_between(here, there if exchanged else none) > query.loss
    with pytest.raises(LossExceeded, match="factors of"):
        hold((twice,), (Fraction(1),), outcomes)


@pytest.mark.parametrize("budget", SECRET, ids=str)
@pytest.mark.parametrize("levelled", [False, True])
def test_where_sizes_are_secret_no_pair_of_any_cells_costs_more_than_the_budget(budget: Budget, levelled: bool) -> None:
    """Any weights and outcomes of a package with three outcomes. The limits do not depend on the file's sizes."""
    made, other = (_of_three_secret(budget, times) for times in (1, 50))
    assert made.shares == other.shares
    limits, count = made.prior.limits, made.prior.workload.count
    np.testing.assert_array_equal(count, other.prior.workload.count)
    np.testing.assert_array_equal(limits.cap, other.prior.limits.cap)
    measurements = tuple(
        measured(one, limits.cap, limits.centre, limits.half, count, levelled, list(map(float, parts)), True)
        for one, parts in zip(made.aggregations, made.parts.outcomes, strict=True)
    )
    hold(measurements, made.shares, 3)
    query, rng = replace(query_of(made, budget), measurements=measurements), np.random.default_rng(6)
    for cells in rng.integers(0, len(count), (100, 2)):
        weight, outcome = rng.choice(ADVERSARIAL, 2), rng.choice([-x for x in ADVERSARIAL] + ADVERSARIAL, (2, 3))
        one, two = (base_sums(limits, cells[k : k + 1], weight[k : k + 1], outcome[k : k + 1]) for k in range(2))
        assert query.loss_between(one, two if budget.adjacency == "anywhere" else np.zeros_like(one)) <= query.loss


def test_saturated_sums_are_exact_and_move_no_farther() -> None:
    """Control: a sum beyond the limit is cut to it."""
    made = _of_three_secret(SECRET[0], 1)
    sums = base_sums(made.prior.limits, np.zeros(9, dtype=int), np.full(9, 30.0), np.full((9, 3), 0.5))
    for one in made.measurements:
        exact = one.exact(sums)
        np.testing.assert_array_equal(one.saturated(sums, 2**52), exact)
        assert np.abs(one.saturated(sums, 2**20)).max() == 2**20 < np.abs(exact).max()


def _limits_of_ones(budget: Budget, outcomes: int) -> CellLimits:
    zeros = np.zeros((2, outcomes))
    return replace(planned(_count(), reference(2), budget).prior.limits, cap=np.ones(2), centre=zeros, half=zeros + 1.0)


@cache
def _of_three_secret(budget: Budget, times: int) -> Package:
    one = reference(2)
    outcomes = np.column_stack([one.outcome, BOUNDS[1] - one.outcome, one.outcome > 60.0])
    secret = replace(workload(times * _count()), secret=True)
    return package(secret, one._replace(outcome=outcomes), [BOUNDS, BOUNDS, (0.0, 1.0)], budget.law, PerTable())


@pytest.mark.parametrize("wanted", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [-1.0, 0.5], [0.0, 0.0, 0.0], [0.0]])
def test_parts_are_above_0_and_sum_to_1_whatever_is_wanted(wanted: list[float]) -> None:
    """Outcomes that are constant in the reference want no part at all; 0/0 gave parts whose sum was not 1."""
    for parts in (outcome_parts(wanted), whole_shares(wanted)):
        assert sum(parts) == 1
        assert min(parts) >= min(least_share(len(wanted), FACTOR_STEPS), least_share(len(wanted))) > 0


@pytest.mark.parametrize("fault", ["outcome", "weight", "level", "not whole", "not a number", "two groups", "part"])
def test_factors_that_move_more_than_is_stated_are_never_asked_for(fault: str) -> None:
    """Whatever chose them. Control: those of a package."""
    made = _of_three(BUDGETS[1])
    hold(made.measurements, made.shares, 3)
    one = made.measurements[0]
    first, *others = one.of_outcome
    changed = {
        "outcome": one._replace(of_outcome=(first * 9, *others)),
        "weight": one._replace(of_weight=one.of_weight * 1.5),
        "level": one._replace(of_level=(-first, *one.of_level[1:])),
        "not whole": one._replace(of_weight=one.of_weight * 0.5 + one.of_weight * 1e-9),
        "not a number": one._replace(of_outcome=(first * np.nan, *others)),
        "two groups": one._replace(of_weight=csr_array(vstack([one.of_weight, one.of_weight]))),
        "part": one,
    }[fault]
    parts = (made.shares[0] + Fraction(1, 4096), *made.shares[1:]) if fault == "part" else made.shares
    with pytest.raises(LossExceeded, match="parts of the budget" if fault == "part" else "factors of"):
        hold((changed, *made.measurements[1:]), parts, 3)


@cache
def _of_three(budget: Budget) -> Package:
    one = reference(2)
    outcomes = np.column_stack([one.outcome, BOUNDS[1] - one.outcome, one.outcome > 60.0])
    return package(workload(_count()), one._replace(outcome=outcomes), [BOUNDS, BOUNDS, (0.0, 1.0)], budget.law, PerTable())


def _count() -> Floats:
    return np.bincount(world().draw(2000, np.random.default_rng(1)).cell, minlength=len(world().share)).astype(float)


def test_the_loss_of_all_measurements_is_the_budget(joint: tuple[JointQuery, Package]) -> None:
    query, _ = joint
    budget = query.budget.epsilon or query.budget.rho
    assert budget is not None
    assert sum(query.shares) == 1
    assert budget * (1 - Fraction(1, DIGITS)) <= query.loss <= budget


def test_no_pair_of_records_costs_more_than_the_budget(joint: tuple[JointQuery, Package]) -> None:
    """Any weights and outcomes, also ones that overflow; both records of a pair are in the same base cell."""
    query, _ = joint
    rng, cells = np.random.default_rng(3), len(query.limits.cap)
    weight = rng.choice(ADVERSARIAL, (2, 150))
    outcome = rng.choice([-x for x in ADVERSARIAL] + ADVERSARIAL, (2, 150))
    for cell, w, y in zip(rng.integers(0, cells, 150), weight.T, outcome.T, strict=True):
        first, second = (base_sums(query.limits, np.array([cell]), w[k : k + 1], y[k : k + 1]) for k in range(2))
        other = np.zeros_like(first) if query.budget.adjacency == "zero_out" else second
        assert query.loss_between(first, other) <= query.loss


def _widest(query: JointQuery) -> int | None:
    """A base cell with factor FACTOR_STEPS on outcomes in every measurement, if there is one."""
    full = [sum(g.sum(axis=0) for g in m.of_outcome) == FACTOR_STEPS for m in query.measurements]
    cells = np.flatnonzero(np.all(full, axis=0))
    return int(cells[0]) if len(cells) else None


def test_the_stated_pair_attains_the_loss(joint: tuple[JointQuery, Package]) -> None:
    """Records above the cap with outcomes at both ends; under `zero_out` one of them, and none.

    Control: at half of the half-width the pair costs less, and under half of the scales it would cost more.
    """
    query, _ = joint
    cell = _widest(query)
    if cell is None:  # the widest cell of one table is not that of another: then all cells of the query have equal limits
        widened = (
            m._replace(
                of_weight=_full(m.of_weight),
                of_outcome=tuple(map(_full, m.of_outcome)),
                of_level=tuple(0 * level for level in m.of_level),
            )
            for m in query.measurements
        )
        query, cell = replace(query, measurements=tuple(widened)), 0
    at, cap = np.array([cell]), query.limits.cap[cell] * np.ones(1) * 2
    ends = [
        base_sums(query.limits, at, cap, query.limits.centre[cell] + s * query.limits.half[cell]) for s in (1.0, -1.0, 0.5)
    ]
    other = np.zeros_like(ends[0]) if query.budget.adjacency == "zero_out" else ends[1]
    assert query.loss_between(ends[0], other) == query.loss
    assert query.loss_between(ends[2], other) < query.loss
    halved = tuple(share * 2 for share in query.shares)
    assert JointQuery(query.limits, query.measurements, halved, query.budget).loss_between(ends[0], other) > query.loss


def _full(factors: csr_array) -> csr_array:
    copied = factors.copy()
    copied.data = np.full_like(copied.data, FACTOR_STEPS)
    return copied


def test_a_record_is_in_one_group_of_every_measurement_with_factors_of_at_most_1(joint: tuple[JointQuery, Package]) -> None:
    query, _ = joint
    for each in query.measurements:
        for factors in (each.of_weight, *each.of_outcome, *each.of_level):
            assert (np.bincount(factors.nonzero()[1], minlength=factors.shape[1]) <= 1).all()
            assert (factors.data == np.rint(factors.data)).all()
        assert each.of_weight.data.min() >= 0.0
        assert each.of_weight.data.max() == FACTOR_STEPS
        assert min(outcome.data.min() for outcome in each.of_outcome) >= 0.0
        together = sum(np.asarray(abs(factors).sum(axis=0)) for factors in (*each.of_outcome, *each.of_level))
        assert 0.9 * FACTOR_STEPS < together.max() <= FACTOR_STEPS


def test_contributions_are_whole_and_in_the_cone(joint: tuple[JointQuery, Package]) -> None:
    query, _ = joint
    rng = np.random.default_rng(5)
    cell = rng.integers(0, len(query.limits.cap), 20_000)
    parts = contributions(query.limits, cell, rng.lognormal(3.0, 2.0, 20_000), rng.normal(60.0, 100.0, 20_000))
    assert (parts == np.rint(parts)).all()
    assert (parts[:, 0] >= 0).all()
    assert (parts[:, 0] + parts[:, 1] == UNIT).all()
    assert (np.abs(parts[:, 2]) <= parts[:, 1]).all()


def test_measurements_of_many_records_are_exact_in_floating_point() -> None:
    """Sums of 8 million records stay below 2^53."""
    assert 8e6 * WHOLE < 2**53


def test_neighbours_under_substitution_move_twice_as_far() -> None:
    assert MOVED.same_x == 2 * MOVED.off == 2 * WHOLE
