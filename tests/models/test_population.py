"""FBP: the population model of [T] evaluated from its own definition, against the un-tilted draws of the sample fit.

Population: log y | x ~ N(β'x, σ_y²), log π | y, x ~ N(κ_y log y + κ'x, σ_π²), w = 1/π; a sampled record has the likelihood
π·p(log y, log w | x) / E(π | x). Nothing here uses the identity μ_pop = μ_sample + Σe_w except through the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize, stats

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.models.lognormal.conjugate import draws_of
from dpdist.models.lognormal.model import Lognormal

KEY = Key(b"tests/models/test_population")
Z_LIMIT = 4.9
"""Two-sided normal tail 1e-6 a figure."""
FRAME = Crosstab({"sex": np.array([0, 1], dtype=np.int32)}, {"sex": ("male", "female")}, np.array([5, 4]), (), ())
PATTERNS = np.array([[1.0, 0.0], [1.0, 1.0]])


def model_of(synthesis="fbp", crosstab=FRAME, predictors=("sex",), salary=(0, 1e12), population=None, **said):
    job = Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {"sex": {"levels": ["male", "female"]}, "salary": {"bounds": list(salary)}},
            "survey": {"weight": "weight", "population": population},
            "outcome": "salary",
            "model": {"family": "lognormal", "predictors": predictors, "synthesis": synthesis, **said},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "3.6"},
            "tables": [{"name": "t", "by": ["sex"], "statistics": ["count"]}],
        }
    )
    return Lognormal.build(job, crosstab, slice(0, len(crosstab)))


class Population(NamedTuple):
    """Parameters of the population model; β and κ are (predictor,)."""

    beta: np.ndarray
    kappa: np.ndarray
    kappa_y: float
    sd_y: float
    sd_pi: float

    def log_density(self, x, log_y, log_w):
        """log p(log y, log w | x) in the population; log w = −log π has the same density as log π."""
        outcome = stats.norm.logpdf(log_y, x @ self.beta, self.sd_y)
        return outcome + stats.norm.logpdf(-log_w, self.kappa_y * log_y + x @ self.kappa, self.sd_pi)

    def mean_inclusion(self, x):
        """E(π | x) by the trapezoidal rule over both variables, which for normal integrands errs by rounding only."""
        steps = np.linspace(-12.0, 12.0, 241)
        log_y = x @ self.beta + self.sd_y * steps
        centre = self.kappa_y * log_y + x @ self.kappa
        inner = np.exp(centre[:, None] + self.sd_pi * steps + self.sd_pi * self.sd_pi)
        # shifting log π by σ_π² centres the tilted integrand exp(log π)·p(log π) on the grid
        density = stats.norm.pdf(steps + self.sd_pi)
        given_y = (inner * density).sum(axis=1)
        tilt = self.kappa_y * self.sd_y
        assert abs(tilt) < 4.0, "the outer grid must hold the tilted outcome"
        return float((given_y * stats.norm.pdf(steps)).sum() * (steps[1] - steps[0]) ** 2)

    def sample_log_lik(self, x, log_y, log_w):
        """log of π·p(z|x)/E(π|x)."""
        return -log_w + self.log_density(x, log_y, log_w) - np.log(self.mean_inclusion(x))

    def as_normal(self):
        """Mean (predictor, component) and covariance of (log y, log w) in the population."""
        location = np.column_stack([self.beta, -self.kappa - self.kappa_y * self.beta])
        yy, yw = self.sd_y**2, -self.kappa_y * self.sd_y**2
        return location, np.array([[yy, yw], [yw, self.kappa_y**2 * yy + self.sd_pi**2]])


def population_at_random(seed):
    rng = np.random.default_rng(seed)
    beta, kappa = np.array([11.0, rng.normal()]), np.array([rng.normal(-15.0, 1.0), rng.normal()])
    return Population(beta, kappa, rng.uniform(-1.5, 1.5), *rng.uniform(0.2, 1.0, 2))


@pytest.mark.parametrize("seed", range(8))
def test_the_sample_likelihood_is_the_sample_normal_law_shifted_by_one_column_of_its_covariance(seed):
    """Control: with the shift turned round, or left out, the two differ."""
    said = population_at_random(seed)
    model = model_of()
    rng = np.random.default_rng([seed, 1])
    location, sigma = said.as_normal()
    row = FRAME.expand()
    z = (PATTERNS @ location)[row] + rng.standard_normal((len(row), 2)) @ np.linalg.cholesky(sigma).T
    records = Records.of_outcomes(np.exp(z[:, 0]), np.exp(z[:, 1]), row)
    slow = [said.sample_log_lik(PATTERNS[r], y, w) for r, (y, w) in zip(row, z, strict=True)]

    def found(shift):
        moved = location + np.array([[1.0], [0.0]]) * shift * sigma[:, 1]
        return model.log_lik(draws_of(moved[None], sigma[None]), records)[0]

    np.testing.assert_allclose(found(-1.0), slow, rtol=1e-9, atol=1e-9)
    assert np.abs(found(1.0) - slow).max() > 1e-2
    assert np.abs(found(0.0) - slow).max() > 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_the_expected_weight_is_one_over_the_mean_inclusion_probability(seed):
    said = population_at_random(seed)
    location, sigma = said.as_normal()
    theta = draws_of((location - np.array([[1.0], [0.0]]) * sigma[:, 1])[None], sigma[None])
    weight, product = (part[0] for part in model_of(salary=(0, np.finfo(float).max)).expect(theta))
    np.testing.assert_allclose(weight, [1.0 / said.mean_inclusion(x) for x in PATTERNS], rtol=1e-9)
    np.testing.assert_allclose(product / weight, np.exp(PATTERNS @ said.beta + said.sd_y**2 / 2.0), rtol=1e-9)


SMALL = 14
ONE_CELL = Crosstab({"sex": np.zeros(1, dtype=np.int32)}, {"sex": ("male", "female")}, np.array([SMALL]), (), ())


def small_sample():
    rng = np.random.default_rng(20)
    log_y = 11.0 + 0.5 * rng.standard_normal(SMALL)
    return log_y, 4.0 - 0.8 * (log_y - 11.0) + 0.4 * rng.standard_normal(SMALL)


def log_posterior(free, log_y, log_w):
    """FBP posterior of (β, κ₀, κ_y, log σ_y², log σ_π²) given a sample, by its definition; free is (point, 5).

    The matching prior |Σ|^(−3/2) dB dΣ becomes (σ_y²σ_π²)^(−3/2) σ_y² in (σ_y², κ_y, σ_π²): |∂Σ/∂(σ_y², κ_y, σ_π²)| = σ_y²
    and |∂μ/∂(β, κ₀)| = 1; logarithms of the variances bring the factor σ_y²σ_π².
    """
    beta, kappa, kappa_y, log_vy, log_vp = (column[:, None] for column in free.T)
    vy, vp = np.exp(log_vy), np.exp(log_vp)
    log_prior = -1.5 * (log_vy + log_vp) + log_vy + log_vy + log_vp
    outcome = -0.5 * (log_vy + (log_y - beta) ** 2 / vy)
    selection = -0.5 * (log_vp + (-log_w - kappa - kappa_y * log_y) ** 2 / vp)
    log_mean_inclusion = kappa + kappa_y * beta + (kappa_y**2 * vy + vp) / 2.0
    return (outcome + selection - log_w - log_mean_inclusion).sum(axis=1) + log_prior[:, 0]


def figures_of(beta, kappa_y, sd_y):
    """What is compared: the first two moments of the population mean of log y, κ_y and σ_y, around fixed points."""
    columns = [beta - 11.0, kappa_y - 0.8, sd_y - 0.5]
    return np.column_stack([*columns, *(c**2 for c in columns)])


def importance_sampled(size):
    """Posterior means of `figures_of` and their standard errors: Student proposal at the mode, self-normalised."""
    data = small_sample()
    start = np.array([11.0, -12.8, 0.8, -1.4, -1.8])
    best = optimize.minimize(lambda v: -log_posterior(v[None], *data)[0], start, method="BFGS", options={"gtol": 1e-4})
    proposal = stats.multivariate_t(best.x, 1.5 * best.hess_inv, df=5, seed=np.random.default_rng(3))
    points = proposal.rvs(size)
    log_ratio = log_posterior(points, *data) - proposal.logpdf(points)
    ratio = np.exp(log_ratio - log_ratio.max())
    ratio /= ratio.sum()
    assert 1.0 / (ratio**2).sum() > size / 10, "the proposal must be worth a tenth of its points"
    values = figures_of(points[:, 0], points[:, 2], np.exp(points[:, 3] / 2.0))
    mean = ratio @ values
    return mean, np.sqrt((ratio**2) @ (values - mean) ** 2)


def untilted(draws):
    """β, κ_y, σ_y of the package's FBP, read off its expectations: E(wy|x)/E(w|x) = exp(β + σ_y²/2)."""
    weight, product = model_of(crosstab=ONE_CELL, predictors=(), salary=(0, np.finfo(float).max)).expect(draws)
    sigma = draws["covariance"]
    beta = np.log(product / weight)[:, 0] - sigma[:, 0, 0] / 2.0
    return beta, -sigma[:, 0, 1] / sigma[:, 0, 0], np.sqrt(sigma[:, 0, 0])


def test_untilted_exact_draws_are_the_population_models_posterior():
    """Six figures in units of both Monte Carlo errors: false alarm < 6e-6; controls: the shift turned round or left out."""
    log_y, log_w = small_sample()
    number = np.arange(SMALL)
    records = Records(number, 0 * ONE_CELL.expand(), np.exp(log_y), np.exp(log_w), np.full(SMALL, -1, dtype=np.int32))
    model = model_of(crosstab=ONE_CELL, predictors=())
    draws = model.draw(model.statistics(records, np.ones(SMALL)), 100_000, KEY.generator("untilted"))
    expected, expected_error = importance_sampled(200_000)

    def distance(beta, kappa_y, sd_y):
        values = figures_of(beta, kappa_y, sd_y)
        error = np.hypot(values.std(axis=0) / np.sqrt(len(values)), expected_error)
        return np.abs((values.mean(axis=0) - expected) / error).max()

    beta, kappa_y, sd_y = untilted(draws)
    assert distance(beta, kappa_y, sd_y) < Z_LIMIT
    sample_mean, shift = draws["coefficients"][:, 0, 0], draws["covariance"][:, 0, 1]
    np.testing.assert_allclose(beta, sample_mean + shift, rtol=1e-9)
    assert distance(sample_mean - shift, kappa_y, sd_y) > Z_LIMIT
    assert distance(sample_mean, kappa_y, sd_y) > Z_LIMIT


THETA = draws_of(np.array([[[11.0, 4.0], [-0.2, 0.3]]]), np.array([[[0.25, -0.18], [-0.18, 0.36]]]))


def at_row(row, size):
    return np.full(size, row, dtype=np.int32)


def z_scores(values, expected):
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return np.abs((values.mean(axis=0) - expected) / error)


def test_synthetic_outcomes_follow_the_population_law():
    """Two moments and a Kolmogorov–Smirnov test at 1e-6: false alarm < 3e-6; control: the sample law."""
    y, _ = model_of().simulate(THETA, at_row(1, 50_000), KEY.generator("fbp"))
    mean, variance = 11.0 - 0.2 - 0.18, 0.25
    u = np.log(y) - mean
    assert z_scores(np.column_stack([u, u**2]), np.array([0.0, variance])).max() < Z_LIMIT
    assert stats.kstest(u, stats.norm(0.0, 0.5).cdf).pvalue > 1e-6
    assert stats.kstest(u - 0.18, stats.norm(0.0, 0.5).cdf).pvalue < 1e-6


def test_weighting_sample_law_records_by_their_weights_gives_the_population_law():
    """FBS and FBP tell of one population. Two figures: false alarm < 2e-6; control: the unweighted sample."""
    y, w = model_of("fbs").simulate(THETA, at_row(0, 100_000), KEY.generator("fbs"))
    u = np.log(y) - (11.0 - 0.18)
    moments = np.column_stack([u, u**2 - 0.25])
    assert z_scores(moments * w[:, None], np.zeros(2)).max() < Z_LIMIT
    assert z_scores(moments, np.zeros(2)).max() > Z_LIMIT


def test_a_synthetic_weight_is_one_over_the_mean_inclusion_probability_of_its_group():
    _, w = model_of().simulate(THETA, np.array([0, 1, 0], dtype=np.int32), KEY.generator("weights"))
    np.testing.assert_allclose(w, np.exp([4.0 + 0.18, 4.3 + 0.18, 4.0 + 0.18]), rtol=1e-14)


def test_proportional_weights_are_the_public_population_over_the_sample():
    model = model_of(population_weights="proportional", population=1800)
    _, w = model.simulate(THETA, np.array([0, 1, 0], dtype=np.int32), KEY.generator("weights"))
    np.testing.assert_array_equal(w, 1800 / 9)
    weight, product = model.expect(THETA)
    np.testing.assert_array_equal(weight, 1800 / 9)
    np.testing.assert_allclose(product / weight, np.exp([[11.0 - 0.18 + 0.125, 10.8 - 0.18 + 0.125]]), rtol=1e-9)


@pytest.mark.parametrize("salary", [(0, 1e12), (40_000, 90_000)], ids=["open", "bounded"])
def test_tables_from_parameters_are_the_same_under_fbs_and_fbp(salary):
    fbs, fbp = (model_of(synthesis, salary=salary).expect(THETA) for synthesis in ("fbs", "fbp"))
    np.testing.assert_array_equal(fbs[0], fbp[0])
    np.testing.assert_array_equal(fbs[1], fbp[1])


def test_the_fit_its_draws_and_its_bounds_are_the_same_under_fbs_and_fbp():
    log_y, log_w = small_sample()
    row = FRAME.expand()
    records = Records.of_outcomes(np.exp(log_y[:9]), np.exp(log_w[:9]), row)
    found = []
    for synthesis in ("fbs", "fbp"):
        model = model_of(synthesis)
        draws = model.draw(model.statistics(records, np.ones(9)), 50, KEY.generator("same"))
        found.append((draws["coefficients"], draws["covariance"], *model.extremes(draws, records)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
