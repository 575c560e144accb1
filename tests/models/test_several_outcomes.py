"""The lognormal model of one outcome and of several against inverse-Wishart laws and SciPy's density.

Monte Carlo criteria are in standard errors of a mean over draws, at Z_LIMIT: under 4e-5 a criterion over random keys.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases import job_with
from scipy import stats
from test_lognormal import (
    EVERYWHERE,
    NAMES,
    Z_LIMIT,
    crosstab_of,
    indicators,
    model_of as model_of_one,
    some_alpha,
    some_records,
    z_scores,
)

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.models.lognormal.conjugate import draws_of, extremes_of_many, factors_of_many
from dpdist.models.lognormal.model import Lognormal, limited_lognormal_mean
from dpdist.models.numerics import tiles
from dpdist.models.protocol import Improper

KEY = Key(b"tests/models/test_several")
THREE = ("salary", "hours", "bonus")


def job(outcomes, predictors=("field", "sex"), bounds=(0, 1e12), population=None, **model):
    columns = {name: {"bounds": list(bounds)} for name in outcomes}
    fitted = {"family": "lognormal", "predictors": list(predictors), **model}
    return job_with(columns, list(outcomes), fitted, {"weight": "weight", "population": population})


def model_of(d=2, crosstab=EVERYWHERE, proper=False, **said):
    return Lognormal.build(job(THREE[:d], **said), crosstab, slice(0, len(crosstab)), proper)


def records_of(crosstab, z):
    """Records with logs z (record, D), the weight's last."""
    row = crosstab.expand()
    return Records.of_outcomes(np.exp(z[:, :-1]), np.exp(z[:, -1]), row)


def logs_of(crosstab, d=2, seed=1):
    rng, row = np.random.default_rng(seed), crosstab.expand()
    root = np.tril(rng.normal(0.0, 0.3, (d + 1, d + 1))) + 0.4 * np.eye(d + 1)
    return np.linspace(11.0, 4.0, d + 1) + 0.2 * row[:, None] + rng.standard_normal((len(row), d + 1)) @ root.T


def posterior(model, z, alpha, crosstab=EVERYWHERE):
    """B̂, K, S, ν by plain matrix algebra on the records themselves."""
    x = indicators(crosstab, [model.design.names[k] for k in model.design.columns])
    a = np.diag(alpha)
    k = x.T @ a @ x
    b = np.linalg.solve(k, x.T @ a @ z)
    return b, k, (z - x @ b).T @ a @ (z - x @ b), alpha.sum() - x.shape[1]


def theta_at_random(model, draws, seed, d=2):
    """Parameters as a fit to some records has them."""
    records = records_of(EVERYWHERE, logs_of(EVERYWHERE, d, seed))
    return model.draw(model.statistics(records, np.ones(len(records))), draws, KEY.generator("theta", block=seed))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_log_lik_is_scipys_multivariate_normal_density(d):
    model, z = model_of(d), logs_of(EVERYWHERE, d, 7)
    theta = theta_at_random(model, 12, 3, d)
    means = np.einsum("np,spk->snk", indicators(EVERYWHERE, NAMES), theta["coefficients"])
    oracle = [
        [stats.multivariate_normal.logpdf(zi, mi, sigma) for zi, mi in zip(z, mean, strict=True)]
        for mean, sigma in zip(means, theta["covariance"], strict=True)
    ]
    np.testing.assert_allclose(model.log_lik(theta, records_of(EVERYWHERE, z)), oracle, rtol=1e-12, atol=1e-12)


def precise(theta, x, z):
    """The density by a Cholesky root in extended precision after the float64 inputs, (draw, record)."""
    mean, sigma, x, z = (np.asarray(v, dtype=np.longdouble) for v in (*theta.values.values(), x, z))
    away = z - (mean[:, None] * x[None, :, :, None]).sum(axis=2)
    root, half, size = np.zeros_like(sigma), np.zeros_like(away), z.shape[1]
    for i in range(size):
        for j in range(i + 1):
            left = sigma[:, i, j] - (root[:, i, :j] * root[:, j, :j]).sum(axis=1)
            root[:, i, j] = np.sqrt(left) if i == j else left / root[:, j, j]
        half[..., i] = (away[..., i] - (root[:, None, i, :i] * half[..., :i]).sum(axis=-1)) / root[:, None, i, i]
    diagonal = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return -size * np.log(2 * np.longdouble(np.pi)) / 2 - diagonal[:, None] - (half**2).sum(axis=-1) / 2


@pytest.mark.parametrize("apart", [None, 1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("d", [2, 3])
def test_bounds_are_the_largest_log_likelihoods_and_never_too_small_in_extended_precision(d, apart):
    """Also where two outcomes are all but one: apart by this sd of logs."""
    model, z = model_of(d), logs_of(EVERYWHERE, d, 7)
    if apart is not None:
        z[:, 1] = z[:, 0] + apart * np.random.default_rng(3).standard_normal(len(z))
    records = records_of(EVERYWHERE, z)
    theta = model.draw(model.statistics(records, some_alpha(len(z))), 300, KEY.generator("bounds", block=d))
    logs = np.column_stack([np.log(values) for values in (*records.outcomes.T, records.weight)])
    exact = precise(theta, indicators(EVERYWHERE, NAMES), logs)
    found = model.extremes(theta, records)
    assert np.all(found.highest >= exact.max(axis=0))
    assert np.all(found.lowest <= exact.min(axis=0))
    if apart is None:
        np.testing.assert_allclose(found.highest, exact.max(axis=0).astype(float), rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(found.lowest, exact.min(axis=0).astype(float), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("component", ["last outcome", "weight"])
def test_a_record_without_a_finite_log_likelihood_has_no_finite_bound_and_others_have_theirs(d, component):
    model, records = model_of(d), records_of(EVERYWHERE, logs_of(EVERYWHERE, d))
    theta = theta_at_random(model, 31, 1, d)
    for value in (0.0, np.inf, np.nan):
        outcomes, weight = records.outcomes.copy(), records.weight.copy()
        (weight if component == "weight" else outcomes[:, -1])[3] = value
        with np.errstate(divide="ignore", invalid="ignore"):
            found = model.extremes(theta, replace(records, outcomes=outcomes, weight=weight))
        fine = records.record != 3
        np.testing.assert_array_equal(np.isfinite(found.bound), fine)
        np.testing.assert_array_equal(found.bound[fine], model.extremes(theta, records).bound[fine])


@pytest.mark.parametrize("records", [1, 127, 128, 129, 300])
def test_extremes_do_not_depend_on_tiles(records):
    rng = np.random.default_rng(records)
    features, table = rng.standard_normal((10, records)), rng.standard_normal((10, 1000))
    values = features.T @ table
    high, low = extremes_of_many(features, table)
    np.testing.assert_allclose(high, values.max(axis=1), rtol=1e-13)
    np.testing.assert_allclose(low, values.min(axis=1), rtol=1e-13)


def worst_z(draws, b, k, s, nu):
    """Largest z score of B, Σ, Σ⁻¹ and the covariance of B's first row with the others; ν > 8."""
    d = len(s)
    upper = np.triu_indices(d)
    spread = draws["coefficients"] - b
    products = np.einsum("sj,spk->sjpk", spread[:, 0], spread)
    expected = np.einsum("jk,p->jpk", s / (nu - d - 1.0), np.linalg.inv(k)[0])
    return max(
        z_scores(draws["coefficients"], b).max(),
        z_scores(draws["covariance"][:, *upper], (s / (nu - d - 1.0))[upper]).max(),
        z_scores(np.linalg.inv(draws["covariance"])[:, *upper], (nu * np.linalg.inv(s))[upper]).max(),
        z_scores(products, expected).max(),
    )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_draws_have_the_moments_of_the_matrix_normal_inverse_wishart_law(d):
    """Controls: ν ± 1, S·1.05, K·1.05 and a B̂ off by a twentieth of its sd."""
    model, z = model_of(d), logs_of(EVERYWHERE, d)
    alpha = some_alpha(len(z))
    draws = model.draw(model.statistics(records_of(EVERYWHERE, z), alpha), 60_000, KEY.generator("moments", block=d))
    b, k, s, nu = posterior(model, z, alpha)
    assert worst_z(draws, b, k, s, nu) < Z_LIMIT
    sd = np.sqrt(np.outer(np.diag(np.linalg.inv(k)), np.diag(s)) / nu)
    for wrong in (
        (b, k, s, nu + 1.0),
        (b, k, s, nu - 1.0),
        (b, k, 1.05 * s, nu),
        (b, 1.05 * k, s, nu),
        (b + sd / 20.0, k, s, nu),
    ):
        assert worst_z(draws, *wrong) > Z_LIMIT


@pytest.mark.parametrize("d", [1, 2, 3])
def test_draws_have_the_quantiles_of_their_marginals(d):
    """S_kk/Σ_kk ~ χ² with ν − d; S_w·y/Σ_w·y, given the outcomes, ~ χ² with ν; B_jk Student with ν − d. KS at 1e-6.
    Controls: ν ± 1."""
    model, z = model_of(d), logs_of(EVERYWHERE, d)
    alpha = some_alpha(len(z))
    draws = model.draw(model.statistics(records_of(EVERYWHERE, z), alpha), 20_000, KEY.generator("marginals", block=d))
    b, k, s, nu = posterior(model, z, alpha)
    sigma = draws["covariance"]
    for component in range(d + 1):
        ratio = s[component, component] / sigma[:, component, component]
        assert stats.kstest(ratio, stats.chi2(nu - d).cdf).pvalue > 1e-6
        assert stats.kstest(ratio, stats.chi2(nu).cdf).pvalue < 1e-6
        scale = np.sqrt(np.linalg.inv(k)[0, 0] * s[component, component] / (nu - d))
        t = (draws["coefficients"][:, 0, component] - b[0, component]) / scale
        assert stats.kstest(t, stats.t(nu - d).cdf).pvalue > 1e-6
    left = 1.0 / np.linalg.inv(s)[-1, -1] * np.linalg.inv(sigma)[:, -1, -1]
    assert stats.kstest(left, stats.chi2(nu).cdf).pvalue > 1e-6
    assert all(stats.kstest(left, stats.chi2(nu + one).cdf).pvalue < 1e-6 for one in (-1.0, 1.0))


@pytest.mark.parametrize("d", [1, 2])
def test_draws_are_a_function_of_statistics_and_stream(d):
    model, z = model_of(d), logs_of(EVERYWHERE, d)
    statistics = model.statistics(records_of(EVERYWHERE, z), some_alpha(len(z)))
    one, same, other = (model.draw(statistics, 5, KEY.generator(stage)) for stage in ("a", "a", "b"))
    for name in ("coefficients", "covariance"):
        np.testing.assert_array_equal(one[name], same[name])
        assert not np.any(one[name] == other[name])


@pytest.mark.parametrize("sets", [1, 2])
def test_outcomes_in_another_order_have_the_same_law_in_that_order(sets):
    """Exactly for statistics, centres and evidence; in moments for draws, whose uniforms meet other components."""
    model, z, alpha = model_of(3), logs_of(EVERYWHERE, 3), some_alpha(len(EVERYWHERE.expand()), sets)
    order = [2, 0, 1, 3]
    statistics, turned = (model.statistics(records_of(EVERYWHERE, v), alpha) for v in (z, z[:, order]))
    centre, other = model.centre(statistics[None]), model.centre(turned[None])
    np.testing.assert_allclose(other["coefficients"], centre["coefficients"][:, :, order], rtol=1e-9)
    np.testing.assert_allclose(other["covariance"], centre["covariance"][:, order][:, :, order], rtol=1e-9)
    assert model.log_evidence(turned) == pytest.approx(model.log_evidence(statistics), rel=1e-11)
    theta = model.draw(statistics, 50, KEY.generator("order"))
    same = draws_of(theta["coefficients"][:, :, order], theta["covariance"][:, order][:, :, order])
    lik = model.log_lik(theta, records_of(EVERYWHERE, z))
    np.testing.assert_allclose(model.log_lik(same, records_of(EVERYWHERE, z[:, order])), lik, rtol=1e-11, atol=1e-11)
    draws = model.draw(turned, 60_000, KEY.generator("turned", block=sets))
    b, k, s, nu = posterior(model, z, alpha)
    assert worst_z(draws, b[:, order], k, s[order][:, order], nu) < Z_LIMIT
    assert worst_z(draws, b, k, s, nu) > Z_LIMIT, "the check must see the order"


def test_evidence_is_that_of_the_outcomes_one_after_the_other():
    """p(z₁, z₂) by the matrix t law of all components against SciPy's density integrated over draws is out of reach; the
    ratio of evidences with and without a record is the predictive density, a multivariate t."""
    model, z = model_of(2), logs_of(EVERYWHERE)
    records = records_of(EVERYWHERE, z)
    most = np.arange(len(z)) > 0
    ones = np.ones(len(z))
    found = model.log_evidence(model.statistics(records, ones))
    found -= model.log_evidence(model.statistics(records.take(most), ones[most]))
    x = indicators(EVERYWHERE, NAMES)
    k = x[1:].T @ x[1:]
    b = np.linalg.solve(k, x[1:].T @ z[1:])
    s = (z[1:] - x[1:] @ b).T @ (z[1:] - x[1:] @ b)
    nu = len(z) - 1.0 - x.shape[1] - 3.0 + 1.0
    shape = s / nu * (1.0 + x[0] @ np.linalg.solve(k, x[0]))
    assert found == pytest.approx(stats.multivariate_t(x[0] @ b, shape, nu).logpdf(z[0]), abs=1e-9)


def test_a_list_of_one_outcome_is_that_outcome_to_the_bit():
    one = job(("salary",))
    assert one.outcome == "salary"
    assert one.public["outcome"] == "salary"
    model, other, records = model_of(1), model_of_one(), some_records()
    alpha = some_alpha(len(records))
    draws, same = (m.draw(m.statistics(records, alpha), 40, KEY.generator("one")) for m in (model, other))
    np.testing.assert_array_equal(draws["covariance"], same["covariance"])
    np.testing.assert_array_equal(model.extremes(draws, records), other.extremes(same, records))


def test_the_general_kernel_agrees_with_the_compiled_one_where_both_serve():
    model, records = model_of_one(), some_records()
    draws = model.draw(model.statistics(records, some_alpha(len(records))), 300, KEY.generator("kernels"))
    found = model.extremes(draws, records)
    z = [np.log(records.outcomes[:, 0]), np.log(records.weight)]
    pattern = model.design.pattern[records.row]
    for own, features, table, slack in factors_of_many(model._means(draws), draws["covariance"], z, pattern):
        high, low = extremes_of_many(features, table)
        np.testing.assert_allclose(high + slack, found.highest[own], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(low - slack, found.lowest[own], rtol=1e-9, atol=1e-9)
        again = tiles.extremes(features, np.ascontiguousarray(table))
        np.testing.assert_allclose((high, low), again, rtol=1e-11, atol=1e-11)


def known(population=None, **said):
    """A model of one cell with parameters that are written down, two outcomes."""
    model = model_of(2, crosstab_of({(0, 0): 9}), predictors=(), population=population, **said)
    covariance = np.array([[0.16, 0.05, -0.12], [0.05, 0.09, 0.06], [-0.12, 0.06, 0.25]])
    return model, draws_of(np.array([[[1.0, 2.0, 0.5]]]), covariance[None]), covariance


ROWS = np.zeros(400_000, dtype=np.int32)


def test_expectations_are_weighted_means_of_simulated_records_in_every_outcome():
    """FBS; by the covariance with log w: −.12 lowers salary's weighted mean, .06 raises hours'. 5 SE, 12 figures."""
    model, theta, covariance = known()
    y, w = model.simulate(theta, ROWS, KEY.generator("fbs"))
    assert y.shape == (len(ROWS), 2)
    for j, mean in enumerate((1.0, 2.0)):
        weight, product = model.expect(theta, j)
        closed = np.exp(mean + covariance[j, 2] + covariance[j, j] / 2.0)
        assert product[0, 0] / weight[0, 0] == pytest.approx(closed, rel=1e-12)
        for values, expected in ((w, weight[0, 0]), (w * y[:, j], product[0, 0])):
            assert z_scores(values[:, None], expected).max() < 5.0
            assert z_scores(values[:, None], 1.01 * expected).max() > 5.0
        plain = np.exp(mean + covariance[j, j] / 2.0)
        assert z_scores(y[:, [j]], plain).max() < 5.0
        assert abs(closed / plain - 1.0) > 0.05, "the tilt must matter"


def test_population_law_has_the_tilted_means_and_the_covariance_of_the_sample_law():
    model, theta, covariance = known(synthesis="fbp")
    y, w = model.simulate(theta, ROWS, KEY.generator("fbp"))
    z = np.log(y)
    assert z_scores(z, np.array([1.0, 2.0]) + covariance[:2, 2]).max() < 5.0
    assert z_scores(z, np.array([1.0, 2.0])).min() > 5.0
    centred = z - z.mean(axis=0)
    products = np.column_stack([centred[:, 0] ** 2, centred[:, 0] * centred[:, 1], centred[:, 1] ** 2])
    assert z_scores(products, np.array([0.16, 0.05, 0.09])).max() < 5.0
    np.testing.assert_allclose(w, np.exp(0.5 + 0.25 / 2.0), rtol=1e-12)
    for j in range(2):
        weight, product = model.expect(theta, j)
        assert z_scores(y[:, [j]], product[0, 0] / weight[0, 0]).max() < 5.0


def test_an_expected_weight_is_the_regression_on_all_outcomes():
    model, theta, covariance = known()
    y = np.exp([[1.3, 1.8], [0.2, 2.5]])
    slope = np.linalg.solve(covariance[:2, :2], covariance[:2, 2])
    left = covariance[2, 2] - slope @ covariance[:2, 2]
    expected = np.exp(0.5 + (np.log(y) - [1.0, 2.0]) @ slope + left / 2.0)
    np.testing.assert_allclose(model.expected_weight(theta, np.zeros(2, dtype=np.int32), y), expected, rtol=1e-12)


def test_every_outcome_is_limited_to_its_own_bounds():
    model, theta, _ = known()
    model = replace(model, outcome_bounds=(2.0, 3.0), other_bounds=((5.0, 9.0),))
    y, _ = model.simulate(theta, ROWS[:2000], KEY.generator("bounds"))
    np.testing.assert_array_equal((y.min(axis=0), y.max(axis=0)), ((2.0, 5.0), (3.0, 9.0)))
    weight, product = model.expect(theta, 1)
    limited = limited_lognormal_mean(np.array(2.06), np.array(0.09), (5.0, 9.0))
    assert product[0, 0] / weight[0, 0] == pytest.approx(float(limited), rel=1e-12)


@pytest.mark.parametrize(("d", "excess", "proper"), [(2, -0.5, True), (2, 3.0, False), (3, -0.5, True), (3, 3.0, False)])
def test_the_posterior_exists_where_privacy_weights_sum_to_more_than_p_plus_the_outcomes(d, excess, proper):
    model, z = model_of(d), logs_of(EVERYWHERE, d)
    total = model.identified + d + excess
    statistics = model.statistics(records_of(EVERYWHERE, z), np.full(len(z), total / len(z)))
    if proper:
        with pytest.raises(Improper, match=f"p \\+ {d} = {model.identified + d}"):
            model.draw(statistics, 200, KEY.generator("few"))
    else:
        assert np.isfinite(model.draw(statistics, 200, KEY.generator("few"))["covariance"]).all()


def test_an_outcome_that_is_a_power_of_another_is_improper():
    model, z = model_of(2), logs_of(EVERYWHERE)
    z[:, 1] = 1.0 + 0.5 * z[:, 0]
    with pytest.raises(Improper):
        model.draw(model.statistics(records_of(EVERYWHERE, z), np.ones(len(z))), 50, KEY.generator("power"))
