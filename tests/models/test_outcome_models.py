"""What every model of the outcome alone promises, one test for all families: oracles are SciPy's laws and plain sums.

Streams are keyed: a run of the suite is deterministic; false-alarm rates are what a correct model would suffer over random
keys.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
from cases import (
    EVERYWHERE,
    FAMILIES,
    REGRESSIONS,
    crosstab_of,
    density,
    job_of,
    location,
    model_of,
    records_of,
    some_alpha,
    some_records,
    theta_at_random,
)
from hypothesis import given, settings, strategies as st
from scipy import stats
from scipy.special import expit

from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.job import MODELS
from dpdist.models.negative_binomial import combined as combined_rows
from dpdist.models.protocol import Draws

KEY = Key(b"tests/models/test_outcome_models")
fixed = settings(derandomize=True, deadline=None, max_examples=40)
each_family = pytest.mark.parametrize("family", FAMILIES)
Z_LIMIT = 4.9
"""Two-sided normal tail 1e-6 a figure."""


def combined(model, parts):
    """Statistics of blocks put together; compressed records in one canonical form."""
    return sum(parts) if model.combine == "sum" else combined_rows(np.concatenate(parts))


@each_family
@fixed
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 2**20))
def test_statistics_combine_over_any_split_of_the_records(family, cuts, seed):
    model, records = model_of(family), some_records(family, seed)
    alpha = some_alpha(len(records), seed)
    parts = [model.statistics(records.part(a, b), alpha[a:b]) for a, b in pairwise([0, *sorted(cuts), 40])]
    np.testing.assert_allclose(combined(model, parts), model.statistics(records, alpha), rtol=1e-12, atol=1e-12)


@each_family
@fixed
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(0, 2**20))
def test_a_record_with_zero_weight_is_absent_bit_for_bit(family, on, seed):
    model, records = model_of(family), some_records(family, seed)
    on = np.array(on)
    alpha = np.where(on, some_alpha(len(records), seed), 0.0)
    np.testing.assert_array_equal(model.statistics(records, alpha), model.statistics(records.take(on), alpha[on]))


@each_family
def test_what_a_record_with_zero_weight_holds_does_not_matter(family):
    model, records = model_of(family), some_records(family)
    alpha = some_alpha(len(records))
    alpha[3] = 0.0
    broken = replace(records, outcomes=np.where(records.record == 3, np.nan, records.outcome))
    np.testing.assert_array_equal(model.statistics(broken, alpha), model.statistics(records, alpha))


@each_family
def test_records_in_duplicate_at_half_weight_are_the_records_once(family):
    """α = 1 and ½: sums of counts are exact, those of logarithms err by rounding."""
    model, records = model_of(family), some_records(family)
    twice = records.take(np.repeat(np.arange(len(records)), 2))
    half, whole = model.statistics(twice, np.full(80, 0.5)), model.statistics(records, np.ones(40))
    np.testing.assert_allclose(half, whole, rtol=0 if family[:4] != "beta" else 1e-14)


@each_family
@pytest.mark.parametrize("seed", range(3))
def test_log_lik_is_scipys_density(family, seed):
    model, records = model_of(family), some_records(family, seed)
    theta = theta_at_random(model, family, 30, seed)
    np.testing.assert_allclose(model.log_lik(theta, records), density(family, theta, records), rtol=1e-9, atol=1e-9)


@each_family
def test_log_lik_does_not_depend_on_the_order_or_the_blocks_of_records(family):
    model, records = model_of(family), some_records(family)
    theta = theta_at_random(model, family, 7, 5)
    shuffled = np.random.default_rng(0).permutation(len(records))
    whole = model.log_lik(theta, records)
    parts = np.hstack([model.log_lik(theta, records.part(a, b)) for a, b in [(0, 3), (3, 3), (3, 40)]])
    np.testing.assert_allclose(model.log_lik(theta, records.take(shuffled)), whole[:, shuffled], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


@each_family
@fixed
@given(st.integers(0, 2**20))
def test_extremes_contain_the_log_likelihood_and_exceed_it_by_rounding_only(family, seed):
    model, records = model_of(family), some_records(family, seed)
    theta = theta_at_random(model, family, 30, seed)
    values, found = density(family, theta, records), model.extremes(theta, records)
    own = model.log_lik(theta, records)
    highest, lowest = values.max(axis=0), values.min(axis=0)
    assert np.all(found.highest >= own.max(axis=0))
    assert np.all(found.lowest <= own.min(axis=0))
    size = np.maximum(1.0, np.abs(values).max(axis=0))
    assert np.all(np.abs(found.highest - highest) <= 1e-9 * size)
    assert np.all(np.abs(lowest - found.lowest) <= 1e-9 * size)


@pytest.mark.parametrize("family", ["poisson", "negative_binomial", "beta", "bernoulli"])
def test_bounds_are_never_too_small_even_in_exact_arithmetic(family):
    """Densities by 40-digit arithmetic at whole y, or whole shapes: extremes lie outside them, and by no more than 1e-9."""
    exact, theta, y = WHOLE[family]()
    model = model_of(family)
    row = np.zeros(len(y), dtype=np.int32)
    found = model.extremes(theta, records_of(y, row=row))
    with localcontext(prec=40):
        values = np.array([[exact(s, value) for value in y.tolist()] for s in range(len(theta))])
        assert all(Decimal(float(high)) >= most for high, most in zip(found.highest, values.max(axis=0), strict=True))
        assert all(Decimal(float(low)) <= least for low, least in zip(found.lowest, values.min(axis=0), strict=True))
    close = np.array(values, dtype=float)
    np.testing.assert_allclose(found.highest, close.max(axis=0), rtol=1e-9, atol=1e-9)


def whole_poisson():
    theta = Draws({"rate": np.exp(np.random.default_rng(1).uniform(-3, 8, 12))})

    def exact(s, y):
        rate = Decimal(float(theta["rate"][s]))
        return int(y) * rate.ln() - rate - Decimal(math.factorial(int(y))).ln()

    return exact, theta, np.array([0.0, 1, 2, 17, 500, 4000])


def whole_negative_binomial():
    size = np.array([1.0, 2, 5, 40, 300])
    theta = Draws({"mean": np.exp(np.random.default_rng(2).uniform(-2, 8, 5)), "dispersion": size})

    def exact(s, y):
        mean, own, y = Decimal(float(theta["mean"][s])), int(size[s]), int(y)
        odds = mean + own
        return Decimal(math.comb(y + own - 1, y)).ln() + own * (own / odds).ln() + y * (mean / odds).ln()

    return exact, theta, np.array([0.0, 1, 3, 90, 2500])


def whole_beta():
    precision = np.array([2.0, 4, 16, 128])
    theta = Draws({"mean": np.array([0.5, 0.25, 0.875, 0.5]), "precision": precision})

    def exact(s, y):
        a, total = int(precision[s] * theta["mean"][s]), int(precision[s])
        beta = Decimal(math.factorial(a - 1)) * math.factorial(total - a - 1) / math.factorial(total - 1)
        y = Decimal(y)
        return (a - 1) * y.ln() + (total - a - 1) * (1 - y).ln() - beta.ln()

    return exact, theta, np.array([1e-9, 0.01, 0.3, 0.77, 1 - 1e-9])


def certain_bernoulli():
    theta = Draws({"probability": np.array([1e-12, 0.1, 0.3, 0.5, 1 - 1e-12])})

    def exact(s, y):
        p = Decimal(float(theta["probability"][s]))
        return p.ln() if y else (1 - p).ln()

    return exact, theta, np.array([0.0, 1.0])


WHOLE = {
    "poisson": whole_poisson,
    "negative_binomial": whole_negative_binomial,
    "beta": whole_beta,
    "bernoulli": certain_bernoulli,
}


@each_family
def test_extremes_and_log_lik_go_through_tiles_of_any_size(family, monkeypatch):
    model, records = model_of(family), some_records(family)
    theta = theta_at_random(model, family, 30, 1)
    whole, found = model.log_lik(theta, records), model.extremes(theta, records)
    monkeypatch.setattr("dpdist.models.numerics.tiles.TILE_VALUES", 90)
    np.testing.assert_allclose(model.log_lik(theta, records), whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.extremes(theta, records), found, rtol=1e-12, atol=1e-12)


def test_repeated_outcomes_are_evaluated_once(monkeypatch):
    model = model_of("poisson")
    records = records_of(np.tile([3.0, 4.0], 20))
    theta = theta_at_random(model, "poisson", 5, 1)
    seen = []
    tiles = type(model).tiles
    monkeypatch.setattr(type(model), "tiles", lambda self, d, r: seen.append(len(r)) or tiles(self, d, r))
    np.testing.assert_allclose(model.log_lik(theta, records), density("poisson", theta, records), rtol=1e-12)
    assert model.extremes(theta, records).bound.shape == (40,)
    assert seen == [2, 2]


TYPICAL = {
    "beta": {"mean": [0.3], "precision": [2.0]},
    "beta_regression": {"coefficients": [[-0.8, 0.3, 0.5, -0.2]], "precision": [3.0]},
    "bernoulli": {"probability": [0.3]},
    "negative_binomial": {"mean": [8.0], "dispersion": [1.5]},
    "negative_binomial_mixture": {"mean": [8.0], "dispersion": [[0.8, 20.0]], "share": [0.3]},
    "poisson": {"rate": [4.0]},
    "poisson_regression": {"coefficients": [[1.2, 0.3, -0.5, 0.2]]},
}
LIMITED = {"beta": (0.1, 0.5), "beta_regression": (0.1, 0.5), "bernoulli": (0, 1)}


def typical(family, shift=0.0):
    """Parameters of synthetic records; `shift` moves the mean, by some per cent."""
    values = {name: np.array(said, dtype=float) for name, said in TYPICAL[family].items()}
    first = next(iter(values))
    values[first] = values[first] + shift if family in REGRESSIONS else values[first] * (1.0 + shift)
    return Draws(values)


class Mixture:
    """SciPy's two negative binomial laws under a share of the first."""

    def __init__(self, theta):
        mean, self.share = theta["mean"][0], theta["share"][0]
        self.laws = [stats.nbinom(size, size / (size + mean)) for size in theta["dispersion"][0]]

    def __getattr__(self, name):
        one, other = (getattr(each, name) for each in self.laws)
        return lambda *y: self.share * one(*y) + (1.0 - self.share) * other(*y)

    def ppf(self, level):
        return float(np.searchsorted(self.cdf(np.arange(10_000)), level))


def law(family, theta):
    """SciPy's law of a record in frame row 2 (physics, male)."""
    if family in ("beta", "beta_regression"):
        mean = theta["mean"] if family == "beta" else expit(location(theta))[0, 2]
        return stats.beta(theta["precision"][0] * mean, theta["precision"][0] * (1 - mean))
    if family == "bernoulli":
        return stats.bernoulli(theta["probability"][0])
    if family == "negative_binomial_mixture":
        return Mixture(theta)
    if family == "negative_binomial":
        size = theta["dispersion"][0]
        return stats.nbinom(size, size / (size + theta["mean"][0]))
    return stats.poisson(theta["rate"][0] if family == "poisson" else np.exp(location(theta))[0, 2])


def surprise(family, y, theta):
    """p value of the records' law: Kolmogorov–Smirnov for shares, χ² on the commonest counts for counts."""
    known = law(family, theta)
    if family in ("beta", "beta_regression"):
        return float(stats.kstest(y, known.cdf).pvalue)
    inner = np.arange(known.ppf(0.001), known.ppf(0.999) + 1)
    observed = np.array([(y == k).sum() for k in inner])
    expected = known.pmf(inner) * len(y)
    if known.cdf(inner[-1]) - known.cdf(inner[0] - 1) < 1 - 1e-12:
        observed, expected = (np.append(v, len(y) - v.sum()) for v in (observed, expected))
    return float(stats.chisquare(observed, expected).pvalue)


@each_family
def test_synthetic_records_have_the_models_law(family):
    """p > 1e-6 is the false-alarm rate; control: a mean that is off by 6 % (in a regression, an intercept by .06)."""
    model, theta = model_of(family), typical(family)
    y, w = model.simulate(theta, np.full(60_000, 2, dtype=np.int32), KEY.generator("law"))
    np.testing.assert_array_equal(w, 1.0)
    assert surprise(family, y, theta) > 1e-6
    assert surprise(family, y, typical(family, shift=0.06)) < 1e-6


@each_family
def test_synthetic_records_are_a_function_of_the_stream_and_lie_inside_the_support(family):
    model = model_of(family)
    for seed in range(20):
        theta = theta_at_random(model, family, 1, seed)
        one, two = (model.simulate(theta, EVERYWHERE.expand(), KEY.generator("again", block=seed))[0] for _ in range(2))
        np.testing.assert_array_equal(one, two)
        assert np.isfinite(model.log_lik(theta, records_of(one))).all()


@each_family
@pytest.mark.parametrize("limited", [False, True], ids=["open", "limited"])
def test_expectations_are_the_means_of_simulated_records(family, limited):
    """One figure: false alarm 1e-6; control: the mean of the unlimited law, or of a mean off by 5 %."""
    bounds = LIMITED.get(family, (2, 6)) if limited else None
    model, theta = model_of(family, bounds=bounds), typical(family)
    y, _ = model.simulate(theta, np.full(100_000, 2, dtype=np.int32), KEY.generator("mean"))
    weight, product = model.expect(theta)
    np.testing.assert_array_equal(weight, np.ones((1, 6)))
    assert product.shape == (1, 6)
    error = y.std() / np.sqrt(len(y))
    assert abs(y.mean() - product[0, 2]) < Z_LIMIT * error
    other = typical(family) if limited and bounds != (0, 1) else typical(family, shift=0.05)
    assert abs(y.mean() - float(np.ravel(law(family, other).mean())[0])) > Z_LIMIT * error


COUNTS, SHARES = [(0, 1), (0, 3), (1, 4), (2, 40)], [(0, 1), (0, 0.4), (0.2, 0.9), (0.3, 1)]
LIMITS = [(f, b) for f in FAMILIES if f != "bernoulli" for b in (SHARES if f.startswith("beta") else COUNTS)]


@pytest.mark.parametrize(("family", "bounds"), [("bernoulli", (0, 1)), *LIMITS])
def test_expectations_are_the_sums_and_integrals_of_their_definition(family, bounds):
    """E min(max(Y, lower), upper) from SciPy's law: a sum over counts, the integral of a survival function for shares."""
    model, theta = model_of(family, bounds=bounds), typical(family)
    known = law(family, theta)
    if family.startswith("beta"):
        nodes, weights = np.polynomial.legendre.leggauss(400)
        points = bounds[0] + (nodes + 1) / 2 * (bounds[1] - bounds[0])
        expected = bounds[0] + (known.sf(points) * weights).sum() / 2 * (bounds[1] - bounds[0])
    else:
        counts = np.arange(2000)
        expected = (np.clip(counts, *bounds) * known.pmf(counts)).sum()
    assert model.expect(theta)[1][0, 2] == pytest.approx(
        float(np.ravel(expected)[0]), rel=1e-5 if family.startswith("beta") else 1e-10
    )


@each_family
def test_a_description_survives_json_exactly_and_names_its_entries(family):
    crosstab = crosstab_of({(0, 0): 9, (2, 0): 8, (2, 1): 5})
    model = model_of(family, crosstab)
    theta = theta_at_random(model, family, 3, 4).at(1)
    said = json.loads(json.dumps(model.describe(theta), allow_nan=False))
    back = model.recall(said)
    for parameter in model.parameters:
        np.testing.assert_array_equal(back[parameter.name], theta[parameter.name])
        assert theta[parameter.name].shape == (1, *parameter.shape)
        for dim, entries in parameter.dims:
            assert said[parameter.name][dim] == list(entries)
    assert said["prior"] == "proper"


@pytest.mark.parametrize("family", REGRESSIONS)
def test_an_empty_level_is_aliased_and_changes_nothing_else(family):
    """Physics has no record: its coefficient is NaN, and the means of the other groups are those of their own columns."""
    crosstab = crosstab_of({(0, 0): 9, (2, 0): 8, (2, 1): 5})
    model = model_of(family, crosstab)
    assert model.identified == 3
    drawn = {"coefficients": np.array([[0.4, -0.3, 0.2]]), "beta": np.array([[0.4, -0.3, 0.2]]), "lambda": np.array([3.0])}
    theta = Draws(model.from_stan(drawn))
    np.testing.assert_array_equal(np.isnan(theta["coefficients"]), [[False, True, False, False]])
    inverse = expit if family == "beta_regression" else np.exp
    np.testing.assert_allclose(model.expect(theta)[1], inverse([[0.4, 0.1, 0.3]]), rtol=1e-9)


@pytest.mark.parametrize("family", REGRESSIONS)
def test_a_pooled_fit_keeps_the_strata_as_predictors(family):
    own = Crosstab(EVERYWHERE.codes, EVERYWHERE.levels, EVERYWHERE.count, ("field",), ())
    job = job_of(family, predictors=("sex",), strata=("field",))
    names = [MODELS[family].build(job, f, slice(0, 2)).design.names for f in (own, own.pooled())]
    assert names == [("(Intercept)", "sex[female]"), ("(Intercept)", "field[physics]", "field[health]", "sex[female]")]


@each_family
def test_a_stratum_that_does_not_start_the_frame_sees_its_own_rows(family):
    own = Crosstab(EVERYWHERE.codes, EVERYWHERE.levels, EVERYWHERE.count, ("field",), ())
    model = model_of(family, own, slice(2, 4))
    records = some_records(family)
    records = records.take((records.row == 2) | (records.row == 3))
    theta = theta_at_random(model, family, 4, 1)
    assert model.log_lik(theta, records).shape == (4, 11)
    assert model.expect(theta)[1].shape == (4, 2)
    assert model.statistics(records, np.ones(11))[:, 0 if model.combine == "sum" else 1].sum() == 11.0
