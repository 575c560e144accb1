"""Survey estimators against explicit loops over design strata, PSUs and records; combining rules as computed by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpdist.core.records import TOTAL, Crosstab, cross
from dpdist.estimation.estimators import (
    NORMAL_90,
    NORMAL_95,
    PsuSums,
    Stage,
    Stages,
    clustered_counts_and_means,
    combine_sets,
    counts_and_means,
    group_sums,
    positive_interval,
    record_sums,
    t_interval,
)

fixed = settings(derandomize=True, deadline=None, max_examples=60)
LEVELS = {"region": ("north", "south"), "field": ("maths", "physics", "health"), "size": ("small", "large")}
BY = ("field", "size")
seeds = st.integers(0, 2**20)


class Design:
    """A random sample: design strata are regions, in each two to five PSUs of one to six records."""

    def __init__(self, seed, records_per_psu=6, by_region=True):
        rng = np.random.default_rng(seed)
        rows, psu, number = [], [], 0
        for region in range(2):
            for _ in range(rng.integers(2, 6)):
                for _ in range(rng.integers(1, records_per_psu + 1)):
                    rows.append((region, rng.integers(0, 3), rng.integers(0, 2)))
                    psu.append(number)
                number += 1
        order = sorted(range(len(rows)), key=lambda i: rows[i])
        self.region = np.array([rows[i][0] for i in order]) if by_region else np.zeros(len(rows), dtype=int)
        self.cell = [(LEVELS["field"][rows[i][1]], LEVELS["size"][rows[i][2]]) for i in order]
        self.psu = np.array([psu[i] for i in order], dtype=np.int32)
        self.weight = np.exp(rng.normal(3.0, 0.8, len(rows)))
        self.outcome = np.exp(rng.normal(1.0, 0.5, len(rows)))
        distinct, self.row = np.unique(np.array([rows[i] for i in order]), axis=0, return_inverse=True)
        self.row = self.row.astype(np.int32)
        codes = {name: distinct[:, k].astype(np.int32) for k, name in enumerate(LEVELS)}
        self.crosstab = Crosstab(codes, LEVELS, np.bincount(self.row), (), ("region",) if by_region else ())
        self.cells = cross(self.crosstab, BY, margins=True)

    def alone(self):
        """The PSU numbers of a design in which every record is its own PSU."""
        return np.arange(len(self.row), dtype=np.int32)


def inside(label, cell):
    return all(wanted in (TOTAL, found) for wanted, found in zip(label, cell, strict=True))


def linearised_variance(design, psu, u):
    """Σ_h n_h/(n_h−1) Σ_psu (t − t̄)² with t the total of u in a PSU: the with-replacement formula, term by term."""
    variance = 0.0
    for region in set(design.region.tolist()):
        members = sorted(set(psu[design.region == region].tolist()))
        totals = [sum(u[i] for i in range(len(u)) if psu[i] == k) for k in members]
        mean = sum(totals) / len(totals)
        variance += len(totals) / (len(totals) - 1) * sum((t - mean) ** 2 for t in totals)
    return variance


def slow_estimates(design, psu, label):
    """Count, its variance, mean, its variance in one cell."""
    member = [inside(label, cell) for cell in design.cell]
    w = [weight if m else 0.0 for weight, m in zip(design.weight, member, strict=True)]
    count = sum(w)
    if count == 0.0:
        return 0.0, 0.0, np.nan, np.nan
    mean = sum(a * y for a, y in zip(w, design.outcome, strict=True)) / count
    residual = [a * (y - mean) / count for a, y in zip(w, design.outcome, strict=True)]
    return count, linearised_variance(design, psu, w), mean, linearised_variance(design, psu, residual)


def unclustered(design):
    sums = record_sums(design.row, design.weight, design.outcome, len(design.crosstab))
    return counts_and_means(sums, design.crosstab, design.cells)


def clustered(design, psu):
    """PSU totals per (frame row, PSU), as the streaming pass makes them."""
    key, group = np.unique(np.column_stack([design.row, psu]), axis=0, return_inverse=True)
    sums = record_sums(group.ravel(), design.weight, design.outcome, len(key))
    rows = key[:, 0].astype(np.int32)
    code, staged = stages(design.crosstab, rows, key[:, 1])
    return clustered_counts_and_means(rows, code, sums, staged, design.cells)


def stages(crosstab, rows, psu):
    """PSUs numbered through the strata, and the stages."""
    pairs, code = np.unique(np.column_stack([crosstab.design_stratum[rows], psu]), axis=0, return_inverse=True)
    size = np.bincount(pairs[:, 0])
    return code.ravel().astype(np.int32), Stages(pairs[:, 0].astype(np.int32), Stage.of(size))


def assert_same(found, expected):
    """Values to 1e-12, variances to 1e-9 of the estimate's square: they are differences of larger sums."""
    scale = expected[0] ** 2, expected[2] ** 2
    np.testing.assert_allclose(found[0].value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(found[1].value, expected[2], rtol=1e-12)
    for k, variance in enumerate((expected[1], expected[3])):
        error = np.abs(found[k].variance - variance)
        np.testing.assert_array_equal(np.isnan(error), np.isnan(variance))
        assert np.all((error <= 1e-9 * variance + 1e-12 * scale[k]) | np.isnan(error))


@pytest.mark.parametrize("by_region", [True, False], ids=["stratified", "one stratum"])
@given(seed=seeds)
@fixed
def test_estimates_with_records_as_psus_are_those_of_the_loops(by_region, seed):
    design = Design(seed, by_region=by_region)
    slow = np.array([slow_estimates(design, design.alone(), label) for label in design.cells.labels]).T
    assert_same(unclustered(design), slow)


@pytest.mark.parametrize("by_region", [True, False], ids=["stratified", "one stratum"])
@given(seed=seeds)
@fixed
def test_estimates_with_psus_are_those_of_the_loops(by_region, seed):
    """Control: the same loops with records as PSUs give other variances, so the clusters are seen."""
    design = Design(seed, by_region=by_region)
    slow = np.array([slow_estimates(design, design.psu, label) for label in design.cells.labels]).T
    assert_same(clustered(design, design.psu), slow)
    if len(set(design.psu.tolist())) < len(design.psu):
        other = linearised_variance(design, design.alone(), design.weight)
        assert abs(other - slow[1][-1]) > 1e-6 * other


@fixed
@given(seeds)
def test_clustered_and_unclustered_agree_where_every_record_is_its_own_psu(seed):
    design = Design(seed)
    for one, other in zip(clustered(design, design.alone()), unclustered(design), strict=True):
        np.testing.assert_allclose(one.value, other.value, rtol=1e-12)
        np.testing.assert_allclose(one.variance, other.variance, rtol=1e-9, atol=1e-9)


@fixed
@given(seeds, st.randoms(use_true_random=False))
def test_the_numbering_of_psus_does_not_matter(seed, random):
    design = Design(seed)
    names = list(range(int(design.psu.max()) + 1))
    random.shuffle(names)
    for one, other in zip(clustered(design, design.psu), clustered(design, np.array(names)[design.psu]), strict=True):
        np.testing.assert_allclose(one.value, other.value, rtol=1e-12)
        np.testing.assert_allclose(one.variance, other.variance, rtol=1e-9, atol=1e-9)


@fixed
@given(seeds)
def test_margins_are_the_sums_of_their_cells(seed):
    design = Design(seed)
    counts = dict(zip(design.cells.labels, unclustered(design)[0].value, strict=True))
    assert counts[TOTAL, TOTAL] == pytest.approx(design.weight.sum(), rel=1e-12)
    for field in LEVELS["field"]:
        assert counts[field, TOTAL] == pytest.approx(sum(counts[field, size] for size in LEVELS["size"]), rel=1e-12)


@fixed
@given(seeds, st.floats(0.01, 100), st.floats(0.01, 100))
def test_estimates_scale_with_weights_and_outcomes(seed, a, b):
    design = Design(seed)
    count, mean, total = unclustered(design)
    design.weight, design.outcome = a * design.weight, b * design.outcome
    scaled_count, scaled_mean, scaled_total = unclustered(design)
    np.testing.assert_allclose(scaled_count.value, a * count.value, rtol=1e-12)
    np.testing.assert_allclose(scaled_mean.value, b * mean.value, rtol=1e-12)
    np.testing.assert_allclose(scaled_total.value, a * b * total.value, rtol=1e-12)
    np.testing.assert_allclose(total.value, (count.value * np.nan_to_num(mean.value)), rtol=1e-12)
    np.testing.assert_allclose(scaled_mean.variance, b**2 * mean.variance, rtol=1e-6, atol=1e-9 * b**2)


def test_a_total_of_equal_weights_has_no_variance_and_a_mean_that_of_a_simple_random_sample():
    design = Design(3, by_region=False)
    design.weight[:] = 25.0
    count, mean, _ = unclustered(design)
    n = len(design.row)
    assert count.variance[-1] == pytest.approx(0.0, abs=1e-9 * count.value[-1] ** 2)
    assert mean.variance[-1] == pytest.approx(design.outcome.var(ddof=1) / n, rel=1e-9)


def test_an_empty_cell_has_count_0_and_no_mean():
    design = Design(1)
    keep = ~((design.crosstab.codes["field"] == 2)[design.row])
    codes = {name: values[design.crosstab.codes["field"] != 2] for name, values in design.crosstab.codes.items()}
    row = np.unique(design.row[keep], return_inverse=True)[1].astype(np.int32)
    crosstab = Crosstab(codes, LEVELS, np.bincount(row), (), ("region",))
    cells = cross(crosstab, BY, margins=True)
    sums = record_sums(row, design.weight[keep], design.outcome[keep], len(crosstab))
    count, mean, _ = counts_and_means(sums, crosstab, cells)
    empty = np.array([label[0] == "health" for label in cells.labels])
    np.testing.assert_array_equal(count.value[empty], 0.0)
    np.testing.assert_array_equal(count.variance[empty], 0.0)
    assert np.isnan(mean.value[empty]).all()
    assert np.isfinite(mean.value[~empty]).all()


def test_linearised_variances_are_the_variances_of_repeated_samples():
    """Mean of the estimated variances over 4,000 samples against the samples' own variance, within 4.9 standard errors:
    false alarm 1e-6; control: the variance as if records were PSUs."""
    rng = np.random.default_rng(8)
    crosstab = Crosstab(
        {"region": np.array([0, 1], dtype=np.int32)}, {"region": ("n", "s")}, np.array([40, 60]), (), ("region",)
    )
    cells = cross(crosstab, (), margins=True)
    row = np.repeat(np.arange(2, dtype=np.int32), crosstab.count)
    psu = (np.arange(100) // 5).astype(np.int32)
    key, group = np.unique(np.column_stack([row, psu]), axis=0, return_inverse=True)
    counts, variances, as_records = [], [], []
    for _ in range(4000):
        weight = np.exp(0.3 * rng.standard_normal(20)[psu] + 0.2 * rng.standard_normal(100)) * (1.0 + row)
        outcome = np.exp(0.5 * rng.standard_normal(20)[psu])
        rows = key[:, 0].astype(np.int32)
        sums = record_sums(group.ravel(), weight, outcome, len(key))
        code, staged = stages(crosstab, rows, key[:, 1])
        found = clustered_counts_and_means(rows, code, sums, staged, cells)
        counts.append(found[0].value[0])
        variances.append(found[0].variance[0])
        as_records.append(counts_and_means(record_sums(row, weight, outcome, 2), crosstab, cells)[0].variance[0])
    true = np.var(counts, ddof=1)

    def surprise(values):
        centred = (np.array(counts) - np.mean(counts)) ** 2 - np.array(values)
        return abs(centred.mean()) / (centred.std() / np.sqrt(len(centred)))

    assert surprise(variances) < 4.9
    assert surprise(as_records) > 4.9
    assert np.mean(variances) == pytest.approx(true, rel=0.2)


def test_sums_add_over_blocks_of_records():
    design = Design(5)
    rows = len(design.crosstab)
    whole = record_sums(design.row, design.weight, design.outcome, rows)
    parts = [record_sums(design.row[s], design.weight[s], design.outcome[s], rows) for s in (slice(0, 7), slice(7, None))]
    for one, other in zip(parts[0].plus(parts[1]), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    np.testing.assert_allclose(whole.ab, group_sums(design.row, design.weight**2 * design.outcome, rows), rtol=1e-13)
    assert isinstance(whole, PsuSums)


VALUES = np.array([[10.0, 4.0], [12.0, 4.0], [17.0, 4.0]])
VARIANCES = np.array([[2.0, 1.0], [3.0, 2.0], [4.0, 3.0]])


def test_sets_are_combined_as_by_hand():
    """First cell: q̄ = 13, B = 13, W = 3, T = 13/3 + 3 = 22/3, df = 2 (1 + 3/(13/3))²."""
    found = combine_sets(VALUES, VARIANCES, df_within=100.0)
    assert found.value[0] == pytest.approx(13.0)
    assert found.standard_error[0] == pytest.approx(np.sqrt(22.0 / 3.0))
    assert found.df[0] == pytest.approx(2.0 * (1.0 + 9.0 / 13.0) ** 2)
    reach = stats.t.ppf(0.95, found.df[0]) * np.sqrt(22.0 / 3.0)
    assert (found.lower[0], found.upper[0]) == (pytest.approx(13.0 - reach), pytest.approx(13.0 + reach))


def test_sets_that_agree_have_the_variance_within_and_a_normal_interval():
    found = combine_sets(VALUES, VARIANCES, df_within=100.0)
    assert found.value[1] == 4.0
    assert found.df[1] == np.inf
    assert found.standard_error[1] == pytest.approx(np.sqrt(2.0))
    assert found.upper[1] - 4.0 == pytest.approx(stats.norm.ppf(0.95) * np.sqrt(2.0))


def test_sets_that_agree_and_vary_nowhere_have_an_interval_of_one_point():
    """A count under proportional weights N/n: the total is N in every set, without variance."""
    found = combine_sets(np.full((3, 1), 1000.0), np.zeros((3, 1)), df_within=100.0)
    assert (found.standard_error[0], found.lower[0], found.upper[0]) == (0.0, 1000.0, 1000.0)


def test_one_set_has_the_variance_and_the_degrees_of_its_design():
    found = combine_sets(VALUES[:1], VARIANCES[:1], df_within=17.0)
    np.testing.assert_array_equal(found.value, VALUES[0])
    np.testing.assert_allclose(found.standard_error, np.sqrt(VARIANCES[0]))
    np.testing.assert_array_equal(found.df, 17.0)


@fixed
@given(st.integers(2, 8), seeds)
def test_the_combined_variance_is_between_over_m_plus_within(sets, seed):
    """The rule of partially synthetic sets; T = (1 + 1/m)B − W is wrong here, and often negative."""
    rng = np.random.default_rng(seed)
    values, variances = rng.normal(size=(sets, 3)), rng.exponential(size=(sets, 3))
    found = combine_sets(values, variances, 50.0)
    for cell in range(3):
        between = np.sum((values[:, cell] - values[:, cell].mean()) ** 2) / (sets - 1)
        total = between / sets + variances[:, cell].mean()
        assert found.standard_error[cell] ** 2 == pytest.approx(total, rel=1e-10)
        assert found.df[cell] == pytest.approx((sets - 1) * (total / (between / sets)) ** 2, rel=1e-10)


@fixed
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.floats(1.0, 1e6) | st.just(np.inf), st.floats(0.5, 0.99))
def test_an_interval_is_scipys(value, variance, df, level):
    found = t_interval(np.array([value]), np.array([variance]), np.array([df]), level)
    expected = stats.t.interval(level, df, loc=value, scale=np.sqrt(variance))
    np.testing.assert_allclose([found.lower[0], found.upper[0]], expected, rtol=1e-9)


def test_intervals_are_of_90_percent_unless_said():
    found = t_interval(np.zeros(1), np.ones(1), np.array([10.0]))
    assert found.upper[0] == pytest.approx(1.8124611228107335)


def test_the_cross_of_two_columns_has_all_cells_and_all_margins():
    design = Design(2)
    axes = [(*LEVELS[name], TOTAL) for name in BY]
    assert design.cells.labels == tuple(product(*axes))


def test_a_positive_figure_has_an_interval_on_the_log_scale():
    """Where it reaches further than the figure the log scale would have no end: the plain one from 0 upwards."""
    value = np.array([10.0, 4.0, 0.0, -1.0, 5.0, 1e-3, np.nan])
    variance, df = np.array([4.0, 16.0, 1.0, 1.0, 0.0, 9e6, 1.0]), np.full(7, np.inf)
    found, plain = positive_interval(value, variance, df), t_interval(value, variance, df)
    reach = 1.6448536269514722 * 0.2
    np.testing.assert_allclose([found.lower[0], found.upper[0]], 10.0 * np.exp([-reach, reach]))
    assert plain.lower[1] < 0
    assert (found.lower[[1, 2, 3, 5]] == 0.0).all()
    np.testing.assert_array_equal(found.upper[[1, 2, 3, 5]], plain.upper[[1, 2, 3, 5]])
    assert (found.lower[4], found.upper[4]) == (5.0, 5.0)
    assert np.isnan([found.lower[6], found.upper[6]]).all()
    np.testing.assert_array_equal(found.standard_error, plain.standard_error)


def test_half_widths_of_intervals_are_quantiles_of_the_normal_law() -> None:
    assert tuple(scipy.special.ndtri([0.95, 0.975])) == (NORMAL_90, NORMAL_95)
