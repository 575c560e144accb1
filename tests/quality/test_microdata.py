"""Utility of microdata: measures against definitions written out by brute force, and their ends."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import minimize

from dpdist.quality.microdata import (
    LADDER,
    RecordCodes,
    Regression,
    equivalent_share,
    fitted,
    indicators,
    k_marginal_score,
    logistic,
    microdata_measures,
    overlap,
    propensity,
    subsample_scores,
    total_variation,
)

SIZES = (2, 3, 4)


def file(seed: int, n: int = 300, tilt: float = 0.0) -> RecordCodes:
    rng = np.random.default_rng(seed)
    first = (rng.random(n) < 0.4 + tilt).astype(int)
    second = rng.binomial(2, 0.3 + 0.3 * first)
    third = rng.integers(0, 4, n)
    return RecordCodes(np.column_stack([first, second, third]), SIZES, rng.gamma(2.0, 3.0, n))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_total_variation_is_half_the_sum_of_absolute_differences_of_weighted_shares(order: int) -> None:
    one, other = file(1), file(2, tilt=0.2)
    for found, key in zip(total_variation(one, other, order), combinations(range(3), order), strict=True):
        apart = 0.0
        for cell in product(*(range(SIZES[k]) for k in key)):
            shares = []
            for each in (one, other):
                inside = np.all(each.codes[:, list(key)] == cell, axis=1)
                shares.append(each.weight[inside].sum() / each.weight.sum())
            apart += abs(shares[0] - shares[1])
        assert found == pytest.approx(apart / 2)


def test_equal_files_are_at_0_and_files_without_a_common_cell_at_1() -> None:
    own = file(1)
    apart = RecordCodes(np.tile([1, 2, 3], (5, 1)), SIZES, np.ones(5))
    other = RecordCodes(np.tile([0, 0, 0], (7, 1)), SIZES, np.ones(7))
    assert total_variation(own, own, 2).max() == 0.0
    assert total_variation(apart, other, 1).min() == 1.0
    assert (k_marginal_score(own, own), k_marginal_score(apart, other)) == (1000.0, 0.0)


def test_weights_count() -> None:
    """Doubled records and doubled weights are the same file; control: without weights they are not."""
    own, twice = file(3), np.arange(300) % 3 == 0
    doubled = RecordCodes(
        np.concatenate([own.codes, own.codes[twice]]), SIZES, np.concatenate([own.weight, own.weight[twice]])
    )
    heavier = own._replace(weight=own.weight * (1.0 + twice))
    assert total_variation(doubled, heavier, 3).max() < 1e-12
    assert total_variation(doubled.unweighted, heavier.unweighted, 3).max() > 0.01


def test_the_ladder_rises_and_finds_a_subsample_of_its_own_size_again() -> None:
    own, rng = file(4, 20_000), np.random.default_rng(5)
    scores = subsample_scores(own, 3, rng)
    assert (np.diff(scores) > 0).all()
    kept = own.take(rng.permutation(20_000)[:4000])
    assert equivalent_share(k_marginal_score(own, kept), scores) == pytest.approx(0.2, abs=0.06)
    assert equivalent_share(1000.0, scores) == LADDER[-1]


def test_the_regression_is_the_one_of_greatest_likelihood() -> None:
    own = file(6)
    x, y = indicators(RecordCodes(own.codes[:, 1:], SIZES[1:], own.weight)), (own.codes[:, 0] == 1).astype(float)
    weight = own.weight / own.weight.sum()

    def loss(beta):
        eta = x @ beta
        return float(weight @ (np.logaddexp(0.0, eta) - y * eta)) + 0.5e-6 * float(beta[1:] @ beta[1:])

    best = minimize(loss, np.zeros(x.shape[1]), method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(logistic(x, y, weight), best.x, atol=1e-5)


def test_a_file_is_not_told_from_itself_and_is_from_another() -> None:
    own = file(7, 2000)
    same, apart = propensity(own, own), propensity(own, file(8, 2000, tilt=0.4))
    assert same == pytest.approx((0.0, 0.0), abs=1e-12)
    assert 0.02 < apart.pmse <= 0.25
    assert 0.2 < apart.specks <= 1.0


def test_specks_is_the_largest_distance_of_the_scores_distribution_functions() -> None:
    """With one column of two levels it is the difference of the shares; pMSE follows from the two probabilities."""
    a, b = (RecordCodes(np.array([[0]] * (10 - k) + [[1]] * k), (2,), np.ones(10)) for k in (3, 8))
    found = propensity(a, b)
    assert found.specks == pytest.approx(0.5)
    scores = {0: 2 / (7 + 2), 1: 8 / (3 + 8)}
    expected = (9 * (scores[0] - 0.5) ** 2 + 11 * (scores[1] - 0.5) ** 2) / 20
    assert found.pmse == pytest.approx(expected, rel=1e-4)


def test_files_that_are_apart_are_told_without_an_infinite_coefficient() -> None:
    a, b = (RecordCodes(np.full((20, 1), k), (2,), np.ones(20)) for k in (0, 1))
    found = propensity(a, b)
    assert found.specks == pytest.approx(1.0)
    assert 0.2 < found.pmse <= 0.25


def test_overlap_is_1_of_equal_intervals_0_of_intervals_apart_and_a_half_between() -> None:
    one = Regression(np.array([0.0, 0.0, 0.0]), np.ones(3))
    reach = 2 * 1.959963984540054
    other = Regression(np.array([0.0, 100.0, reach / 2]), np.ones(3))
    assert overlap(one, other) == pytest.approx([1.0, 0.0, 0.5])


def test_errors_of_the_regression_are_those_of_redrawn_files() -> None:
    """Standard deviations of coefficients over 80 files; control: without weights they are smaller."""
    drawn = np.array([fitted(file(seed, 600), 0, 1, (1, 2)).beta for seed in range(80)])
    told = fitted(file(999, 600), 0, 1, (1, 2)).error
    ratio = told / drawn.std(axis=0)
    assert 0.8 < ratio.mean() < 1.2
    plain = fitted(file(999, 600).unweighted, 0, 1, (1, 2)).error
    assert (plain / drawn.std(axis=0)).mean() < ratio.mean() * 0.9


def test_all_measures_of_a_file_beside_itself_are_at_their_best() -> None:
    found = microdata_measures(file(9, 1000), file(9, 1000), np.random.default_rng(0))
    assert {name.split()[0] for name in found} == {"weighted", "unweighted"}
    for name in ("weighted", "unweighted"):
        assert found[f"{name} total_variation_3"] == 0.0
        assert found[f"{name} k_marginal_score"] == 1000.0
        assert found[f"{name} regression_overlap"] == pytest.approx(1.0)
