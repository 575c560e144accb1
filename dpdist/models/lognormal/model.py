"""Lognormal models FBS and FBP: logs of outcomes and weight are normal given predictors ([T]).

In the sample z = (log y, log w), z | x ~ N(B'x, Σ), with one or more outcomes y. With d outcomes z has D = d + 1
components; the last is the weight's, z_w.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.job import Job
from dpdist.models.lognormal.conjugate import (
    LOG_2PI,
    Conjugate,
    conjugate_prior,
    draws_of,
    extremes_of_many,
    factors_of_many,
    features_of_many,
    unpacked,
)
from dpdist.models.numerics import tiles
from dpdist.models.numerics.tiles import by_pattern, patterns_of
from dpdist.models.outcome import clamped_records, no_records
from dpdist.models.protocol import Draws, Extremes, Parameter
from dpdist.models.public_model import design, strata_as_predictors


def limited_lognormal_mean(mu: Floats, variance: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) for log Y ~ N(mu, variance), with `bounds` (lower, upper)."""
    low, high = bounds
    sd = np.sqrt(variance)

    def below(limit: float) -> Floats:
        """E Y·1(Y < limit)."""
        mean = np.exp(mu + variance / 2.0)
        return np.asarray(mean * scipy.special.ndtr((np.log(limit) - mu - variance) / sd))

    inside = (
        np.exp(mu + variance / 2.0) if np.isinf(high) else below(high) + high * scipy.special.ndtr((mu - np.log(high)) / sd)
    )
    if low <= 0.0:
        return np.asarray(inside)
    return np.asarray(inside - below(low) + low * scipy.special.ndtr((np.log(low) - mu) / sd))


def sample_law(beta: Floats, kappa_x: Floats, kappa_y: Floats, sigma_y: Floats, sigma_pi: Floats) -> tuple[Floats, Floats]:
    """Coefficients B and covariance Σ of (log y, log w) in the sample, given the population's parameters.

    In the population log y | x ~ N(x'β, σ_y²) and log π | y, x ~ N(κ_y log y + x'κ_x, σ_π²), where π = 1/w. `beta` and
    `kappa_x` are (draw, predictor); the first predictor is the intercept. B is (draw, predictor, 2), and Σ is (draw, 2,
    2).
    """
    cross, weight = -kappa_y * sigma_y**2, (kappa_y * sigma_y) ** 2 + sigma_pi**2
    covariance = np.stack([sigma_y**2, cross, cross, weight], axis=1).reshape(-1, 2, 2)
    coefficients = np.stack([beta, -kappa_x - kappa_y[:, None] * beta], axis=2)
    coefficients[:, 0, :] -= covariance[:, 1, :]
    return coefficients, covariance


TILE_VALUES = 64_000
"""Records × draws of a tile of the log likelihood: half a megabyte of float64 stays in the second-level cache."""


# `Conjugate` has the posterior under records with privacy weights α. Under the improper prior it exists if and only if Σα >
# p + d, with p predictors. The log likelihood f_i is the log density of z.
#
# FBS draws synthetic records from the law in the sample. FBP draws outcomes from the law in the population, which follows
# from the same fit: μ_pop = μ_sample + Σe_w, and 1/E_pop(π|x) = E_sample(w|x) = exp(μ_w + Σ_ww/2), with π = 1/w.
@dataclass(frozen=True)
class Lognormal(Conjugate):
    """Lognormal model of outcomes and weight for one stratum.

    The statistics are (pattern, 1 + D + D(D+1)/2).
    """

    components: tuple[str, ...]
    synthesis: Literal["fbs", "fbp"]
    fixed_weight: float | None
    """The weight of every FBP record if the weight is not modelled: population over sample size."""
    outcome_bounds: tuple[float, float]
    expected: bool = False
    """True if FBS records carry E(w|y*, x) instead of a drawn weight."""
    other_bounds: tuple[tuple[float, float], ...] = ()
    """Public bounds of the outcomes after the first."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Lognormal:
        """The model of one stratum; `proper` asks for the weak proper prior whatever the job's prior is."""
        predictors = (*strata_as_predictors(job, crosstab), *job.likelihood_predictors)
        matrix = design(crosstab, predictors, rows)
        survey = job.survey
        proportional = job.likelihood.population_weights == "proportional" and survey.population is not None
        return cls(
            components=job.components,
            design=matrix,
            prior=conjugate_prior(job, matrix, proper or job.likelihood.prior.name == "proper"),
            synthesis=job.likelihood.synthesis,
            fixed_weight=(survey.population or 0) / float(crosstab.count.sum()) if proportional else None,
            outcome_bounds=job.outcome_column.ends,
            expected=job.likelihood.synthetic_weights == "expected",
            other_bounds=tuple(column.ends for column in list(job.outcome_columns.values())[1:]),
        )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        component = ("component", tuple(f"log {name}" for name in self.components))
        other = ("other_component", component[1])
        logs = "natural logarithm"
        return (
            Parameter("coefficients", (("predictor", self.design.names), component), logs),
            Parameter("covariance", (component, other), logs),
        )

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        pattern = self._pattern(records)
        z = _logs(records)
        weighted = [alpha * values for values in z]
        columns = (alpha, *weighted, *(a * values for k, a in enumerate(weighted) for values in z[k:]))
        patterns = len(self.design.matrix)
        return np.column_stack([np.bincount(pattern, weights=c, minlength=patterns) for c in columns])

    def scatter(self, records: Records, alpha: Floats) -> Floats:
        pattern, patterns = self._pattern(records), len(self.design.matrix)
        terms = alpha[:, None] * features_of_many(_logs(records)).T
        spread = np.zeros((patterns, terms.shape[1], terms.shape[1]))
        for rows, number in by_pattern(pattern):
            centred = terms[rows] - terms[rows].mean(axis=0)
            spread[number] = centred.T @ centred * (len(rows) / max(1, len(rows) - 1))
        return spread

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """Log likelihood (draw, record)."""
        out = np.empty((len(draws), len(records)))
        for rows, features, table, _ in self._factors(draws, records):
            size = max(1, TILE_VALUES // len(draws))
            for low in range(0, len(rows), size):
                out[:, rows[low : low + size]] = table.T @ features[:, low : low + size]
        return out

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        highest, lowest = np.empty(len(records)), np.empty(len(records))
        reduced = tiles.extremes if self.dimension == 2 else extremes_of_many
        for rows, features, table, slack in self._factors(draws, records):
            high, low = reduced(features, table)
            highest[rows], lowest[rows] = high + slack, low - slack
        return Extremes(highest, lowest)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes and weights of synthetic records, under the first draw.

        FBS draws both from the sample law. FBP draws outcomes from the population law, with the weight 1/E(π|x) or N/n. An
        outcome beyond its public bounds is set to the nearest bound. One outcome is (record,), several (record, outcome).
        """
        d = self.dimension
        mean: Floats = self._means(theta)[0][self.design.pattern[crosstab_row - self.design.first]]
        sigma = theta["covariance"][0]
        if self.synthesis == "fbs":
            noise = scipy.special.ndtri(open_uniforms(rng, (len(crosstab_row), d)))
            z = mean + noise @ scipy.linalg.cholesky(sigma, lower=True).T
            y = np.exp(z[:, :-1])
            w = self.expected_weight(theta, crosstab_row, y) if self.expected else np.exp(z[:, -1])
            return self._limited(y), w
        noise = scipy.special.ndtri(open_uniforms(rng, (len(crosstab_row), d - 1)))
        root = np.sqrt(sigma[:1, :1]) if d == 2 else scipy.linalg.cholesky(sigma[:-1, :-1], lower=True)
        y = np.exp(mean[:, :-1] + sigma[:-1, -1] + noise @ root.T)
        modelled = np.exp(mean[:, -1] + sigma[-1, -1] / 2.0)
        w = modelled if self.fixed_weight is None else np.full_like(modelled, self.fixed_weight)
        return self._limited(y), w

    def _limited(self, outcomes: Floats) -> Floats:
        if self.dimension == 2:
            return np.clip(outcomes[:, 0], *self.outcome_bounds)
        low, high = np.transpose([self.outcome_bounds, *self.other_bounds])
        return np.asarray(np.clip(outcomes, low, high))

    def expected_weight(self, theta: Draws, crosstab_row: Codes, outcome: Floats) -> Floats:
        """E(w | y*, x) in the sample, (record,), for outcomes y* (record, outcome)."""
        mean: Floats = self._means(theta)[0][self.design.pattern[crosstab_row - self.design.first]]
        sigma, logs = theta["covariance"][0], np.log(outcome).reshape(len(crosstab_row), -1)
        cross = sigma[:-1, -1]
        slope = cross / sigma[0, 0] if self.dimension == 2 else np.linalg.solve(sigma[:-1, :-1], cross)
        variance = sigma[-1, -1] - slope @ cross
        return np.asarray(np.exp(mean[:, -1] + (logs - mean[:, :-1]) @ slope + variance / 2.0))

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each, with y limited to its public bounds.

        `outcome` is y's number among several. FBP gives the same values, because 1/E(π|x) = E(w|x) and E_pop(y|x) =
        E(wy|x)/E(w|x).
        """
        mean, j = self._means(theta), outcome
        sigma = theta["covariance"][:, None, :, :]
        weight = np.exp(mean[:, :, -1] + sigma[..., -1, -1] / 2.0)
        bounds = (self.outcome_bounds, *self.other_bounds)[j]
        typical = limited_lognormal_mean(mean[:, :, j] + sigma[..., j, -1], sigma[..., j, j], bounds)
        if self.fixed_weight is not None:
            weight = np.full_like(weight, self.fixed_weight)
        weight, typical = weight[:, self.design.pattern], typical[:, self.design.pattern]
        return weight, weight * typical

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, for pairs of a crosstab row and a value, (draw, pair).

        It is E(w 1(y ≤ value)|x)/E(w|x).
        """
        j, (low, top) = outcome, (self.outcome_bounds, *self.other_bounds)[outcome]
        mean, sigma = self._means(theta)[:, self.design.pattern[row], j], theta["covariance"]
        with np.errstate(divide="ignore"):
            away = np.log(np.maximum(value, 0.0)) - mean - sigma[:, j, -1, None]
        share = scipy.special.ndtr(away / np.sqrt(sigma[:, j, j, None]))
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, share))

    def untrimmed(self, theta: Draws, weighted: Draws, unweighted: Draws) -> Draws:
        """Corrects draws for the effect of privacy weights, from one fit with these weights and one without.

        B moves by the difference of the two fits' B. Σ becomes FΣF' with F = L_u L_w⁻¹, where L_u and L_w are the
        Cholesky roots of the fits' Σ without and with weights. The singular values of F are kept between 1/2 and 2.
        """
        root, trimmed = (np.linalg.cholesky(fit["covariance"][0]) for fit in (unweighted, weighted))
        left, size, right = np.linalg.svd(root @ np.linalg.inv(trimmed))
        factor = left * np.clip(size, 0.5, 2.0) @ right
        coefficients = theta["coefficients"] - weighted["coefficients"] + unweighted["coefficients"]
        return draws_of(coefficients, (factor @ theta["covariance"][0] @ factor.T)[None])

    def as_sampled(self) -> Lognormal:
        return replace(self, synthesis="fbs", fixed_weight=None, expected=False)

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        described = {**super().describe(theta), "prior": "improper" if self.improper else "proper"}
        del described["covariance"]["other_component"]
        return described

    @property
    def program(self) -> str:
        return "population" if self.synthesis == "fbp" else "lognormal"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        """Data of either program."""
        self.posterior(statistics)
        assert self.dimension == 2  # A job with more outcomes is refused when it is read.
        prior, (patterns, columns) = self.prior, self.design.matrix.shape
        raw = statistics[:, 3:].sum(axis=0)
        return {
            **{"P": patterns, "K": columns, "X": self.design.matrix.tolist()},
            "total": statistics[:, 0].tolist(),
            "sum_z": statistics[:, 1:3].tolist(),
            "sum_zz": raw[unpacked(2)].tolist(),
            "prior_power": 3.0 + (0.0 if self.improper else prior.records + columns),
            "prior_scale": prior.scale.tolist(),
            "prior_location": prior.location.tolist(),
            "prior_precision": prior.precision.tolist(),
            **no_records("pattern", "log_outcome", "log_weight"),
        }

    def stan_records(self, records: Records, alpha: Floats, reference: Floats, clamp: float) -> Mapping[str, Any]:
        """The program's data of clamped records, exp(clamp(α(f − reference), ±clamp)); they replace `no_records`."""
        logs = {"log_outcome": np.log(records.outcome), "log_weight": np.log(records.weight)}
        return clamped_records(alpha, reference, clamp, {"pattern": self._pattern(records), **logs})

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """B and Σ of the sample law from the program's parameters.

        Program `population` has parameters of the population's law. They are converted by B_y = β − aΣ_yw and B_w = −κ_x
        − κ_yβ − aΣ_ww, with Xa = 1.
        """
        if self.synthesis == "fbp":
            law, covariance = sample_law(*(draws[name] for name in ("beta", "kappa_x", "kappa_y", "sigma_y", "sigma_pi")))
        else:
            law, covariance = draws["coefficients"], draws["covariance"]
        coefficients = np.full((len(law), len(self.design.names), 2), np.nan)
        coefficients[:, self.design.columns, :] = law
        return {"coefficients": coefficients, "covariance": covariance}

    def _factors(self, draws: Draws, records: Records) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
        factors = bivariate_factors if self.dimension == 2 else factors_of_many
        return factors(self._means(draws), draws["covariance"], _logs(records), self._pattern(records))

    def _pattern(self, records: Records) -> Codes:
        return self.design.pattern[records.row - self.design.first]

    def _means(self, draws: Draws) -> Floats:
        coefficients: Floats = draws["coefficients"][:, self.design.columns, :]
        return np.tensordot(self.design.matrix, coefficients, axes=(1, 1)).transpose(1, 0, 2)


def _logs(records: Records) -> list[Floats]:
    return [np.log(values) for values in (*records.outcomes.T, records.weight)]


ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of six products with computed coefficients.

This holds for a covariance of condition number 1. With a correlation ρ the error is 1/(1 − ρ²) times as large.
"""
MEANS = ROUNDING / 4.0
"""Relative error allowed for a mean and for its distance from the centre.

A mean is the sum of an intercept and a few effects.
"""
TABLES = 16
"""Number of patterns whose densities are prepared together: more of them save calls, and take memory."""


def bivariate_factors(
    means: Floats, covariance: Floats, z: Sequence[Floats], pattern: Codes
) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Yields the log densities of each pattern's records as a product of two matrices: f = φ(u)·T, with u = z − centre.

    A pattern is a distinct combination of predictor levels. `means` is (draw, pattern, 2), and `z` has two arrays
    (record,): log outcome and log weight. An item has the positions of the pattern's records, φ (feature, record), T
    (feature, draw), and a bound on the error of each record's values.
    """
    # The bound is proportional to the sizes of the products plus log 2π, plus the error of the means times the slope of f;
    # the latter matters where the covariance is small. The centre is the draws' mean, so that the products are of the order
    # of f.
    outcome, cross, _, weight = np.ascontiguousarray(covariance.reshape(-1, 4).T)
    product, square = outcome * weight, cross * cross
    determinant = product - square
    rounding = ROUNDING / (1.0 - square / product).min()
    constant = -LOG_2PI - 0.5 * np.log(determinant)
    p00, p01, p11 = weight / determinant, -cross / determinant, outcome / determinant
    present, order, edges = patterns_of(pattern)
    for low in range(0, len(present), TABLES):
        numbers, bounds = present[low : low + TABLES], edges[low : low + TABLES + 1]
        rows, places = order[bounds[0] : bounds[-1]], np.arange(len(numbers)).repeat(np.diff(bounds))
        mean = np.ascontiguousarray(means[:, numbers].transpose(2, 1, 0))
        centre = mean.sum(axis=2) / mean.shape[2]
        location = np.abs(mean).max(axis=2).max(axis=0)
        y, w = mean - centre[:, :, None]
        table = np.empty((len(numbers), 6, mean.shape[2]))
        table[:, 1], table[:, 2] = p00 * y + p01 * w, p01 * y + p11 * w
        table[:, 0] = constant - 0.5 * (y * table[:, 1] + w * table[:, 2])
        table[:, 3], table[:, 4], table[:, 5] = -0.5 * p00, -p01, -0.5 * p11
        u, v = (values[rows] - middle[places] for values, middle in zip(z, centre, strict=True))
        features = np.empty((6, len(rows)))
        features[0], features[1], features[2], features[3], features[4], features[5] = 1.0, u, v, u * u, u * v, v * v
        reach, size = np.abs(table).max(axis=2).T[:, places], np.abs(features)
        slope = reach[1] + reach[2] + (2.0 * reach[3] + reach[4]) * size[1] + (reach[4] + 2.0 * reach[5]) * size[2]
        slack = rounding * (LOG_2PI + (reach * size).sum(axis=0)) + MEANS * location[places] * slope
        for k, (start, stop) in enumerate(itertools.pairwise((bounds - bounds[0]).tolist())):
            yield rows[start:stop], np.ascontiguousarray(features[:, start:stop]), table[k], slack[start:stop]
