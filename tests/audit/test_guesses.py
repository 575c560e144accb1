"""An attacker who guesses files of releases: alarms are as rare as stated, and half the noise is found by few runs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from dpdist.audit.auditing import ALARM
from dpdist.core.records import Floats
from dpdist.studies.black_box import bound_of_guesses, learn_rule, most_shown, p_value, runs_to_exceed

NOISE = 20
"""Figures that tell nothing, of many sizes."""


def releases(second: Floats, loss: float, rng: np.random.Generator) -> Floats:
    """One figure under Laplace noise that loses this ε, three copies of it, a rounded one, and others that tell nothing."""
    figure = rng.laplace(size=len(second)) + loss * second
    copies = [figure * 3.0 + 7.0, -figure, np.exp(figure / 4.0), np.rint(figure)]
    others = rng.laplace(size=(len(second), NOISE)) * 10.0 ** rng.uniform(-3, 9, NOISE)
    return np.column_stack([np.ones(len(second)), *copies, others])


def trial(runs: int, loss: float, claimed: float, rng: np.random.Generator) -> tuple[float, float]:
    """p and bound by as many runs for learning as for guessing."""
    sides = np.concatenate([np.arange(runs) % 2, rng.integers(0, 2, runs)])
    table = releases(sides, loss, rng)
    right, guesses = learn_rule(table[:runs:2], table[1:runs:2]).guesses(table[runs:], sides[runs:])
    return p_value(right, guesses, runs, claimed), bound_of_guesses(right, guesses, runs)


def ideal(runs: int, loss: float, claimed: float, rng: np.random.Generator) -> float:
    """p of an attacker who knows both laws, and guesses outside the middle fifth."""
    second = rng.integers(0, 2, runs)
    score = rng.laplace(size=runs) + loss * (second - 0.5)
    guessed = np.abs(score) > 0.8
    return p_value(int((guessed & ((score > 0) == second)).sum()), int(guessed.sum()), runs, claimed)


def test_half_the_noise_is_found_by_little_more_than_the_fewest_runs() -> None:
    """ε = 2 for a claim of 1: with p < .01 by 200 runs of the ideal attacker in .96, by 300 of this one in .95 of trials.

    If these shares are right, each of the two limits is missed in 2 of 10,000 tests at most.
    """
    rng = np.random.default_rng(11)
    assert np.mean([ideal(200, 2.0, 1.0, rng) < 0.01 for _ in range(400)]) > 0.92
    assert np.mean([trial(300, 2.0, 1.0, rng)[0] < 0.01 for _ in range(40)]) > 0.78


def test_files_that_every_release_tells_apart_are_told_apart_by_thirty() -> None:
    """ε = 20 for a claim of 1. When cuts lay at the ends of gaps, 9 of 400 trials missed it; 3 here need over 1 in 200."""
    rng = np.random.default_rng(13)
    assert sum(trial(30, 20.0, 1.0, rng)[1] <= 1.0 for _ in range(200)) <= 2


def test_the_right_noise_is_found_no_more_often_than_stated() -> None:
    """The pair attains its ε, so no attacker has a larger alarm rate; 120 tests at 5 % have over 16 in 1 of 9,000.

    A bound is above the truth just as often as p is below the alarm rate.
    """
    rng = np.random.default_rng(12)
    outcomes = [trial(100, 1.0, 1.0, rng) for _ in range(120)]
    alarms = sum(p <= ALARM for p, _ in outcomes)
    assert alarms <= 16
    assert alarms == sum(bound >= 1.0 for _, bound in outcomes)


def test_the_number_of_right_guesses_is_held_against_the_binomial_law() -> None:
    """Under a claim of 0 a guess is right half of the time; δ takes the runs that it may lose."""
    assert p_value(9, 10, 10, 0.0) == pytest.approx(11 / 1024)
    assert p_value(0, 0, 10, 0.0) == 1.0
    assert bound_of_guesses(5, 10, 10) == 0.0
    least = scipy.stats.beta.ppf(ALARM, 90, 11)
    assert bound_of_guesses(90, 100, 100) == pytest.approx(np.log(least / (1.0 - least)))
    assert p_value(90, 100, 100, 1.0, delta=1e-3) > p_value(90, 100, 100, 1.0)
    assert 0.0 < bound_of_guesses(90, 100, 100, delta=1e-3) < bound_of_guesses(90, 100, 100)


@pytest.mark.parametrize(("claimed", "delta"), [(0.1, 0.0), (1.0, 0.0), (3.0, 0.0), (6.0, 0.0), (2.0, 1e-6)])
def test_the_fewest_runs_that_can_show_more_are_stated(claimed: float, delta: float) -> None:
    fewest = runs_to_exceed(claimed, delta)
    assert most_shown(fewest, delta) > claimed
    assert delta > 0.0 or most_shown(fewest - 1) <= claimed
    assert bound_of_guesses(fewest, fewest, fewest, delta) == pytest.approx(most_shown(fewest, delta), rel=1e-9)


def test_releases_that_are_all_alike_teach_nothing() -> None:
    alike = np.ones((20, 3))
    right, guesses = learn_rule(alike, alike).guesses(np.ones((40, 3)), np.arange(40) % 2)
    assert p_value(right, guesses, 40, 1.0) > 0.9
    assert learn_rule(alike[:, :0], alike[:, :0]).guesses(np.ones((4, 0)), np.zeros(4))[0] <= 4
