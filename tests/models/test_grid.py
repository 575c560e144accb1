"""Grid samplers: what they draw from against the posterior on a grid three times as fine and on another one altogether."""

from __future__ import annotations

import numpy as np
import pytest
from cases import model_of, records_of, some_alpha, some_records
from hypothesis import given, settings, strategies as st
from scipy import stats
from scipy.special import gammaln, logsumexp

from dpdist.core.keys import Key
from dpdist.models.beta import LOG_PRECISION, BetaPosterior
from dpdist.models.negative_binomial import LOG_DISPERSION, NegativeBinomialPosterior
from dpdist.models.numerics import grid
from dpdist.models.protocol import Improper

KEY = Key(b"tests/models/test_grid")
FINER = 3
Z_LIMIT = 4.9
"""Two-sided normal tail 1e-6 a figure."""


def total_variation(posterior, v_box):
    """Between the bilinear interpolant and the density on a grid three times as fine, and the mass outside the box."""
    (t_low, t_high), (v_low, v_high) = grid.zoomed(posterior, v_box)
    size = FINER * (grid.NODES - 1) + 1
    t, v = np.linspace(t_low, t_high, size), np.linspace(v_low, v_high, size)
    fine = posterior(t, v)
    fine = np.exp(fine - fine.max())
    place = np.arange(size) / FINER
    cell = np.minimum(place.astype(int), grid.NODES - 2)
    step = place - cell
    coarse = fine[::FINER, ::FINER]
    rows = coarse[cell] * (1 - step)[:, None] + coarse[cell + 1] * step[:, None]
    interpolant = rows[:, cell] * (1 - step) + rows[:, cell + 1] * step
    wide_t = np.linspace(*grid.T_BOX, 2001)
    wide_v = np.linspace(max(v_box[0], 2 * v_low - v_high), min(v_box[1], 2 * v_high - v_low), 801)
    wide = posterior(wide_t, wide_v)
    wide = np.exp(wide - wide.max())
    inside = np.outer((wide_t >= t_low) & (wide_t <= t_high), (wide_v >= v_low) & (wide_v <= v_high))
    return 0.5 * np.abs(fine / fine.sum() - interpolant / interpolant.sum()).sum(), (wide * ~inside).sum() / wide.sum()


def beta_posterior(size, a, b, seed, alpha=1.0):
    y = np.clip(np.random.default_rng(seed).beta(a, b, size), 1e-300, 1 - 2.0**-53)
    return BetaPosterior(alpha * size, alpha * np.log(y).sum(), alpha * np.log1p(-y).sum())


def counts(size, mean, dispersion, seed):
    rng = np.random.default_rng(seed)
    return rng.poisson(mean * rng.gamma(dispersion, 1 / dispersion, size)).astype(float)


SIZES = st.sampled_from([5, 20, 200, 2000, 100_000])


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=25)
@given(SIZES, st.floats(-4, 5), st.floats(-4, 5), st.floats(0.05, 1.0), st.integers(0, 2**20))
def test_a_beta_grid_errs_by_less_than_it_says(size, log_a, log_b, alpha, seed):
    posterior = beta_posterior(size, np.exp(log_a), np.exp(log_b), seed, alpha)
    found, outside = total_variation(posterior, LOG_PRECISION)
    limit = grid.GRID_ERROR if alpha * size >= 5 else 2e-3
    assert found < limit
    assert outside < 1e-5


@settings(derandomize=True, deadline=None, max_examples=12)
@given(SIZES, st.floats(-1, 12), st.floats(-2, 8), st.integers(0, 2**20))
def test_a_negative_binomial_grid_errs_by_less_than_it_says(size, log_mean, log_dispersion, seed):
    y = counts(min(size, 5000), np.exp(log_mean), np.exp(log_dispersion), seed)
    rows = np.column_stack(np.unique(y, return_counts=True)).astype(float)
    found, outside = total_variation(NegativeBinomialPosterior.of(rows), LOG_DISPERSION)
    assert found < (grid.GRID_ERROR if (y > 0).sum() >= 5 else 2e-3)
    assert outside < 1e-5


@pytest.mark.parametrize("values", [[], [0.0], [0.0] * 50, [3.0], [1e6] * 30])
def test_a_negative_binomial_grid_serves_hardly_any_information(values):
    rows = np.column_stack(np.unique(values, return_counts=True)).astype(float).reshape(-1, 2)
    found, _ = total_variation(NegativeBinomialPosterior.of(rows), LOG_DISPERSION)
    assert found < 2e-3


def test_a_coarse_grid_would_miss_the_stated_error(monkeypatch):
    """Control of the tests above."""
    monkeypatch.setattr(grid, "NODES", 101)
    assert total_variation(beta_posterior(2000, 0.5, 3.0, 1), LOG_PRECISION)[0] > grid.GRID_ERROR


def test_the_chebyshev_series_is_the_sum_of_log_gammas():
    y = counts(1000, 1e5, 2.0, 3)
    rows = np.column_stack(np.unique(y, return_counts=True)).astype(float)
    at = np.linspace(*LOG_DISPERSION, 997)
    direct = rows[:, 1] @ (gammaln(rows[:, [0]] + np.exp(at)) - gammaln(rows[:, [0]] + 1))
    np.testing.assert_allclose(NegativeBinomialPosterior.of(rows).rising(at), direct, rtol=1e-11, atol=1e-6)


def oracle(family, records, alpha, nodes=450):
    """Marginal distributions by plain summation of SciPy's weighted densities on a fixed grid in another parametrisation.

    Beta: (log a, log b); negative binomial: (log μ, log φ). Gives the two parameters at the nodes and normalised masses.
    """
    y = records.outcome
    if family == "beta":
        u, v = np.linspace(-3, 4, nodes)[:, None], np.linspace(-3, 4, nodes)
        a, b = np.exp(u), np.exp(v)
        log_a, log_b = (alpha * np.log(y)).sum(), (alpha * np.log1p(-y)).sum()
        likelihood = alpha.sum() * (gammaln(a + b) - gammaln(a) - gammaln(b)) + (a - 1) * log_a + (b - 1) * log_b
        # d(φ, λ) / d(log a, log b) = ab / λ
        target = likelihood + stats.pareto.logpdf(a + b, 1.5, scale=0.1) + u + v - np.log(a + b)
        return a / (a + b), a + b, np.exp(target - logsumexp(target))
    u, v = np.linspace(2, 5, nodes // 3)[:, None], np.linspace(-2, 4, nodes // 2)
    mean, size = np.exp(u), np.exp(v)
    target = stats.norm.logpdf(u, 0, 10) + stats.gamma.logpdf(size, 0.01, scale=100) + v
    for value, weight in zip(y, alpha, strict=True):
        target = target + weight * stats.nbinom.logpmf(value, size, size / (size + mean))
    return mean + 0 * size, size + 0 * mean, np.exp(target - logsumexp(target))


@pytest.mark.parametrize("family", ["beta", "negative_binomial"])
def test_draws_have_the_posteriors_moments_and_quantiles(family):
    """Means, products and five quantiles of each parameter; 15 figures: false alarm < 2e-5; control: α left out."""
    model, records = model_of(family), some_records(family)
    alpha = some_alpha(len(records))
    draws = model.draw_on_grid(model.statistics(records, alpha), 50_000, KEY.generator("moments"))
    names = [p.name for p in model.parameters]
    assert worst(draws, names, oracle(family, records, alpha)) < Z_LIMIT
    assert worst(draws, names, oracle(family, records, np.ones(40))) > Z_LIMIT


def worst(draws, names, known):
    """Largest z score of E log, E log², E of their product, and of the mass under five quantiles."""
    first, second, mass = known
    drawn = [np.log(draws[name]) for name in names]
    scores = [z(drawn[0] * drawn[1], (np.log(first) * np.log(second) * mass).sum())]
    for values, points in zip(drawn, (np.log(first), np.log(second)), strict=True):
        scores += [z(values, (points * mass).sum()), z(values**2, (points**2 * mass).sum())]
        order = np.argsort(points, axis=None)
        cumulative = np.cumsum(mass.ravel()[order])
        for share in (0.05, 0.25, 0.5, 0.75, 0.95):
            limit = points.ravel()[order][np.searchsorted(cumulative, share)]
            below = (mass * (points < limit - 1e-12)).sum() + (mass * (np.abs(points - limit) <= 1e-12)).sum() / 2
            scores.append(z((values <= limit).astype(float), below))
    return max(scores)


def z(values, expected):
    return abs(values.mean() - expected) / (values.std() / np.sqrt(len(values)))


@pytest.mark.parametrize("family", ["beta", "negative_binomial"])
def test_draws_move_continuously_with_the_weights_under_common_random_numbers(family):
    model, records = model_of(family), some_records(family)
    alpha = some_alpha(len(records))
    stages = ((alpha, "common"), (alpha * (1 + 1e-9), "common"), (alpha, "other"))
    one, near, other = (model.draw_on_grid(model.statistics(records, a), 200, KEY.generator(stage)) for a, stage in stages)
    for p in model.parameters:
        np.testing.assert_allclose(one[p.name], near[p.name], rtol=1e-6)
        assert not np.any(one[p.name] == other[p.name])


def test_an_outcome_of_0_or_1_is_refused_by_a_beta_model():
    model = model_of("beta")
    statistics = model.statistics(records_of(np.r_[np.full(39, 0.5), 1.0]), np.ones(40))
    for call in (lambda: model.draw_on_grid(statistics, 10, KEY.generator("edge")), lambda: model.stan_data(statistics)):
        with pytest.raises(Improper, match="above 0 and below 1"):
            call()


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_beta_posterior_exists_for_any_number_of_records(size):
    statistics = np.array([[size, size * np.log(0.5), size * np.log(0.5)]])
    draws = model_of("beta").draw_on_grid(statistics, 2000, KEY.generator("few"))
    assert np.all((draws["mean"] > 0) & (draws["mean"] < 1))
    assert np.all((draws["precision"] >= 0.1 * (1 - 1e-12)) & (draws["precision"] <= 1e6 * (1 + 1e-12)))
    if size == 0:
        assert stats.kstest(draws["mean"], stats.uniform.cdf).pvalue > 1e-6
        assert stats.kstest(draws["precision"], stats.pareto(1.5, scale=0.1).cdf).pvalue > 1e-6
        assert stats.kstest(draws["precision"], stats.pareto(1.6, scale=0.1).cdf).pvalue < 1e-2


def test_the_conditional_mode_is_where_the_density_is_largest():
    posterior = beta_posterior(50, 0.5, 3.0, 2)
    v = np.linspace(*LOG_PRECISION, 7)
    t = np.linspace(-0.5, 0.5, 2001)
    np.testing.assert_allclose(t[posterior(t, v).argmax(axis=0)], 0.0, atol=1e-3)
