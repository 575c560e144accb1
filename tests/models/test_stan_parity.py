"""Stan's programs against the package's log likelihoods, SciPy's densities and the samplers without Markov chains.

Streams are keyed and Stan's seeds fixed: a run of the suite is deterministic on a machine type.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from cases import (
    DESIGN,
    FAMILIES,
    PROPER,
    density,
    model_of,
    some_alpha,
    some_records,
)
from scipy import stats
from scipy.special import betaln

from dpdist.core.keys import Key
from dpdist.models.protocol import Clamped, Draws
from dpdist.sampling.markov import data_of
from dpdist.sampling.stan import StanSettings, fit, generate, log_density
from dpdist.sampling.toolchain import executable

KEY = Key(b"tests/models/test_stan_parity")
PROGRAMS = (*FAMILIES, "lognormal", "population")
pytestmark = pytest.mark.usefixtures("stan_cache")


def case(program, proper=True, seed=1):
    """Family, model and records of a program; the lognormal's prior is proper unless said otherwise."""
    if program in FAMILIES:
        return program, model_of(program), some_records(program, seed)
    said = {"synthesis": "fbs" if program == "lognormal" else "fbp", "prior": PROPER if proper else {"name": "improper"}}
    return "lognormal", model_of("lognormal", **said), some_records("lognormal", seed)


def flat(chains):
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in chains.draws.items()}


def wide_draws(program, data, folder):
    """The program's own parameters (1, draw, …) and all that it draws (draw, …), under little information."""
    chains = fit(executable(program), data, StanSettings(chains=1, warmup=300, draws=60), 11, folder)
    return {name: chains.draws[name] for name in PARAMETERS[program]}, flat(chains)


PARAMETERS = {
    "beta": ("phi", "lambda"),
    "beta_regression": ("unit_coefficients", "lambda"),
    "bernoulli": ("probability",),
    "lognormal": ("unit_coefficients", "unit_covariance"),
    "negative_binomial": ("log_mu", "log_phi"),
    "negative_binomial_mixture": ("log_mu", "log_phi", "share"),
    "poisson": ("log_rate",),
    "poisson_regression": ("unit_beta", "sigma_beta", "L_beta"),
    "population": ("unit_beta", "unit_kappa", "unit_sigma_y", "unit_sigma_pi", "kappa_y"),
}


def lognormal_density(theta, records):
    """log N₂(log y, log w; B'x, Σ) by SciPy, (draw, record)."""
    z = np.log(np.column_stack([records.outcome, records.weight]))
    means = np.einsum("np,spk->snk", DESIGN[records.row], theta["coefficients"])
    laws = zip(means, theta["covariance"], strict=True)
    return np.array([stats.multivariate_normal.logpdf(z - mean, np.zeros(2), sigma) for mean, sigma in laws])


def log_prior(program, model, drawn):
    """Log density, up to a constant, of the prior with respect to the program's own parameters, (draw,)."""
    if program == "beta":
        return -2.5 * np.log(drawn["lambda"])
    if program == "bernoulli":
        return np.zeros(len(drawn["probability"]))
    if program == "poisson":
        return stats.gamma.logpdf(drawn["rate"], 0.01, scale=100.0) + np.log(drawn["rate"])
    if program == "negative_binomial":
        mean = stats.norm.logpdf(np.log(drawn["mu"]), 0.0, 10.0)
        return mean + stats.gamma.logpdf(drawn["phi"], 0.01, scale=100.0) + np.log(drawn["phi"])
    if program == "negative_binomial_mixture":
        mean, share = stats.norm.logpdf(np.log(drawn["mu"]), 0.0, 10.0), stats.beta.logpdf(drawn["share"], 2.0, 2.0)
        return mean + share + stats.norm.logpdf(np.log(drawn["phi"]), np.log(10.0), 1.5).sum(axis=1)
    if program == "beta_regression":
        return stats.norm.logpdf(drawn["coefficients"], 0.0, 2.5).sum(axis=1) - 2.5 * np.log(drawn["lambda"])
    if program == "poisson_regression":
        return poisson_regression_prior(drawn)
    return conjugate_prior(program, model, drawn)


def poisson_regression_prior(drawn):
    """[V], Appendix 2: LKJ(6) on the Cholesky factor, half Student t on the scales, a normal law given both."""
    found = []
    for beta, scale, root in zip(drawn["beta"], drawn["sigma_beta"], drawn["L_beta"], strict=True):
        size = len(beta)
        powers = size - np.arange(2, size + 1) + 2 * 6 - 2
        law = stats.multivariate_normal(np.zeros(size), np.diag(scale) @ root @ root.T @ np.diag(scale))
        lkj = (powers * np.log(np.diag(root)[1:])).sum()
        found.append(lkj + stats.t.logpdf(scale, 3).sum() + law.logpdf(beta))
    return np.array(found)


def conjugate_prior(program, model, drawn):
    """IW(n₀, S₀) × MN(M, P⁻¹, Σ) by SciPy at the sample's law; for `population` with the Jacobian found numerically."""
    prior, theta = model.prior, model.from_stan(drawn)
    found = []
    for b, sigma in zip(theta["coefficients"], theta["covariance"], strict=True):
        location = stats.matrix_normal.logpdf(b, prior.location, np.linalg.inv(prior.precision), sigma)
        found.append(location + stats.invwishart.logpdf(sigma, prior.records, prior.scale))
    if program == "lognormal":
        return np.array(found)
    jacobians = [log_jacobian(*(drawn[name][i] for name in POPULATION)) for i in range(len(found))]
    return np.array(found) + np.array(jacobians)


POPULATION = ("beta", "kappa_x", "kappa_y", "sigma_y", "sigma_pi")


def log_jacobian(beta, kappa_x, *rest):
    """log |d(B, Σ) / d(β, κ_x, κ_y, σ_y, σ_π)| by complex steps, from the definition of the population's law in [T].

    In the population (log y, −log π) is normal with mean (x'β, −x'(κ_x + κ_y β)); the sample's law is tilted by π.
    """
    size = len(beta)

    def sample_law(point):
        beta, kappa_x, (kappa_y, sigma_y, sigma_pi) = point[:size], point[size : 2 * size], point[2 * size :]
        yy, yw = sigma_y**2, -kappa_y * sigma_y**2
        ww = kappa_y**2 * sigma_y**2 + sigma_pi**2
        b_y, b_w = beta.copy(), -kappa_x - kappa_y * beta
        b_y[0] -= yw
        b_w[0] -= ww
        return np.concatenate([b_y, b_w, [yy, yw, ww]])

    point = np.concatenate([beta, kappa_x, rest]).astype(complex)
    steps = 1e-30j * np.eye(len(point))
    return np.linalg.slogdet(np.array([sample_law(point + step).imag / 1e-30 for step in steps]).T)[1]


def spread(difference, size):
    """Largest departure of a difference from its mean, relative to the terms it was formed from."""
    return np.abs(difference - difference.mean()).max() / np.maximum(1.0, np.abs(size).max())


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_states_our_densities(program, tmp_path):
    """Its log_lik and its whole log density, clamped records included, to 1e-9; controls: a record left out, no prior."""
    family, model, records = case(program)
    some, alpha, clamp = records.take(slice(0, 25)), some_alpha(25), 0.3
    plain = model.stan_data(model.statistics(records, np.full(len(records), 0.05)))
    reference = model.log_lik(Draws(model.from_stan(wide_draws(program, plain, tmp_path)[1])).at(0), some)[0]
    data = {**plain, **model.stan_records(some, alpha, reference, clamp)}
    points, drawn = wide_draws(program, data, tmp_path)
    theta = Draws(model.from_stan(drawn))

    scipys = lognormal_density if family == "lognormal" else lambda theta, records: density(family, theta, records)
    own = generate(executable(model.program), data, points, 1, tmp_path)["log_lik"][0]
    np.testing.assert_allclose(own, model.log_lik(theta, some), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(own, scipys(theta, some), rtol=1e-9, atol=1e-9)

    stan = log_density(executable(model.program), data, {k: v[0] for k, v in points.items()}, tmp_path)
    clamped = np.clip(alpha * (scipys(theta, some) - reference), -clamp, clamp)
    assert 0 < (np.abs(clamped) == clamp).sum() < clamped.size
    likelihood, prior = 0.05 * scipys(theta, records).sum(axis=1), log_prior(program, model, drawn)
    target = likelihood + prior + clamped.sum(axis=1)
    assert spread(stan - target, target) < 1e-9
    assert spread(stan - target + clamped[:, 3], target) > 1e-9
    if program != "bernoulli":
        assert spread(stan - target + prior, target) > 1e-9


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_clamped_posterior_reaches_its_program_clamped(program, tmp_path):
    """What the sampler hands over of clamped records, some of weight 0: prior + Σ clip(α(f − g), ±M), to 1e-9.

    Controls: a clamp that is a tenth wider, no offset, no weights.
    """
    family, model, records = case(program)
    some, clamp = records.take(slice(0, 25)), 0.3
    plain = model.stan_data(model.statistics(records, np.full(len(records), 0.05)))
    alpha = np.where(np.arange(25) % 5 == 0, 0.0, some_alpha(25))
    offset = model.log_lik(Draws(model.from_stan(wide_draws(program, plain, tmp_path)[1])).at(0), some)[0]
    data = data_of(model, Clamped(np.column_stack([some.row, some.outcome, some.weight, alpha, offset]), clamp))
    points, drawn = wide_draws(program, data, tmp_path)
    theta = Draws(model.from_stan(drawn))
    f = lognormal_density(theta, some) if family == "lognormal" else density(family, theta, some)
    stan = log_density(executable(model.program), data, {k: v[0] for k, v in points.items()}, tmp_path)
    prior = log_prior(program, model, drawn)

    def apart(alpha, offset, clamp):
        target = prior + np.clip(alpha * (f - offset), -clamp, clamp).sum(axis=1)
        return spread(stan - target, target)

    assert apart(alpha, offset, clamp) < 1e-9
    assert min(apart(alpha, offset, 1.1 * clamp), apart(alpha, 0.0, clamp), apart(1.0, offset, clamp)) > 1e-9


CHAINS, DRAWS, INDEPENDENT = 4, 1000, 40_000
LIMIT = 4.0
"""Monte Carlo standard errors."""


def figures(program, theta):
    """Functions of θ whose laws are compared, (draw, figure), on scales where their moments exist."""
    if program in ("lognormal", "population"):
        sigma = theta["covariance"]
        root = np.log(np.diagonal(sigma, axis1=1, axis2=2))
        correlation = sigma[:, 0, 1] / np.sqrt(sigma[:, 0, 0] * sigma[:, 1, 1])
        return np.column_stack([theta["coefficients"].reshape(len(theta), -1), root, np.arctanh(correlation)])
    transforms = {"mean": np.log, "precision": np.log, "dispersion": np.log, "rate": np.log}
    return np.column_stack([transforms.get(name, np.asarray)(values) for name, values in theta.values.items()])


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def summaries(program, theta):
    """Means, sds and quantiles of every figure, (summary, figure), and their standard errors."""
    flat = figures(program, theta)
    chained = flat.reshape(theta.chains, -1, flat.shape[1])
    centre, sd = flat.mean(axis=0), flat.std(axis=0)
    squares = (chained - centre) ** 2
    found = [centre, sd, *np.quantile(flat, QUANTILES, axis=0)]
    errors = [standard_error(chained), standard_error(squares) / (2.0 * sd)]
    errors += [named("mcse", chained, method="quantile", prob=q) for q in QUANTILES]
    return np.array(found), np.array(errors)


def standard_error(chained):
    """Monte Carlo standard error of the mean of each figure, (chain, draw, figure)."""
    return chained.std(axis=(0, 1)) / np.sqrt(named("ess", chained, method="mean"))


def named(function, chained, **said):
    import arviz  # takes long, for few tests

    known = xr.Dataset({"figure": (("chain", "draw", "number"), chained)})
    return getattr(arviz, function)(known, **said)["figure"].values


def distance(program, markov, independent):
    """Largest distance of means, sds and quantiles of Stan's draws from those of independent draws, in standard errors."""
    (stan, stan_errors), (other, other_errors) = summaries(program, markov), summaries(program, independent)
    return (np.abs(stan - other) / np.hypot(stan_errors, other_errors)).max()


def independent_draws(model, statistics):
    sampler = model.draw_on_grid if hasattr(model, "draw_on_grid") else model.draw
    return sampler(statistics, INDEPENDENT, KEY.generator("independent"))


def stans_draws(model, statistics, folder):
    settings = StanSettings(chains=CHAINS, warmup=1000, draws=DRAWS)
    chains = fit(executable(model.program), model.stan_data(statistics), settings, 20, folder)
    assert not chains.divergent.any()
    return Draws(model.from_stan(flat(chains)), CHAINS)


def wrong(program, model, statistics):
    """Posteriors that differ a little: another number of degrees of freedom, or a record and a half more."""
    if program in ("lognormal", "population"):
        prior = replace(model.prior, records=3.0 if model.improper else model.prior.records + 4.0)
        return replace(model, prior=prior), statistics
    if program == "negative_binomial":
        return model, np.concatenate([statistics, [[150.0, 1.5]]])
    return model, statistics + np.array(
        {"beta": [0.0, -4.0, 0.0], "poisson": [0.0, 12.0], "bernoulli": [0.0, 1.5]}[program]
    )


EXACT = [
    ("lognormal", False),
    ("lognormal", True),
    ("population", False),
    ("population", True),
    ("poisson", True),
    ("bernoulli", True),
    ("beta", True),
    ("negative_binomial", True),
]


@pytest.mark.parametrize(("program", "proper"), EXACT, ids=[f"{p}-{'proper' if q else 'improper'}" for p, q in EXACT])
def test_stans_posterior_is_the_independent_samplers(program, proper, tmp_path):
    """Means, sds, five quantiles of every figure within 4 standard errors; control: a slightly different posterior.

    At most 77 figures, of which the largest was 3.9 over ten other seeds of each of three programs.
    """
    _, model, records = case(program, proper)
    statistics = model.statistics(records, some_alpha(len(records)))
    markov = stans_draws(model, statistics, tmp_path)
    assert distance(program, markov, independent_draws(model, statistics)) < LIMIT
    assert distance(program, markov, independent_draws(*wrong(program, model, statistics))) > LIMIT


def stated_once(model, records, alpha):
    return model.stan_data(model.statistics(records, alpha))


@pytest.mark.parametrize("program", PROGRAMS)
def test_records_without_a_clamp_are_their_statistics_and_may_come_in_halves(program, tmp_path):
    """Log densities of one posterior stated in three ways, to 1e-9; control: a tenth of a record more."""
    _, model, records = case(program)
    alpha, zeros = some_alpha(len(records)), np.zeros(len(records))
    twice = records.take(np.repeat(np.arange(len(records)), 2))
    more = np.where(records.record == 3, alpha + 0.1, alpha)
    empty = model.stan_data(model.statistics(records, zeros))
    stated = [
        stated_once(model, records, alpha),
        {**empty, **model.stan_records(records, alpha, zeros, 1e300)},
        {**empty, **model.stan_records(twice, np.repeat(alpha / 2, 2), np.zeros(80), 1e300)},
        stated_once(model, records, more),
    ]
    points = {name: values[0] for name, values in wide_draws(program, stated[0], tmp_path)[0].items()}
    found = [log_density(executable(program), data, points, tmp_path) for data in stated]
    assert spread(found[1] - found[0], found[0]) < 1e-9
    assert spread(found[2] - found[0], found[0]) < 1e-9
    assert spread(found[3] - found[0], found[0]) > 1e-9


@pytest.mark.parametrize("program", ["beta_regression", "poisson_regression"])
def test_a_regression_on_an_intercept_has_its_posterior_by_quadrature(program, tmp_path):
    """Means and sds of the intercept within 4 standard errors; control: α left out. Four figures: false alarm < 3e-4."""
    model, records = model_of(program, predictors=()), some_records(program)
    alpha = some_alpha(len(records))
    statistics = model.statistics(records, alpha)
    chains = fit(executable(program), model.stan_data(statistics), StanSettings(adapt_delta=0.95), 3, tmp_path)
    drawn = Draws(model.from_stan(flat(chains)))["coefficients"].reshape(CHAINS, DRAWS, 1)
    assert worst_moment(drawn, *intercept(program, records, alpha)) < LIMIT
    assert worst_moment(drawn, *intercept(program, records, np.ones(40))) > LIMIT


def intercept(program, records, alpha):
    """Posterior mean and sd of the intercept by summation over a grid of it and λ or σ, with SciPy's laws throughout."""
    u, v = np.linspace(-3.0, 3.0, 1201)[:, None], np.linspace(-8.0, 6.0, 701)
    if program == "beta_regression":
        mean, precision = 1.0 / (1.0 + np.exp(-u)), np.exp(v)
        sums = (alpha * np.log(records.outcome)).sum(), (alpha * np.log1p(-records.outcome)).sum()
        a, b = precision * mean, precision * (1.0 - mean)
        target = (a - 1.0) * sums[0] + (b - 1.0) * sums[1] - alpha.sum() * betaln(a, b) + stats.norm.logpdf(u, 0.0, 2.5)
        target = target + stats.pareto.logpdf(precision, 1.5, scale=0.1) + v
    else:
        target = (alpha * records.outcome).sum() * u - alpha.sum() * np.exp(u)
        target = target + stats.norm.logpdf(u, 0.0, np.exp(v)) + stats.t.logpdf(np.exp(v), 3) + v
    mass = np.exp(target - target.max())
    mass = mass.sum(axis=1) / mass.sum()
    centre = (u[:, 0] * mass).sum()
    return centre, np.sqrt(((u[:, 0] - centre) ** 2 * mass).sum())


def worst_moment(chained, mean, sd):
    """z scores of the mean and of the mean square, by Monte Carlo standard errors."""
    squares = (chained - mean) ** 2
    first = abs(chained.mean() - mean) / standard_error(chained)[0]
    return max(first, abs(squares.mean() - sd**2) / standard_error(squares)[0])


@pytest.mark.parametrize(
    "program", ["poisson", "negative_binomial", "negative_binomial_mixture", "bernoulli", "poisson_regression"]
)
def test_records_in_duplicate_at_half_weight_give_the_same_draws(program, tmp_path):
    """Sums of counts are exact, so the program sees the same data; control: one record's weight changed."""
    _, model, records = case(program)
    twice, settings = records.take(np.repeat(np.arange(40), 2)), StanSettings(chains=1, warmup=100, draws=20)
    changed = np.where(records.record == 3, 0.9, 1.0)
    drawn = [
        flat(fit(executable(program), stated_once(model, *said), settings, 5, tmp_path))
        for said in ((records, np.ones(40)), (twice, np.full(80, 0.5)), (records, changed))
    ]
    for name in PARAMETERS[program]:
        np.testing.assert_array_equal(drawn[0][name], drawn[1][name])
    assert not np.array_equal(drawn[0][PARAMETERS[program][0]], drawn[2][PARAMETERS[program][0]])
