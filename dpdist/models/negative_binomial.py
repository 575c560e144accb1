"""Models of counts: y ~ Poisson(rate), also with predictors, and y ~ NB(μ, φ), variance μ + μ²/φ ([V] §3; METHODS §5).

The priors are log μ ~ N(0, 10²) and φ ~ Gamma(.01, .01), restricted to 1e-6 ≤ φ ≤ 1e4. [V] has log μ ~ N(0, σ²) with σ ~
half Student t(3, 0, 1).

Draws are made on a grid of (log μ given φ, log φ), see `numerics.grid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics import grid
from dpdist.models.numerics.tiles import ParameterTable, Tile, products, tile_records
from dpdist.models.outcome import ConjugateModel, OutcomeModel, RegressionModel, integer_bounds, no_records
from dpdist.models.protocol import Draws, Parameter

# Without predictors the prior is conjugate: rate ~ Gamma(.01, .01) (shape, rate).
PRIOR_SHAPE = PRIOR_RATE = 0.01
SMALLEST = 1e-300
"""Lower limit of draws; without a positive count, up to 10⁻³ of a posterior's mass lies below it."""


class Poisson(ConjugateModel):
    """Poisson model of one stratum's outcome; statistics are (1, 2): Σα, Σαy."""

    parameters = (Parameter("rate"),)
    program = "poisson"
    of_program: ClassVar[Mapping[str, str]] = {"rate": "rate"}
    of_counts: ClassVar[bool] = True

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        total, sum_y = statistics[0]
        standard = scipy.special.gammaincinv(PRIOR_SHAPE + sum_y, open_uniforms(rng, (draws,)))
        return Draws({"rate": np.maximum(standard / (PRIOR_RATE + total), SMALLEST)})

    def centre(self, statistics: Floats) -> Draws:
        total, sum_y = statistics[:, 0].T
        return Draws({"rate": np.maximum((PRIOR_SHAPE + sum_y) / (PRIOR_RATE + total), SMALLEST)})

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        return np.asarray(scipy.stats.poisson.ppf(open_uniforms(rng, (len(crosstab_row),)), theta["rate"][0]))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        return self.per_row(limited_poisson_mean(theta["rate"], self.outcome_bounds)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        share = np.where(value >= 0, scipy.special.pdtr(np.maximum(np.floor(value), 0.0), theta["rate"][:, None]), 0.0)
        return self.within_bounds(share, value)

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, sum_y = map(float, statistics[0])
        prior = {"prior_shape": PRIOR_SHAPE, "prior_rate": PRIOR_RATE}
        return {"total": total, "sum_y": sum_y, **prior, **no_records("y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        table = ParameterTable.of(-draws["rate"], np.log(draws["rate"]), -1.0)
        return products(self.pattern(records.row), count_features(records.outcome), len(draws), lambda _: table)


def count_features(y: Floats) -> Floats:
    """Factors (1, y, log y!) of the Poisson log density, (record, 3); they multiply (−rate, log rate, −1)."""
    return np.column_stack([np.ones(len(y)), y, scipy.special.gammaln(y + 1.0)])


def limited_poisson_mean(rate: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) for Y ~ Poisson(rate), from E Y·1(Y ≤ k) = rate·P(Y ≤ k − 1)."""
    low, high = integer_bounds(bounds)

    def at_most(k: float) -> Floats:
        return np.asarray(scipy.special.pdtr(k, rate) if k >= 0.0 else np.zeros_like(rate))

    inside = rate if np.isinf(high) else rate * at_most(high - 1.0) + high * scipy.special.pdtrc(max(high, 0.0), rate)
    return np.asarray(inside + (low * at_most(low - 1.0) - rate * at_most(low - 2.0) if low > 0.0 else 0.0))


class PoissonRegression(RegressionModel):
    """Poisson regression, y | x ~ Poisson(exp(x'β)) ([V], Appendix 2); its statistics are Σα and Σαy, (pattern, 2).

    Prior: β ~ N(0, diag(σ) Ω diag(σ)), σ_k ~ half Student t(3, 0, 1), Ω ~ LKJ(6). Only β is released, because outcomes
    depend on β alone.
    """

    program = "poisson_regression"
    of_program: ClassVar[Mapping[str, str]] = {"coefficients": "beta"}
    of_counts: ClassVar[bool] = True

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (self.coefficients,)

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        rate = np.exp(self.location(theta))[0][self.pattern(crosstab_row)]
        return np.asarray(scipy.stats.poisson.ppf(open_uniforms(rng, (len(crosstab_row),)), rate))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        return self.per_row(limited_poisson_mean(np.exp(self.location(theta)), self.outcome_bounds))

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, sum_y = statistics.T.tolist()
        return {**self.design_data(), "total": total, "sum_y": sum_y, **no_records("pattern", "y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        location, size = self.location(draws), self.summed(draws)

        def table(pattern: int) -> ParameterTable:
            rate = np.exp(location[:, pattern])
            values = ParameterTable.of(-rate, location[:, pattern], -1.0).values
            return ParameterTable(values, np.array([size * rate.max(), size, 1.0]))

        features = count_features(records.outcome)
        return products(self.pattern(records.row), features, len(draws), table)


# For a single coefficient the σ of [V] is not identified, and the marginal prior has a pole at μ = 1: σ is fixed, wide.
LOG_MEAN_SD = 10.0
LOG_MEAN_BOX = 40.0
"""Clamped posteriors restrict the prior to |log μ| ≤ 40, which leaves out 6e-5 of it."""
SHAPE = RATE = 0.01
LOG_DISPERSION = (float(np.log(1e-6)), float(np.log(1e4)))
"""Interval of log φ.

A posterior reaches its ends only if the counts hold almost no information on φ. Values of φ above 1e4 have prior odds
of e^−100, and with φ below 1e-6 nearly all counts are 0.
"""
DEGREE = 159
"""Degree of the Chebyshev interpolant, in log φ, of Σα log Γ(y + φ).

The function's singularities are π away from the interval. So the error, 1.3^−160 of the function's size, is below
rounding.
"""


class OfDistinctOutcomes(OutcomeModel):
    """A model whose statistics are rows (y, Σα) of the distinct outcomes, sorted by y, (distinct outcome, 2).

    Rows of several blocks are concatenated. A record with α = 0 adds no row.
    """

    combine: ClassVar[Literal["sum", "concat"]] = "concat"
    of_counts: ClassVar[bool] = True

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        on = alpha > 0
        return combined(np.column_stack([records.outcome[on], alpha[on]]))


class NegativeBinomial(OfDistinctOutcomes):
    """Negative binomial model of one stratum's outcome."""

    parameters = (Parameter("mean"), Parameter("dispersion"))
    program = "negative_binomial"
    of_program: ClassVar[Mapping[str, str]] = {"mean": "mu", "dispersion": "phi"}

    def draw_on_grid(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Draws from the grid's interpolant, which is within `grid.GRID_ERROR` of the posterior in total variation."""
        posterior = NegativeBinomialPosterior.of(combined(statistics))
        t, log_dispersion = grid.draw(posterior, LOG_DISPERSION, open_uniforms(rng, (draws, 2)))
        centre, scale = posterior.conditional(np.exp(log_dispersion))
        return Draws({"mean": np.exp(centre + scale * t), "dispersion": np.exp(log_dispersion)})

    box = ((-LOG_MEAN_BOX, LOG_MEAN_BOX), LOG_DISPERSION)

    def draws_at(self, coordinates: Floats) -> Draws:
        """Parameters at (log μ, log φ)."""
        return Draws({"mean": np.exp(coordinates[:, 0]), "dispersion": np.exp(coordinates[:, 1])})

    def log_prior(self, coordinates: Floats) -> Floats:
        """Log prior of (log μ, log φ): log μ normal, φ Gamma."""
        log_mean, log_dispersion = coordinates.T
        return np.asarray(SHAPE * log_dispersion - RATE * np.exp(log_dispersion) - log_mean**2 / (2.0 * LOG_MEAN_SD**2))

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        mean, dispersion = theta["mean"][0], theta["dispersion"][0]
        levels = open_uniforms(rng, (len(crosstab_row),))
        return np.asarray(scipy.stats.nbinom.ppf(levels, dispersion, dispersion / (mean + dispersion)))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        mean = limited_negative_binomial_mean(theta["mean"], theta["dispersion"], self.outcome_bounds)
        return self.per_row(mean[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        mean, dispersion = theta["mean"][:, None], theta["dispersion"][:, None]
        share = scipy.stats.nbinom.cdf(np.floor(value), dispersion, dispersion / (mean + dispersion))
        return self.within_bounds(np.asarray(share), value)

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        value, total = combined(statistics).T.tolist()
        prior = {"log_mu_sd": LOG_MEAN_SD, "phi_shape": SHAPE, "phi_rate": RATE}
        return {"M": len(value), "value": value, "total": total, **prior, **no_records("y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, dispersion = draws["mean"], draws["dispersion"]
        size = tile_records(len(draws))
        base = -scipy.special.gammaln(dispersion) - dispersion * np.log1p(mean / dispersion)
        slope = np.log(mean) - np.log(mean + dispersion)
        sizes = 1.0 + np.abs(scipy.special.gammaln(dispersion)) + dispersion * np.log1p(mean / dispersion)
        slopes = np.abs(np.log(mean)) + np.abs(np.log(mean + dispersion))
        for low in range(0, len(records), size):
            y = records.outcome[low : low + size, None]
            rising, factorial = scipy.special.gammaln(y + dispersion), scipy.special.gammaln(y + 1.0)
            values = rising - factorial + base + y * slope
            magnitude = (np.abs(rising) + np.abs(factorial) + sizes + y * slopes).max(axis=1)
            yield Tile(np.arange(low, low + len(y)), values, magnitude)


@dataclass(frozen=True)
class NegativeBinomialPosterior:
    """Posterior density of t and log φ, where log μ = centre(φ) + scale(φ)·t.

    `rising` is the Chebyshev series in log φ of Σα(log Γ(y + φ) − log Γ(y + 1)); `total` and `sum_y` are Σα and Σαy.
    """

    rising: np.polynomial.Chebyshev
    total: float
    sum_y: float

    @classmethod
    def of(cls, rows: Floats) -> NegativeBinomialPosterior:
        """The posterior from distinct outcomes with their summed α, (value, 2)."""

        def rising(log_dispersion: Floats) -> Floats:
            sums, size = np.zeros(len(log_dispersion)), tile_records(len(log_dispersion))
            for low in range(0, len(rows), size):
                y, alpha = rows[low : low + size].T
                sums += alpha @ (
                    scipy.special.gammaln(y[:, None] + np.exp(log_dispersion)) - scipy.special.gammaln(y + 1.0)[:, None]
                )
            return sums

        series = np.polynomial.Chebyshev.interpolate(rising, DEGREE, domain=list(LOG_DISPERSION))
        return cls(series, float(rows[:, 1].sum()), float((rows[:, 0] * rows[:, 1]).sum()))

    def __call__(self, t: Floats, log_dispersion: Floats) -> Floats:
        """Log density at nodes of t and log φ, (t, log φ)."""
        dispersion = np.exp(log_dispersion)
        centre, scale = self.conditional(dispersion)
        log_mean = centre + scale * t[:, None]
        mean = np.exp(log_mean)
        separate = (
            self.rising(log_dispersion)
            - self.total * scipy.special.gammaln(dispersion)
            + SHAPE * log_dispersion
            - RATE * dispersion
        )
        share = -np.log1p(dispersion / mean)
        counts = self.sum_y * share - self.total * dispersion * np.log1p(mean / dispersion)
        return np.asarray(separate + np.log(scale) + counts - log_mean**2 / (2.0 * LOG_MEAN_SD**2))

    def conditional(self, dispersion: Floats) -> tuple[Floats, Floats]:
        """Centre and scale of log μ given φ: a normal approximation around the mean outcome, shrunk towards the prior."""
        mean = (self.sum_y + 0.5) / (self.total + 0.5)
        information = (self.total + 0.5) * mean * dispersion / (mean + dispersion)
        precision = information + LOG_MEAN_SD**-2
        return information * np.log(mean) / precision, 1.0 / np.sqrt(precision)


def combined(rows: Floats) -> Floats:
    """Distinct values in rising order with their summed α, (value, 2), from rows (value, α)."""
    value, position = np.unique(rows[:, 0], return_inverse=True)
    return np.column_stack([value, np.bincount(position, weights=rows[:, 1], minlength=len(value))])


def limited_negative_binomial_mean(mean: Floats, dispersion: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) of a negative binomial law.

    It follows from E Y·1(Y ≤ k) = μ·P(Y' ≤ k − 1), where Y' has the dispersion φ + 1 and the same odds.
    """
    low, high = integer_bounds(bounds)
    share = dispersion / (mean + dispersion)

    def at_most(k: float, more: float) -> Floats:
        return np.asarray(scipy.stats.nbinom.cdf(k, dispersion + more, share))

    inside = (
        mean if np.isinf(high) else mean * at_most(high - 1.0, 1.0) + high * scipy.stats.nbinom.sf(high, dispersion, share)
    )
    return np.asarray(inside + (low * at_most(low - 1.0, 0.0) - mean * at_most(low - 2.0, 1.0) if low > 0.0 else 0.0))


# Model of counts of two kinds with one mean: y ~ π NB(μ, φ₁) + (1 − π) NB(μ, φ₂), φ₁ < φ₂ (the simulated law of [V] §3).
#
# The priors are log μ ~ N(0, 10²), log φ ~ N(log 10, 1.5²) for both, put in order, and π ~ Beta(2, 2). So a kind that no
# record belongs to keeps a proper law. The pseudo likelihood is computed from distinct outcomes, as of `negative_binomial`.
LOG_DISPERSION_MEAN, LOG_DISPERSION_SD = float(np.log(10.0)), 1.5
SHARE = 2.0
"""Both parameters of the share's Beta prior."""
KINDS = ("dispersed", "concentrated")


class NegativeBinomialMixture(OfDistinctOutcomes):
    """Mixture of one stratum's counts."""

    parameters = (Parameter("mean"), Parameter("dispersion", (("kind", KINDS),)), Parameter("share"))
    program = "negative_binomial_mixture"
    of_program: ClassVar[Mapping[str, str]] = {"mean": "mu", "dispersion": "phi", "share": "share"}

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        mean, dispersion, share = theta["mean"][0], theta["dispersion"][0], theta["share"][0]
        kind, level = open_uniforms(rng, (len(crosstab_row), 2)).T
        size = np.where(kind < share, *dispersion)
        return np.asarray(scipy.stats.nbinom.ppf(level, size, size / (mean + size)))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        of_kind = [
            limited_negative_binomial_mean(theta["mean"], size, self.outcome_bounds) for size in theta["dispersion"].T
        ]
        return self.per_row(mix(theta["share"], *of_kind)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        mean, share = theta["mean"][:, None], theta["share"][:, None]
        of_kind = [
            np.asarray(scipy.stats.nbinom.cdf(np.floor(value), size[:, None], size[:, None] / (mean + size[:, None])))
            for size in theta["dispersion"].T
        ]
        return self.within_bounds(mix(share, *of_kind), value)

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        value, total = combined(statistics).T.tolist()
        prior = {
            "log_mu_sd": LOG_MEAN_SD,
            "log_phi_mean": LOG_DISPERSION_MEAN,
            "log_phi_sd": LOG_DISPERSION_SD,
            "share_shape": SHARE,
        }
        return {"M": len(value), "value": value, "total": total, **prior, **no_records("y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, share, size = draws["mean"], draws["share"], tile_records(len(draws))
        for low in range(0, len(records), size):
            y = records.outcome[low : low + size, None]
            factorial, parts = scipy.special.gammaln(y + 1.0), list[Floats]()
            magnitude = np.abs(np.log(share)) + np.abs(np.log1p(-share)) + np.abs(factorial)
            for dispersion in draws["dispersion"].T:
                base, slope = dispersion * np.log1p(mean / dispersion), np.log(mean) - np.log(mean + dispersion)
                rising = scipy.special.gammaln(y + dispersion) - scipy.special.gammaln(dispersion)
                parts.append(rising - factorial - base + y * slope)
                sizes = np.abs(scipy.special.gammaln(y + dispersion)) + np.abs(scipy.special.gammaln(dispersion)) + base
                magnitude = magnitude + sizes + y * (np.abs(np.log(mean)) + np.abs(np.log(mean + dispersion)))
            values = np.logaddexp(np.log(share) + parts[0], np.log1p(-share) + parts[1])
            yield Tile(np.arange(low, low + len(y)), values, magnitude.max(axis=1))


def mix(share: Floats, first: Floats, second: Floats) -> Floats:
    """The figure of both kinds together."""
    return np.asarray(share * first + (1.0 - share) * second)
