"""Utility of microdata and of an outcome's distribution: measures against definitions written out by brute force."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from scipy.optimize import minimize

from dpdist.quality.microdata import (
    LADDER,
    RecordCodes,
    Regression,
    consistency,
    distances,
    ecdf,
    equivalent_share,
    fitted,
    indicators,
    k_marginal_score,
    location,
    logistic,
    mean_interval,
    microdata_measures,
    overlap,
    p_value,
    propensity,
    quantile_interval,
    statistics,
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


samples = st.lists(st.integers(0, 12), min_size=1, max_size=25).map(lambda values: np.array(values, dtype=float))


def share_at_most(sample, t):
    return sum(1 for value in sample if value <= t) / len(sample)


@given(samples, samples)
def test_distances_are_those_of_counted_shares_over_the_pooled_points_ties_included(confidential, synthetic):
    pooled = [*confidential, *synthetic]
    apart = [share_at_most(confidential, t) - share_at_most(synthetic, t) for t in pooled]
    found = distances(confidential, synthetic)
    assert found.max_ecdf == pytest.approx(max(abs(d) for d in apart))
    assert found.avg_ecdf == pytest.approx(sum(d * d for d in apart) / len(pooled))


def test_the_largest_distance_is_the_two_sample_kolmogorov_smirnov_statistic():
    rng = np.random.default_rng(1)
    a, b = rng.beta(0.5, 3, 400), rng.beta(0.7, 3, 400)
    assert distances(a, b).max_ecdf == pytest.approx(stats.ks_2samp(a, b).statistic)


def test_distances_do_not_care_which_data_are_synthetic_nor_about_order_or_monotone_transformations():
    rng = np.random.default_rng(2)
    a, b = rng.gamma(2, 1, 300), rng.gamma(3, 1, 200)
    found = distances(a, b)
    assert found == pytest.approx(distances(b, a))
    assert found == pytest.approx(distances(rng.permutation(a), np.sort(b)))
    assert found == pytest.approx(distances(np.log(a), np.log(b)))


def test_equal_data_are_at_distance_0_and_separate_data_at_distance_1():
    a = np.array([0.1, 0.2, 0.2])
    assert distances(a, a) == (0.0, 0.0)
    assert distances(a, a + 1.0).max_ecdf == 1.0


def test_the_distribution_function_counts_the_point_itself():
    assert ecdf(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0, 3.0])).tolist() == [0.0, 0.25, 0.75, 1.0]


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_the_order_statistics_of_a_quantile_cover_it_as_often_as_stated(share):
    """Coverage of ranks is a binomial probability, exactly; and in simulation. Control: an interval one rank shorter on
    each side covers less than stated."""
    n, law = 60, stats.beta(0.5, 3)
    ranked = np.arange(1.0, n + 1.0)
    found = quantile_interval(ranked, share)
    at_least, below = found.lower, found.upper
    covered = stats.binom.cdf(below - 1, n, share) - stats.binom.cdf(at_least - 1, n, share)
    assert 0.95 <= covered < 0.985
    shorter = stats.binom.cdf(below - 2, n, share) - stats.binom.cdf(at_least, n, share)
    assert shorter < 0.95
    truth, rng = law.ppf(share), np.random.default_rng(3)
    intervals = [quantile_interval(law.rvs(n, random_state=rng), share) for _ in range(2000)]
    inside = np.mean([i.lower <= truth <= i.upper for i in intervals])
    assert inside == pytest.approx(covered, abs=4 * np.sqrt(covered * (1 - covered) / 2000))


def test_a_quantile_that_few_records_cannot_bound_has_an_unbounded_interval():
    found = quantile_interval(np.array([1.0, 2.0, 3.0]), 0.9)
    assert found.upper == np.inf
    assert quantile_interval(np.array([4.0]), 0.15).lower == -np.inf


def test_the_mean_has_the_normal_interval():
    sample = np.array([1.0, 2.0, 3.0, 6.0])
    half = 1.959964 * np.std(sample, ddof=1) / 2.0
    assert mean_interval(sample) == pytest.approx((3.0, 3.0 - half, 3.0 + half), rel=1e-6)
    assert mean_interval(np.array([2.0])) == (2.0, -np.inf, np.inf)


def test_location_names_what_the_papers_show():
    sample = np.arange(1.0, 1002.0)
    found = location(sample)
    assert {name: interval.estimate for name, interval in found.items()} == pytest.approx(
        {"mean": 501.0, "q15": 151.0, "median": 501.0, "q90": 901.0}
    )
    assert all(interval.lower < interval.estimate < interval.upper for interval in found.values())


def coded(seed: int, together: float, n: int = 2000) -> RecordCodes:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 3, n)
    second = np.where(rng.random(n) < together, first, rng.integers(0, 3, n))
    third = rng.integers(0, 2, n)
    return RecordCodes(np.column_stack([first, second, third]), (3, 3, 2), np.ones(n))


def test_statistics_are_those_of_scipy_and_empty_levels_have_no_degree_of_freedom() -> None:
    file = coded(1, 0.3)
    values, degrees = statistics(file, [(0, 1)])
    table = file.shares((0, 1)).reshape(3, 3) * 2000
    expected = stats.chi2_contingency(table, correction=False)
    assert (values[0], degrees[0]) == (pytest.approx(expected.statistic), expected.dof)
    assert p_value(values, float(degrees[0])) == pytest.approx(expected.pvalue)
    wider = RecordCodes(file.codes, (5, 3, 2), file.weight)
    assert statistics(wider, [(0, 1)])[1][0] == expected.dof
    assert statistics(RecordCodes(file.codes * 0, (3, 3, 2), file.weight), [(0, 1)])[1][0] == 0


def test_equal_sets_are_tested_as_one_mean_square() -> None:
    """Without variance between sets D = χ²/k and the second degrees of freedom are without bound."""
    assert p_value(np.array([9.0, 9.0, 9.0]), 4.0) == pytest.approx(stats.chi2.sf(9.0, 4.0), rel=1e-6)
    assert p_value(np.array([3.0, 9.0, 30.0]), 4.0) > p_value(np.array([14.0, 14.0, 14.0]), 4.0)


def test_a_file_agrees_with_itself_and_not_with_one_that_lost_its_association() -> None:
    """Control: of three pairs the one that is associated differs; the others' tests err with probability .05 each."""
    file = coded(1, 0.5)
    assert consistency(file, [file]) == 1.0
    assert consistency(file, [coded(k, 0.5) for k in (2, 3, 4)]) >= 2 / 3
    assert consistency(file, [coded(2, 0.0)], level=1e-4) == pytest.approx(2 / 3)
