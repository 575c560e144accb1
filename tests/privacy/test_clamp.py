"""Clamped likelihoods on finite parameter spaces, where the privacy loss is exact (METHODS §2, §4, §4b)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpdist.privacy.guarantees import bound_target
from dpdist.privacy.weights import Linear, Reweight

SPACES = 300
EPSILONS = (Fraction(1, 4), Fraction(1), Fraction(5))


def log_posterior(log_prior, utilities):
    """log of the distribution ∝ prior · exp Σ utilities; utilities (record, θ)."""
    total = log_prior + utilities.sum(axis=0)
    return total - np.logaddexp.reduce(total)


def clamped(f, alpha, offset, clamp):
    return np.clip(alpha[:, None] * (f - offset[:, None]), -clamp, clamp)


def loss(log_prior, one, other):
    return np.abs(log_posterior(log_prior, one) - log_posterior(log_prior, other)).max()


def worst_loss(clamp, adjacency, weights=None):
    """Largest exact loss over random spaces: log likelihoods of any size, α and offset as functions of the record alone."""
    rng = np.random.default_rng(4)
    worst = 0.0
    for _ in range(SPACES):
        points, others = rng.integers(2, 6), rng.integers(0, 6)
        log_prior = rng.uniform(-12.0, 12.0, points)
        f = rng.normal(0.0, 10.0 ** rng.uniform(-1, 3), (others + 2, points))
        alpha, offset = rng.uniform(0.3, 1.0, others + 2), rng.normal(0.0, 0.1, others + 2)
        utilities = clamped(f, alpha, offset, clamp)
        data, exchanged = utilities[1:], np.vstack([utilities[:1], utilities[2:]])
        if adjacency == "zero_out":
            exchanged = np.vstack([np.zeros(points), utilities[2:]])
        if adjacency == "add_remove":
            exchanged = utilities[2:]
        worst = max(worst, loss(log_prior, data, exchanged))
    return worst


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "substitution"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_clamp_costs_at_most_epsilon_and_nearly_that(epsilon, adjacency):
    """Control: a clamp that is 1.1 times as wide costs more than ε on some space."""
    clamp = bound_target(epsilon, adjacency)
    assert 0.95 * float(epsilon) <= worst_loss(clamp, adjacency) <= float(epsilon) * (1 + 1e-12)
    assert worst_loss(1.1 * clamp, adjacency) > float(epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_half_of_epsilon_is_too_wide_for_substitution(epsilon):
    """[G] defines neighbours by substitution and clamps at ±ε/2: the loss reaches 2ε; ±ε/4 is what it takes."""
    assert 1.9 * float(epsilon) < worst_loss(bound_target(epsilon, "zero_out"), "substitution") <= 2 * float(epsilon) + 1e-9


@pytest.mark.parametrize("records", [10, 100, 1000])
def test_weights_from_the_file_itself_break_the_bound_whatever_the_clamp(records):
    """Why `strict` refuses weights learned on the current file: the loss grows with n while every factor stays clamped.

    Min-max weights (LW): one record with the largest F, whose own likelihood tells nothing of θ, sets the scale of all
    others' weights. Without it they are the riskiest, and get α = 0. With re-weighting as well.
    """
    epsilon, ordinary, log_prior = 1.0, np.array([-0.45, -0.5]), np.zeros(2)
    clamp = bound_target(Fraction(1), "zero_out")
    smallest, extreme = np.array([-0.1, -0.1]), np.array([-9.0, -9.0])
    f = np.vstack([smallest, np.tile(ordinary, (records, 1)), extreme])

    def weighted(f, reweighted):
        bound = np.abs(f).max(axis=1)
        alpha = Linear(1.0, 0.0, bound.min(), bound.max())(bound, np.ones(len(f)), bound)
        if reweighted:
            alpha = Reweight(0.95, (alpha * bound).max())(bound, alpha, bound)
        return clamped(f, alpha, np.zeros(len(f)), clamp)

    for reweighted in (False, True):
        found = loss(log_prior, weighted(f, reweighted), weighted(f[:-1], reweighted))
        assert found > 0.01 * records * epsilon
    fixed = np.ones(len(f))
    without = clamped(f[:-1], fixed[:-1], fixed[:-1] * 0, clamp)
    assert loss(log_prior, clamped(f, fixed, fixed * 0, clamp), without) <= epsilon


def test_weights_from_a_reference_are_a_function_of_the_record_and_keep_the_bound():
    """The same records under α learned elsewhere: min F and max F are constants then."""
    rng, clamp, worst = np.random.default_rng(5), bound_target(Fraction(1), "zero_out"), 0.0
    for _ in range(SPACES):
        log_prior, f = rng.uniform(-9, 9, 3), rng.normal(-2.0, 2.0, (8, 3))
        bound = np.abs(f).max(axis=1)
        alpha = Linear(1.0, 0.0, 0.5, 6.0)(bound, np.ones(8), bound)
        u = clamped(f, alpha, np.zeros(8), clamp)
        worst = max(worst, loss(log_prior, u, u[1:]))
    assert 0.5 < worst <= 1.0


def test_an_offset_of_the_record_alone_cancels_from_the_posterior_and_tightens_the_range():
    """METHODS §2: (i) an unclamped posterior is the same; (ii) the loss is at most the range, far below 2 max |f|."""
    rng = np.random.default_rng(6)
    for _ in range(50):
        log_prior, f, offset = rng.normal(size=4), rng.normal(-8.0, 0.4, (6, 4)), rng.normal(size=6)
        plain, shifted = log_posterior(log_prior, f), log_posterior(log_prior, f - offset[:, None])
        np.testing.assert_allclose(plain, shifted, atol=1e-10)
        own = f[0].max() - f[0].min()
        assert loss(log_prior, f, f[1:]) <= own + 1e-12 < 2 * np.abs(f[0]).max()


def test_an_offset_learned_on_the_file_itself_breaks_the_bound():
    """Centred at the file's own best θ, which one record decides here, all n records move: the control of METHODS §4b."""
    clamp, pair = bound_target(Fraction(1), "zero_out"), np.array([[0.0, -1.0, -0.9], [-1.0, 0.0, -3.0]])
    records = np.vstack([np.tile(pair, (40, 1)), pair[1]])

    def utilities(f, centre):
        return np.clip(f - f[:, [centre]], -clamp, clamp)

    own = [utilities(f, int(f.sum(axis=0).argmax())) for f in (records, records[:-1])]
    assert loss(np.zeros(3), *own) > 10.0
    for centre in range(3):
        assert loss(np.zeros(3), utilities(records, centre), utilities(records[:-1], centre)) <= 1.0
