"""Utility measures against definitions written out by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from dpdist.quality.microdata import distances, ecdf, location, mean_interval, quantile_interval

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
