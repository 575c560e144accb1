"""Guarantees: exact budgets, and the bound's constants against the exact privacy loss on finite parameter spaces."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpdist.privacy.guarantees import (
    Asymptotic,
    NoGuarantee,
    Strict,
    bound_target,
)

fixed = settings(derandomize=True, deadline=None)
budgets = st.fractions(min_value=Fraction(1, 1000), max_value=1000)
ADJACENCIES = ("zero_out", "add_remove", "substitution")
SPACES = 400


@pytest.mark.parametrize(("adjacency", "share"), [("zero_out", 2), ("add_remove", 2), ("substitution", 4)])
@given(epsilon=budgets)
@fixed
def test_the_target_is_a_half_of_epsilon_and_a_quarter_under_substitution(epsilon, adjacency, share):
    assert bound_target(epsilon, adjacency) == float(epsilon / share)


@fixed
@given(budgets, st.integers(1, 50), st.sampled_from(ADJACENCIES))
def test_sets_multiply_the_budget_exactly(epsilon, sets, adjacency):
    total = Asymptotic(adjacency, epsilon).sets(sets)
    assert total == Asymptotic(adjacency, sets * epsilon)
    assert Asymptotic(adjacency, total.epsilon / sets) == Asymptotic(adjacency, epsilon)


@fixed
@given(budgets)
def test_exchanging_a_record_costs_two_zero_outs(epsilon):
    assert Asymptotic("zero_out", epsilon).substitution_epsilon == 2 * epsilon
    assert Asymptotic("add_remove", epsilon).substitution_epsilon == 2 * epsilon
    assert Asymptotic("substitution", epsilon).substitution_epsilon == epsilon
    table = Strict("zero_out", epsilon, exchange=Fraction(1))
    assert table.substitution_epsilon == table.sets(3).substitution_epsilon / 3 == epsilon
    both = table + Strict("zero_out", 2 * epsilon)
    assert (both.epsilon, both.substitution_epsilon) == (3 * epsilon, 5 * epsilon)


@fixed
@given(budgets)
def test_the_target_of_a_zero_out_budget_serves_its_substitution_budget(epsilon):
    """One bound Δ*, two statements of it."""
    guarantee = Asymptotic("zero_out", epsilon)
    assert bound_target(epsilon, "zero_out") == bound_target(guarantee.substitution_epsilon, "substitution")


def test_a_budget_is_written_exactly():
    assert Asymptotic("zero_out", Fraction("10.8")).losses["epsilon"] == "10.8"
    assert Asymptotic("zero_out", Fraction("10.8") / 3).losses["epsilon"] == "3.6"
    assert Asymptotic("zero_out", Fraction(10) / 3).losses["epsilon"] == "10/3"
    assert NoGuarantee().losses == {}


GUARANTEES = (Strict("zero_out", Fraction(1)), Asymptotic("zero_out", Fraction(1)), NoGuarantee())


def test_a_guarantee_cannot_be_changed():
    for guarantee in GUARANTEES[:2]:
        with pytest.raises(FrozenInstanceError):
            guarantee.epsilon = Fraction(2)


@pytest.mark.parametrize(("one", "other"), list(permutations(GUARANTEES, 2)))
def test_guarantees_of_different_classes_have_no_sum(one, other):
    with pytest.raises(TypeError):
        one + other


@fixed
@given(budgets, budgets, st.integers(1, 20))
def test_guarantees_of_one_class_add_up(first, second, sets):
    for kind in (Strict, Asymptotic):
        one, other = kind("zero_out", first), kind("zero_out", second)
        assert (one + other).epsilon == first + second
        assert sum([one] * (sets - 1), start=one) == one.sets(sets)


def test_the_same_class_under_other_neighbours_has_no_sum():
    with pytest.raises(ValueError, match="different adjacencies"):
        Strict("zero_out", Fraction(1)) + Strict("substitution", Fraction(1))


def test_delta_adds_up_and_stays_unknown_once_it_is():
    known, unknown = Strict("zero_out", Fraction(1), Fraction(1, 10)), Strict("zero_out", Fraction(1), None)
    assert (known + known).delta == known.sets(2).delta == Fraction(1, 5)
    assert [found.delta for found in (known + unknown, unknown.sets(3))] == [None] * 2
    assert (known.name, unknown.name) == ("strict", "strict for exact draws")
    assert [g.delta_text for g in (known, unknown, GUARANTEES[0])] == ["0.1", None, "0"]


def log_posterior(log_prior, utilities):
    """log of the distribution on a grid ∝ prior · exp Σ utilities; utilities (record, θ)."""
    total = log_prior + utilities.sum(axis=0)
    return total - np.logaddexp.reduce(total)


def exact_losses(bound, adjacency):
    """Worst |log ratio| over θ on random finite spaces, where every α_i f_i(θ) lies in ±bound, one loss a space.

    From two to five θ, up to four further records, priors as uneven as e^±12: so that the one record that changes can meet
    a θ that the others make rare. Utilities are at the ends of the range, where the loss is largest.
    """
    rng = np.random.default_rng(11)
    losses = []
    for _ in range(SPACES):
        points, others = rng.integers(2, 6), rng.integers(0, 5)
        log_prior = rng.uniform(-12.0, 12.0, points)
        utilities = bound * rng.choice([-1.0, 1.0], (others + 1, points))
        neighbour = utilities.copy()
        neighbour[0] = 0.0 if adjacency != "substitution" else bound * rng.choice([-1.0, 1.0], points)
        if adjacency == "add_remove":
            neighbour = utilities[1:]
        losses.append(np.abs(log_posterior(log_prior, utilities) - log_posterior(log_prior, neighbour)).max())
    return np.array(losses)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [Fraction(1, 10), Fraction(1), Fraction(18, 5)])
def test_a_bound_at_the_target_costs_at_most_epsilon_and_the_constant_is_attained(epsilon, adjacency):
    """No chance involved: the losses are exact. Control: a bound 10 % over the target costs more than ε on some space."""
    target = bound_target(epsilon, adjacency)
    losses = exact_losses(target, adjacency)
    assert losses.max() <= float(epsilon) * (1 + 1e-12)
    assert losses.max() >= 0.95 * float(epsilon)
    assert exact_losses(1.1 * target, adjacency).max() > float(epsilon)


def test_a_zero_out_target_would_not_do_for_substitution():
    """[G] clamps at ε/2 under substitution, which costs 2ε: the constants differ by adjacency for a reason."""
    losses = exact_losses(bound_target(Fraction(1), "zero_out"), "substitution")
    assert 1.9 < losses.max() <= 2.0 + 1e-12


def test_the_losses_of_independent_draws_add_up_to_the_budget_of_all_sets():
    """Exact on the product space of three draws; control: two sets' budget."""
    per_set = Asymptotic("zero_out", Fraction(1))
    target = bound_target(per_set.epsilon, per_set.adjacency)
    log_prior, utility = np.array([-9.0, 0.0]), target * np.array([[1.0, -1.0]])
    one = log_posterior(log_prior, utility) - log_posterior(log_prior, 0 * utility)
    three = (one[:, None, None] + one[:, None] + one).ravel()
    assert 0.95 * 3 <= np.abs(three).max() <= float(per_set.sets(3).epsilon)
    assert np.abs(three).max() > float(per_set.sets(2).epsilon)
