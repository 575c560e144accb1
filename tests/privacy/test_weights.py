"""Weight rules as pure functions of METHODS §3, and searches driven by toy fits whose bounds are written down.

What every rule has in common (weights from 0 to 1, a first fit without weights, a target that is met) is asked by
`check_weight_rule`, in tests/testing/test_members.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dpdist.job import Weights
from dpdist.privacy.weights import (
    MARGIN,
    MAX_STEPS,
    Cap,
    Cluster,
    Constant,
    Inverse,
    Linear,
    NotReached,
    Ones,
    Reweight,
    Scalar,
    ScaleShift,
    Summary,
    TruncatedWeights,
    applied_to,
    fixed,
    for_later_files,
    search,
    weigh,
    with_outcomes,
)

fixed_examples = settings(derandomize=True, deadline=None)
RECORDS = 5
sizes = st.just(0.0) | st.floats(1e-9, 1e6)
bounds = arrays(float, RECORDS, elements=sizes)
positive = arrays(float, RECORDS, elements=st.floats(1e-3, 1e6))
broken = arrays(float, RECORDS, elements=sizes | st.sampled_from([np.inf, np.nan]))
shares = arrays(float, RECORDS, elements=st.just(0.0) | st.floats(1e-3, 1.0))
constants = st.floats(1e-3, 1e3)
ONE = np.ones(RECORDS)


def linear(c, unweighted, g=0.0):
    """The rule with the extremes of the finite bounds, as a search makes it."""
    finite = unweighted[np.isfinite(unweighted)]
    return Linear(c, g, finite.min(initial=np.inf), finite.max(initial=0.0))


def every_rule(c, g, unweighted):
    rules = [Ones(), Cap(c), Inverse(c), linear(c, unweighted, g), Scalar(c), Reweight(0.95, c)]
    return [*rules, *(ScaleShift(rule, 0.8, 0.1) for rule in rules)]


@fixed_examples
@given(broken, shares, constants, st.floats(0.0, 1.0))
def test_a_record_without_a_finite_bound_has_no_weight(unweighted, alpha, c, g):
    for rule in every_rule(c, g, unweighted)[1:]:
        if not (isinstance(rule, ScaleShift) and isinstance(rule.inner, Ones)):
            assert np.all(rule(unweighted, alpha, unweighted)[~np.isfinite(unweighted)] == 0.0)


@fixed_examples
@given(positive, constants)
def test_inverse_is_the_smaller_of_1_and_c_over_f_and_a_cap_that_over_the_present_bound(bound, c):
    slow = [min(1.0, c / f) for f in bound]
    np.testing.assert_allclose(Inverse(c)(bound, ONE, 7.0 * ONE), slow, rtol=1e-15)
    np.testing.assert_allclose(Cap(c)(7.0 * ONE, ONE, bound), slow, rtol=1e-15)


@fixed_examples
@given(bounds, constants, st.floats(0.0, 1.0))
@example(np.full(RECORDS, 7.0), 0.5, 0.25)
@example(np.arange(2.0, 2.0 + RECORDS), 0.5, 0.25)
def test_linear_is_the_published_formula(unweighted, c, g):
    low, high = min(unweighted), max(unweighted)
    scaled = [(f - low) / (high - low) if high > low else 0.0 for f in unweighted]
    slow = [min(1.0, max(0.0, c * (1.0 - s) + g)) for s in scaled]
    np.testing.assert_allclose(linear(c, unweighted, g)(unweighted, ONE, ONE), slow, rtol=1e-12, atol=1e-15)


@fixed_examples
@given(constants, bounds)
def test_scalar_gives_all_records_the_same_weight(alpha, unweighted):
    np.testing.assert_array_equal(Scalar(alpha)(unweighted, 0.3 * ONE, ONE), min(1.0, alpha))


@fixed_examples
@given(shares, bounds, st.floats(0.01, 2.0), st.floats(-1.0, 1.0))
def test_scale_and_shift_follow_the_inner_rule_and_are_clipped(alpha, unweighted, scale, shift):
    inner = Inverse(2.0)
    slow = np.clip(scale * inner(unweighted, alpha, ONE) + shift, 0.0, 1.0)
    np.testing.assert_allclose(ScaleShift(inner, scale, shift)(unweighted, alpha, ONE), slow, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_records_that_count_as_foreseen_make_a_fit_as_wide_as_a_current_files_draws_lie_about_the_references(alpha):
    """A normal mean from 40 records in both files. The variance of 20,000 distances has a relative error of .01: false
    alarms below 1e-6. Control: a posterior's own variance is less than two thirds of it."""
    rng, n = np.random.default_rng(7), 40
    now, before = (rng.normal(size=(20_000, n)).mean(axis=1) for _ in range(2))
    distance = now + rng.normal(size=len(now)) / np.sqrt(n * alpha) - before
    counted = float(for_later_files(np.full(n, alpha)).sum())
    assert abs(distance.var() * counted - 1.0) < 0.05
    assert 1.0 / (n * alpha) < distance.var() / 1.5


@fixed_examples
@given(shares, bounds)
def test_reweighting_leaves_zero_weights_at_zero_and_never_divides_by_zero(alpha, bound):
    found = Reweight(0.95, float((alpha * bound).max()))(ONE, alpha, bound)
    assert np.all(np.isfinite(found))
    assert np.all(found[alpha == 0.0] == 0.0)


def test_reweighting_is_silent_about_a_record_whose_bound_is_not_finite():
    """The record has α = 0, and 0 · ∞ is no number: it must neither warn (warnings are errors here) nor get a weight."""
    bound = np.array([2.0, np.inf, 1.0])
    found = Reweight(0.95, 2.0)(bound, np.array([1.0, 0.0, 0.5]), bound)
    np.testing.assert_allclose(found, [0.95, 0.0, 1.0])


@fixed_examples
@given(positive.map(lambda f: 1.0 + f / 1e6), st.floats(0.1, 0.9), st.floats(0.5, 1.0))
def test_reweighting_flattens_the_records_bounds_to_k_times_the_largest(bound, spread, k):
    """Where no weight reaches 1, α_i^w F_i is k Δ for every record; elsewhere it stays below."""
    alpha = np.linspace(spread / 20, spread, RECORDS)
    largest = float((alpha * bound).max())
    found = Reweight(k, largest)(ONE, alpha, bound)
    np.testing.assert_allclose((found * bound)[found < 1.0], k * largest, rtol=1e-12)
    assert np.all((found * bound)[found == 1.0] <= k * largest * (1 + 1e-12))


class Toy:
    """Fits by formula: F is given, and F(α) = `posterior(α)`, a stand-in for how α-weighting widens the posterior."""

    def __init__(self, unweighted, posterior):
        self.unweighted = np.asarray(unweighted, dtype=float)
        self.posterior = posterior
        self.steps = []
        self.found = []

    def run(self, weights, target, limit=500):
        """Drive the search to its end; keeps every step and the Δ it led to."""
        steps = search(weights, target)
        step = next(steps)
        alpha = bound = np.ones(len(self.unweighted))
        for number in range(limit):
            alpha = step(self.unweighted, alpha, bound)
            bound = self.unweighted if number == 0 else self.posterior(alpha)
            self.steps.append(step)
            self.found.append(float((alpha * bound).max()))
            summary = Summary(self.found[-1], float(self.unweighted.max()), float(self.unweighted.min()))
            try:
                step = steps.send(summary)
            except StopIteration:
                return alpha
        raise AssertionError("the search does not end")


F = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])


def widening(alpha):
    """F(α) grows as the weights shrink, as in a real fit, but αF(α) can be brought to any positive level."""
    return F * (1.0 + 0.3 * (1.0 - alpha.mean()))


def test_no_weights_are_one_fit():
    toy = Toy(F, widening)
    np.testing.assert_array_equal(toy.run(Weights(rule="none"), float("inf")), 1.0)
    assert toy.steps == [Ones()]


@pytest.mark.parametrize("rule", ["linear", "inverse", "scalar", "fixed_point"])
def test_the_weights_that_a_search_ends_with_are_not_needlessly_small(rule):
    """The bound met is close under the target: within 10 % for the rules whose weights it scales continuously."""
    toy = Toy(F, widening)
    toy.run(Weights(rule=rule), 1.8)
    assert toy.found[-1] >= 0.9 * 1.8


def test_the_fixed_point_is_reached_where_no_fit_can_move_it_further():
    toy = Toy(F, widening)
    alpha = toy.run(Weights(rule="fixed_point"), 1.8)
    np.testing.assert_allclose(alpha, np.minimum(1.0, MARGIN * 1.8 / widening(alpha)), rtol=2e-3)


def test_the_fixed_point_stops_at_the_first_fit_under_the_target():
    toy = Toy(F, widening)
    toy.run(Weights(rule="fixed_point"), 1.8)
    assert all(found > 1.8 for found in toy.found[:-1])
    assert toy.steps[1:] == [Cap(MARGIN * 1.8)] * (len(toy.steps) - 1)


def test_an_unweighted_fit_under_the_target_is_left_alone():
    toy = Toy(F, widening)
    np.testing.assert_array_equal(toy.run(Weights(rule="fixed_point"), 16.0), 1.0)
    assert toy.steps == [Ones()]


def test_the_fixed_point_gives_up_after_forty_steps():
    """A posterior that widens as fast as the weights shrink has no fixed point: α F(α) stays at 2.57."""
    toy = Toy(F, lambda alpha: 2.57 / alpha)
    with pytest.raises(NotReached, match="40 steps"):
        toy.run(Weights(rule="fixed_point"), 1.8)
    assert len(toy.steps) == 1 + MAX_STEPS


def test_the_fortieth_step_may_still_succeed():
    fits = iter([3.0] * (MAX_STEPS - 1) + [1.0])
    toy = Toy(F, lambda alpha: next(fits) / alpha)
    toy.run(Weights(rule="fixed_point"), 1.8)
    assert len(toy.steps) == 1 + MAX_STEPS


def non_monotone(alpha):
    """Δ(c) passes in a valley, fails below it and passes again far down: not monotone in c."""
    level = alpha.max()
    wave = 1.0 + 1.5 * np.exp(-(((level - 0.2) / 0.05) ** 2))
    return F * wave


@pytest.mark.parametrize("target", [0.5, 1.2, 1.8, 2.5, 4.0, 6.0, 9.0])
@pytest.mark.parametrize("rule", ["linear", "inverse", "scalar"])
@pytest.mark.parametrize("adjusted", [{}, {"reweight": 0.95}])
def test_a_scan_then_bisection_ends_on_a_passing_fit_even_where_the_bound_is_not_monotone(rule, target, adjusted):
    toy = Toy(F, non_monotone)
    toy.run(Weights(rule=rule, **adjusted), target)
    assert toy.found[-1] <= target


def test_a_scan_takes_the_first_constant_if_it_passes():
    toy = Toy(F, lambda alpha: F)
    toy.run(Weights(rule="inverse"), 1.8)
    assert toy.steps == [Ones(), Inverse(1.8)]


def test_bisection_finds_the_largest_constant_of_a_monotone_bound():
    """Δ(c) = 8c for the scalar rule's second fit; the last interval of the scan, 15 % wide, is halved eight times."""
    toy = Toy(np.array([4.0, 1.0]), lambda alpha: np.array([8.0, 1.0]))
    alpha = toy.run(Weights(rule="scalar"), 2.0)
    assert 0.25 * (1 - 0.18 / 2**8) <= alpha[0] <= 0.25


@pytest.mark.parametrize("rule", ["linear", "inverse", "scalar"])
def test_a_scan_gives_up_where_no_constant_passes(rule):
    toy = Toy(F, lambda alpha: 5.0 / np.maximum(alpha, 1e-12))
    with pytest.raises(NotReached, match="no constant c"):
        toy.run(Weights(rule=rule), 1.8)


@pytest.mark.parametrize(("rule", "c"), [("linear", 0.05), ("inverse", 1.0)])
def test_a_given_constant_is_used_as_it_is(rule, c):
    toy = Toy(F, lambda alpha: F)
    alpha = toy.run(Weights(rule=rule, c=c), 1.8)
    expected = Inverse(c) if rule == "inverse" else Linear(c, 0.0, 0.5, 16.0)
    assert toy.steps == [Ones(), expected]
    np.testing.assert_array_equal(alpha, expected(F, ONE, F))


@pytest.mark.parametrize(("rule", "c"), [("linear", 1.0), ("inverse", 3.0)])
def test_a_given_constant_over_the_target_is_refused(rule, c):
    toy = Toy(F, widening)
    with pytest.raises(NotReached, match=f"c = {c:g}"):
        toy.run(Weights(rule=rule, c=c), 1.8)
    assert len(toy.steps) == 2


def test_with_scale_and_shift_the_adjusted_weights_meet_the_target():
    toy = Toy(F, widening)
    alpha = toy.run(Weights(rule="inverse", scale=0.5, shift=0.01), 1.8)
    assert isinstance(toy.steps[-1], ScaleShift)
    np.testing.assert_array_equal(alpha, toy.steps[-1](F, ONE, F))
    assert toy.found[-1] <= 1.8


def test_with_reweighting_every_step_is_followed_by_its_reweighting_at_its_own_bound():
    toy = Toy(F, lambda alpha: F)
    toy.run(Weights(rule="inverse", c=1.0, reweight=0.9), 1.8)
    assert toy.steps == [Ones(), Inverse(1.0), Reweight(0.9, toy.found[1])]


def test_a_target_that_is_not_met_after_reweighting_is_not_met():
    """The step passes, its re-weighting does not: the search must judge the weights that would be used."""
    fits = iter([1.0, 100.0])
    toy = Toy(F, lambda alpha: F * next(fits))
    with pytest.raises(NotReached):
        toy.run(Weights(rule="inverse", c=1.0, reweight=0.9), 1.8)


def unmeasurable(weights):
    """Run a search whose every weighted fit has a bound that is not a number."""
    steps = search(weights, 1.8)
    next(steps)
    steps.send(Summary(9.0, 9.0, 1.0))
    for _ in range(200):
        steps.send(Summary(float("nan"), 9.0, 1.0))


@pytest.mark.parametrize("rule", ["linear", "inverse", "scalar", "fixed_point"])
def test_a_bound_that_is_not_a_number_never_counts_as_met(rule):
    """With a given constant; without one, `dpdist.testing` asks it of every rule."""
    with pytest.raises(NotReached):
        unmeasurable(Weights(rule=rule, c=0.5))


outcomes = arrays(float, RECORDS, elements=st.floats(-100.0, 100.0))


@fixed_examples
@given(outcomes, st.sampled_from([0.1, 0.2, 0.3]), constants, st.floats(0.0, 0.5))
def test_cluster_counts_the_records_outside_a_relative_radius(y, radius, c, g):
    """[V]: the ball is closed and the record itself lies inside; pairs one by one are the oracle."""
    outside = [np.mean([abs(other - own) > radius * abs(own) * (1 + 1e-12) for other in y]) for own in y]
    nearly = np.abs(np.abs(y[:, None] - y) - radius * np.abs(y)[:, None]) < 1e-9 * (1 + np.abs(y)[:, None])
    rule = applied_to(with_outcomes(Cluster(c, g, radius), np.sort(y)), y[:, None])
    found, slow = rule(ONE, ONE, ONE), np.clip(c * (1.0 - np.array(outside)) + g, 0.0, 1.0)
    sure = ~(nearly & ~np.eye(RECORDS, dtype=bool)).any(axis=1) | (y == 0.0)
    np.testing.assert_allclose(found[sure & (y != 0)], slow[sure & (y != 0)], atol=1e-12)
    assert np.all((found >= 0.0) & (found <= 1.0))


def test_cluster_weights_come_through_other_steps_and_blocks_see_the_whole_stratum():
    y = np.array([1.0, 1.1, 1.2, 9.0])
    step = with_outcomes(ScaleShift(Cluster(1.0, 0.0, 0.2), 0.5, 0.1), np.sort(y))
    whole = applied_to(step, y[:, None])(np.ones(4), np.ones(4), np.ones(4))
    np.testing.assert_allclose(whole, 0.1 + 0.5 * np.array([0.75, 0.75, 0.75, 0.25]))
    np.testing.assert_array_equal(whole[2:], applied_to(step, y[2:, None])(np.ones(2), np.ones(2), np.ones(2)))


@fixed_examples
@given(bounds, st.floats(0.1, 5.0))
def test_truncation_takes_all_weight_where_the_weighted_bound_is_over_the_limit(unweighted, limit):
    """Weighted-e [G]: α F under the unweighted fit, α before re-weighting."""
    inner = linear(1.0, unweighted)
    step, alpha = TruncatedWeights(inner, limit), inner(unweighted, ONE, ONE)
    over = alpha * unweighted > limit
    np.testing.assert_array_equal(step(unweighted, ONE, ONE), np.where(over, 0.0, alpha))
    assert step.truncated(unweighted) == over.sum()


def test_fixed_constants_take_two_fits_whatever_the_bound():
    steps = fixed(Weights(rule="linear", c=0.8, scale=0.5), 1.5)
    assert isinstance(next(steps), Ones)
    second = steps.send(Summary(9.0, 9.0, 1.0))
    assert second == TruncatedWeights(ScaleShift(Linear(0.8, 0.0, 1.0, 9.0), 0.5, 0.0), 1.5)
    with pytest.raises(StopIteration):
        steps.send(Summary(9.0, 9.0, 1.0))


@pytest.mark.parametrize("alpha", [[0.5, -1e-9], [0.5, 1.0 + 1e-9], [0.5, np.nan], [0.5]], ids=str)
def test_weights_of_a_rule_that_have_no_bound_are_refused(alpha):
    """A negative one, one above 1, none, and too few. Control: others are kept."""

    class Stated(Constant):
        def __call__(self, *_):
            return np.array(alpha)

    outcomes = np.ones((2, 1))
    with pytest.raises(ValueError, match="privacy weights"):
        weigh(Stated(0.5), outcomes, {})
    assert (weigh(Constant(0.5), outcomes, {}) == 0.5).all(), "control"
