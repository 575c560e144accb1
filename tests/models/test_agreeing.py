"""Records made to agree with a cell's released means: exactly, whatever they are; nothing leaves its public bounds."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpdist.mechanisms.tables import calibration
from dpdist.mechanisms.tables.calibration import LARGEST_WEIGHT_RATIO, Domain, agree

VALUES = st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0, 100), st.floats(-50, 50)), min_size=1, max_size=40)
DOMAINS = (Domain(0.0, 100.0), Domain(-50.0, 50.0))
SHARE = st.floats(0, 1)


@given(VALUES, st.floats(0.01, 1e5), SHARE, SHARE, st.booleans(), st.booleans(), st.booleans())
def test_means_are_met_whatever_they_are(
    rows: list[tuple[float, float, float]],
    mean_weight: float,
    first: float,
    second: float,
    weighted: bool,
    rounded: bool,
    kept: bool,
) -> None:
    """To 1e-9 of the range; weights stay positive, outcomes within their bounds; atoms and a grid `kept` or not."""
    table = np.array(rows)
    weight, outcomes = table[:, 0], np.round(table[:, 1:], -1 if rounded else 6)
    means = np.array([100.0 * first, 100.0 * second - 50.0])
    domains = DOMAINS
    if kept:
        domains = tuple(Domain.of(y, (each.low, each.top), False) for y, each in zip(outcomes.T, DOMAINS, strict=True))
    found, moved = agree(weight, outcomes, mean_weight, means, domains, weighted)
    total = mean_weight if weighted else 1.0
    assert found.mean() == pytest.approx(total, rel=1e-12)
    assert (found > 0).all()
    np.testing.assert_allclose(np.average(moved, weights=found, axis=0), means, atol=1e-9 * 100.0)
    for column, domain in zip(moved.T, DOMAINS, strict=True):
        assert (column >= domain.low).all()
        assert (column <= domain.top).all()


def test_where_weights_can_do_it_outcomes_stay_and_weights_move_little() -> None:
    rng = np.random.default_rng(1)
    weight, outcome = np.exp(rng.normal(4, 1, 500)), np.round(rng.gamma(2, 30, (500, 1)), -1).clip(0, 100)
    mean = np.average(outcome, weights=weight, axis=0) * 1.02
    found, moved = agree(weight, outcome, 70.0, mean, DOMAINS[:1], True)
    np.testing.assert_array_equal(moved, outcome)
    ratio = found / weight
    assert ratio.max() / ratio.min() < 1.3 < LARGEST_WEIGHT_RATIO


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.floats(0.15, 0.85))
def test_yes_and_no_stay_yes_and_no_where_their_share_can_be_had(votes: list[bool], share: float) -> None:
    """Also where all vote alike."""
    outcome = np.array(votes, dtype=float)[:, None]
    found, moved = agree(np.ones(len(votes)), outcome, 3.0, np.array([share]), (Domain(0.0, 1.0, True),), True)
    assert np.average(moved[:, 0], weights=found) == pytest.approx(share, rel=1e-9)
    assert set(moved[:, 0]) == {0.0, 1.0}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.floats(-0.5, 9.5), st.booleans())
def test_whole_numbers_stay_whole_and_without_weights_come_as_near_as_they_can(
    numbers: list[int], mean: float, votes: bool
) -> None:
    """To half a record's worth; control: values that may be any number meet the mean, and are not whole."""
    top = 1.0 if votes else 9.0
    outcome = np.minimum(np.array(numbers, dtype=float), top)[:, None]
    ones, one = np.ones(len(numbers)), np.array([mean / 9.0 * top])
    weight, moved = agree(ones, outcome, 1.0, one, (Domain(0.0, top, True),), False)
    within = min(max(float(one[0]), 0.0), top)
    assert (weight == 1.0).all()
    assert (moved == np.rint(moved)).all()
    assert ((moved >= 0.0) & (moved <= top)).all()
    assert abs(moved.sum() - within * len(moved)) <= 0.5 + 1e-6
    _, free = agree(ones, outcome, 1.0, one, (Domain(0.0, top),), False)
    assert free.mean() == pytest.approx(within, abs=1e-8)


@given(st.integers(0, 2**32), st.integers(2, 4), st.floats(0.12, 0.88))
def test_a_yes_or_no_of_few_records_stays_one_beside_another_outcome(seed: int, records: int, share: float) -> None:
    """Both means are met: by weights for the yes or no, and by values for the other outcome."""
    rng = np.random.default_rng(seed)
    weight, votes = np.exp(rng.normal(4.0, 0.3, records)), (rng.random(records) < 0.5).astype(float)
    outcomes = np.column_stack([rng.uniform(10.0, 90.0, records), votes])
    means = np.array([rng.uniform(20.0, 70.0), share])
    found, moved = agree(weight, outcomes, 60.0, means, (Domain(0.0, 100.0), Domain(0.0, 1.0, True)), True)
    assert np.isin(moved[:, 1], (0.0, 1.0)).all()
    np.testing.assert_allclose(np.average(moved, weights=found, axis=0), means, atol=1e-7)


def test_no_more_answers_change_than_must() -> None:
    votes = np.tile([1.0, 0.0, 0.0, 1.0], 25)[:, None]
    _, moved = agree(np.ones(100), votes, 1.0, np.array([0.553]), (Domain(0.0, 1.0, True),), False)
    assert (moved != votes).sum() == 5
    assert moved.sum() == 55


def test_counts_that_weights_cannot_bring_to_their_mean_stay_whole() -> None:
    rng = np.random.default_rng(3)
    weight, count = np.exp(rng.normal(3, 0.2, 50)), rng.poisson(1.0, (50, 1)).astype(float)
    found, moved = agree(weight, count, 20.0, np.array([6.3]), (Domain(0.0, 20.0, True),), True)
    assert (moved == np.rint(moved)).all()
    assert np.average(moved[:, 0], weights=found) == pytest.approx(6.3, rel=1e-9)


def test_a_yes_or_no_stays_one_where_weights_nearly_have_its_mean() -> None:
    """Means 1e-3 to 1e-12 away from those of the weights as they are: weights alone meet them."""
    rng = np.random.default_rng(9)
    for away in 10.0 ** -np.arange(3.0, 13.0):
        for _ in range(20):
            weight, outcome = np.exp(0.5 * rng.standard_normal(900)), (rng.random((900, 1)) < 0.06).astype(float)
            means = np.array([np.average(outcome[:, 0], weights=weight) * (1.0 + away)])
            found, moved = agree(weight, outcome, 3.0, means, (Domain(0.0, 1.0, True),), True)
            assert np.isin(moved, (0.0, 1.0)).all()
            assert np.average(moved[:, 0], weights=found) == pytest.approx(means[0], rel=1e-9)


def test_a_single_record_has_the_released_means_to_the_bit() -> None:
    weight, moved = agree(np.array([37.0]), np.array([[12.0, 0.0]]), 0.7, np.array([61.3, 0.1]), DOMAINS, True)
    assert weight.tolist() == [0.7]
    assert moved.tolist() == [[61.3, 0.1]]


def test_no_weights_are_sought_for_a_mean_beyond_all_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: they are sought for a mean between the outcomes."""
    calls, step = [], calibration._newton_step
    monkeypatch.setattr(calibration, "_newton_step", lambda *args: calls.append(1) or step(*args))
    weight, outcome = np.array([20.0, 30.0, 40.0]), np.array([[50.0], [60.0], [70.0]])
    steps = []
    for mean in (65.0, 80.0):
        calls.clear()
        tilted, moved = agree(weight, outcome, 30.0, np.array([mean]), DOMAINS[:1], True)
        np.testing.assert_allclose(np.average(moved[:, 0], weights=tilted), mean, rtol=1e-12)
        steps.append(len(calls))
    assert steps[0] > 0
    assert steps[1] == 0


def test_without_a_step_outcomes_move_and_have_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one of a hundred thousand cells the linear solution of a step failed, and with it the release, already charged."""
    rng = np.random.default_rng(5)
    weight, outcomes = rng.uniform(1.0, 9.0, 40), rng.lognormal(3.0, 1.0, (40, 3))
    means = 1.05 * np.average(outcomes, weights=weight, axis=0)
    monkeypatch.setattr(np.linalg, "lstsq", Mock(side_effect=np.linalg.LinAlgError("SVD did not converge")))
    moved_weight, moved = agree(weight, outcomes, 5.0, means, (Domain(0.0, 1e4),) * 3, True)
    np.testing.assert_allclose(np.average(moved, weights=moved_weight, axis=0), means)
    assert moved_weight.mean() == pytest.approx(5.0)
