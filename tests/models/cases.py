"""One small stratum per family: a model, records, privacy weights, parameters from all over the space, SciPy's density."""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import expit

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab
from dpdist.job import MODELS, Job
from dpdist.models.protocol import Draws

LEVELS = {"field": ("maths", "physics", "health"), "sex": ("male", "female")}
OUTCOME_ONLY = ("beta", "negative_binomial", "negative_binomial_mixture", "poisson", "bernoulli")
REGRESSIONS = ("beta_regression", "poisson_regression")
FAMILIES = (*OUTCOME_ONLY, *REGRESSIONS)
BOUNDS = {"beta": (0, 1), "beta_regression": (0, 1), "bernoulli": (0, 1)}
PROPER = {"name": "proper", "records": 6.0, "log_sd": 0.6, "location": {"y": 60_000.0, "weight": 50.0}}


def crosstab_of(counts, strata=()):
    """A frame from sample sizes per (field, sex); combinations without a record have no row."""
    inside = {pair: n for pair, n in sorted(counts.items()) if n}
    codes = np.array(list(inside), dtype=np.int32).reshape(-1, 2)
    return Crosstab({"field": codes[:, 0], "sex": codes[:, 1]}, LEVELS, np.array(list(inside.values())), strata, ())


EVERYWHERE = crosstab_of({(f, s): n for f, s, n in [(0, 0, 9), (0, 1, 7), (1, 0, 6), (1, 1, 5), (2, 0, 4), (2, 1, 9)]})
DESIGN = np.array([[1, f == 1, f == 2, s] for f, s in zip(*EVERYWHERE.codes.values(), strict=True)], dtype=float)
"""The treatment-coded design, one row a frame row."""


def job_with(columns, outcome, model, survey, strata=()):
    """A small job with these outcomes' columns, whose table crosses all levels."""
    return Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {name: {"levels": list(levels)} for name, levels in LEVELS.items()} | columns,
            "survey": survey,
            "strata": list(strata),
            "outcome": outcome,
            "model": model,
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "3.6"},
            "tables": [{"name": "t", "by": list(LEVELS), "statistics": ["count"]}],
        }
    )


def job_of(family, bounds=None, predictors=None, strata=(), **model):
    if predictors is None:
        predictors = () if family in OUTCOME_ONLY else tuple(name for name in LEVELS if name not in strata)
    columns = {"y": {"bounds": list(bounds or BOUNDS.get(family, (0, 1e9)))}}
    survey = {"weight": "weight" if family == "lognormal" else None}
    return job_with(columns, "y", {"family": family, "predictors": list(predictors), **model}, survey, strata)


def model_of(family, crosstab=EVERYWHERE, rows=None, proper=False, **said):
    job = job_of(family, strata=crosstab.strata, **said)
    return MODELS[family].build(job, crosstab, rows or slice(0, len(crosstab)), proper)


def records_of(outcome, weight=None, row=None):
    number = np.arange(len(outcome))
    row = EVERYWHERE.expand() if row is None else row
    weight = np.ones(len(outcome)) if weight is None else weight
    return Records(number, row, np.asarray(outcome, dtype=float), weight, np.full(len(outcome), -1, dtype=np.int32))


def some_records(family, seed=1):
    """Forty records; without atoms that only some families could hold."""
    rng, row = np.random.default_rng(seed), EVERYWHERE.expand()
    size = len(row)
    if family == "lognormal":
        log_y = 11.0 + 0.3 * row + 0.4 * rng.standard_normal(size)
        return records_of(np.exp(log_y), np.exp(4.0 - 0.05 * log_y + 0.5 * rng.standard_normal(size)))
    if family in ("beta", "beta_regression"):
        mean = expit(-1.0 + 0.3 * row)
        return records_of(rng.beta(3 * mean, 3 * (1 - mean)))
    if family == "bernoulli":
        return records_of(rng.random(size) < 0.3)
    if family.startswith("negative_binomial"):
        return records_of(rng.poisson(30 * rng.gamma(2.0, 0.5, size)))
    return records_of(rng.poisson(np.exp(1.0 + 0.2 * row)))


def some_alpha(size, seed=2):
    return np.random.default_rng(seed).uniform(0.2, 1.0, size)


def theta_at_random(model, family, draws, seed):
    """Parameters from all over the space, not from a posterior."""
    rng = np.random.default_rng(seed)
    if family in REGRESSIONS:
        coefficients = np.full((draws, len(model.design.names)), np.nan)
        coefficients[:, model.design.columns] = rng.normal(0.0, 1.0, (draws, len(model.design.columns)))
        values = {"coefficients": coefficients}
        return Draws(values if family[0] == "p" else {**values, "precision": np.exp(rng.uniform(-2, 6, draws))})
    if family == "beta":
        return Draws({"mean": expit(rng.normal(0, 2, draws)), "precision": np.exp(rng.uniform(-2, 6, draws))})
    if family == "negative_binomial":
        return Draws({"mean": np.exp(rng.uniform(-2, 8, draws)), "dispersion": np.exp(rng.uniform(-4, 9, draws))})
    if family == "negative_binomial_mixture":
        dispersion = np.sort(np.exp(rng.uniform(-4, 9, (draws, 2))), axis=1)
        share = expit(rng.normal(0, 2, draws))
        return Draws({"mean": np.exp(rng.uniform(-2, 8, draws)), "dispersion": dispersion, "share": share})
    if family == "poisson":
        return Draws({"rate": np.exp(rng.uniform(-3, 6, draws))})
    return Draws({"probability": expit(rng.normal(0, 3, draws))})


def location(theta, x=DESIGN):
    """x'coefficients of every row of a design, (draw, row)."""
    return np.nan_to_num(theta["coefficients"]) @ x.T


def density(family, theta, records):
    """SciPy's log density, (draw, record)."""
    y = records.outcome
    if family == "poisson":
        return stats.poisson.logpmf(y, theta["rate"][:, None])
    if family == "poisson_regression":
        return stats.poisson.logpmf(y, np.exp(location(theta))[:, records.row])
    if family == "bernoulli":
        return stats.bernoulli.logpmf(y, theta["probability"][:, None])
    if family == "negative_binomial":
        mean, size = theta["mean"][:, None], theta["dispersion"][:, None]
        return stats.nbinom.logpmf(y, size, size / (size + mean))
    if family == "negative_binomial_mixture":
        mean, share = theta["mean"][:, None], theta["share"][:, None]
        one, other = (stats.nbinom.logpmf(y, k[:, None], k[:, None] / (k[:, None] + mean)) for k in theta["dispersion"].T)
        return np.logaddexp(np.log(share) + one, np.log1p(-share) + other)
    mean = theta["mean"][:, None] if family == "beta" else expit(location(theta))[:, records.row]
    precision = theta["precision"][:, None]
    return stats.beta.logpdf(y, precision * mean, precision * (1 - mean))
