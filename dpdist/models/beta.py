"""Models of proportions, y ~ Beta(λφ, λ(1 − φ)) with mean φ and precision λ, and of binary outcomes (METHODS §5b).

See [G], Supplement 2, and METHODS §5. Without predictors the priors are φ ~ Beta(1, 1) and λ ~ Pareto(.1, 1.5). The
limit λ ≤ 1e6 excludes 3e-11 of the prior. Draws are made on a grid of (logit φ given λ, log λ), see `numerics.grid`. In
sums, α is a record's privacy weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics import grid
from dpdist.models.numerics.tiles import ParameterTable, Tile, products
from dpdist.models.outcome import ConjugateModel, OutcomeModel, RegressionModel, no_records
from dpdist.models.protocol import Draws, Improper, Parameter

# With α a record's privacy weight, the posterior is Beta(1 + Σαy, 1 + Σα(1 − y)).
PRIOR_A = PRIOR_B = 1.0
BETWEEN = (2.0**-1000, 1.0 - 2.0**-53)
"""Draws are limited to this interval, where log p and log(1 − p) are finite; 1 − 2⁻⁵³ is the last double before 1."""


class Bernoulli(ConjugateModel):
    """Bernoulli model of one stratum's outcome, 0 or 1; statistics are (1, 2): Σα, Σαy."""

    parameters = (Parameter("probability"),)
    program = "bernoulli"
    of_program: ClassVar[Mapping[str, str]] = {"probability": "probability"}

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        total, ones = statistics[0]
        p = scipy.special.betaincinv(PRIOR_A + ones, PRIOR_B + max(total - ones, 0.0), open_uniforms(rng, (draws,)))
        return Draws({"probability": np.clip(p, *BETWEEN)})

    def centre(self, statistics: Floats) -> Draws:
        total, ones = statistics[:, 0].T
        return Draws({"probability": np.clip((PRIOR_A + ones) / (PRIOR_A + PRIOR_B + total), *BETWEEN)})

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        return np.asarray(open_uniforms(rng, (len(crosstab_row),)) > 1.0 - theta["probability"][0], dtype=np.float64)

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        at_zero, at_one = np.clip([0.0, 1.0], *self.outcome_bounds)
        p = theta["probability"][:, None]
        return self.per_row(p * at_one + (1.0 - p) * at_zero)

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, ones = map(float, statistics[0])
        return {"total": total, "sum_y": min(ones, total), "prior_a": PRIOR_A, "prior_b": PRIOR_B, **no_records("y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        features = np.column_stack([1.0 - records.outcome, records.outcome])
        table = ParameterTable.of(np.log1p(-draws["probability"]), np.log(draws["probability"]))
        return products(self.pattern(records.row), features, len(draws), lambda _: table)


PRECISION_FROM, PRECISION_TAIL = 0.1, 1.5
PRIOR_SD = 2.5
"""Prior standard deviation of a regression's coefficients."""
LOG_PRECISION = (float(np.log(PRECISION_FROM)), float(np.log(1e6)))
LOGIT_LIMIT, BISECTIONS = 64.0, 56
LOGIT_BOX = 34.0
"""Clamped posteriors restrict the prior to |logit φ| ≤ 34, so that 1 − φ is not lost to rounding.

The restriction leaves out 3.4e-15 of the prior.
"""
INSIDE = (1e-300, 1.0 - 2.0**-53)
"""Synthetic shares are limited to this interval inside (0, 1), because draws of a beta law with a shape near 0
underflow.
"""


class Beta(OutcomeModel):
    """Beta model of one stratum's outcome; statistics are (1, 3): Σα, Σα log y, Σα log(1 − y)."""

    parameters = (Parameter("mean"), Parameter("precision"))
    program = "beta"
    of_program: ClassVar[Mapping[str, str]] = {"mean": "phi", "precision": "lambda"}

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, *share_features(records.outcome)[:, 1:].T)

    def draw_on_grid(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        """Draws from the grid's interpolant, which is within `grid.GRID_ERROR` of the posterior in total variation."""
        posterior = BetaPosterior(*check_shares(statistics)[0])
        t, log_precision = grid.draw(posterior, LOG_PRECISION, open_uniforms(rng, (draws, 2)))
        centre, scale = posterior.conditional(log_precision)
        return Draws({"mean": scipy.special.expit(centre + scale * t), "precision": np.exp(log_precision)})

    box = ((-LOGIT_BOX, LOGIT_BOX), LOG_PRECISION)

    def draws_at(self, coordinates: Floats) -> Draws:
        """Parameters at (logit φ, log λ)."""
        return Draws({"mean": scipy.special.expit(coordinates[:, 0]), "precision": np.exp(coordinates[:, 1])})

    def log_prior(self, coordinates: Floats) -> Floats:
        """Log prior of (logit φ, log λ): φ uniform, λ Pareto."""
        logit, log_precision = coordinates.T
        return np.asarray(-np.logaddexp(0.0, logit) - np.logaddexp(0.0, -logit) - PRECISION_TAIL * log_precision)

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        return simulated_share(theta["mean"][0], theta["precision"][0], open_uniforms(rng, (len(crosstab_row),)))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        mean, precision = theta["mean"], theta["precision"]
        return self.per_row(limited_beta_mean(mean, precision, self.outcome_bounds)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        mean, precision = theta["mean"][:, None], theta["precision"][:, None]
        share = scipy.special.betainc(mean * precision, (1.0 - mean) * precision, np.clip(value, 0.0, 1.0))
        return self.within_bounds(np.asarray(share, dtype=np.float64), value)

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, log_y, log1m_y = map(float, check_shares(statistics)[0])
        return {"total": total, "sum_log": log_y, "sum_log1m": log1m_y, **no_records("y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        table = share_table(draws["mean"], draws["precision"])
        return products(self.pattern(records.row), share_features(records.outcome), len(draws), lambda _: table)


@dataclass(frozen=True)
class BetaPosterior:
    """Posterior density of t and log λ, where logit φ = centre(λ) + scale(λ)·t.

    The fields are Σα, Σα log y and Σα log(1 − y).
    """

    total: float
    log_y: float
    log1m_y: float

    def __call__(self, t: Floats, log_precision: Floats) -> Floats:
        """Log density at nodes of t and log λ, (t, log λ)."""
        centre, scale = self.conditional(log_precision)
        odds, precision = np.exp(-centre - scale * t[:, None]), np.exp(log_precision)
        mean = 1.0 / (1.0 + odds)
        rest = odds * mean
        a, b = precision * mean, precision * rest
        log_kernel = a * self.log_y + b * self.log1m_y - self.total * (scipy.special.gammaln(a) + scipy.special.gammaln(b))
        separate = self.total * scipy.special.gammaln(precision) + np.log(scale) - PRECISION_TAIL * log_precision
        return np.asarray(log_kernel + np.log(mean * rest) + separate)

    def conditional(self, log_precision: Floats) -> tuple[Floats, Floats]:
        """Centre and scale of logit φ given λ: the mode, by bisection, and a scale from its curvature.

        The density is log-concave in φ.
        """
        precision = np.exp(log_precision)
        low, high = np.full(precision.shape, -LOGIT_LIMIT), np.full(precision.shape, LOGIT_LIMIT)
        for _ in range(BISECTIONS):
            centre = (low + high) / 2.0
            mean, rest = scipy.special.expit(centre), scipy.special.expit(-centre)
            slope = (
                self.total * (scipy.special.psi(precision * rest) - scipy.special.psi(precision * mean))
                + self.log_y
                - self.log1m_y
            )
            rising = precision * mean * rest * slope + rest - mean > 0.0
            low, high = np.where(rising, centre, low), np.where(rising, high, centre)
        mean, rest = scipy.special.expit(centre), scipy.special.expit(-centre)
        trigammas = scipy.special.polygamma(1, precision * mean) + scipy.special.polygamma(1, precision * rest)
        information = (rest - mean) ** 2 + 2.0 * mean * rest + self.total * (precision * mean * rest) ** 2 * trigammas
        return centre, 1.0 / np.sqrt(information)


def check_shares(statistics: Floats) -> Floats:
    """Returns the statistics unchanged; raises `Improper` if an outcome is not inside (0, 1)."""
    if not np.isfinite(statistics).all():
        raise Improper("a beta model takes outcomes above 0 and below 1 only")
    return statistics


def share_features(y: Floats) -> Floats:
    """Factors (1, log y, log(1 − y)) of the beta log density, (record, 3); they multiply (−log B(a, b), a − 1, b − 1)."""
    with np.errstate(divide="ignore"):
        return np.column_stack([np.ones(len(y)), np.log(y), np.log1p(-y)])


def share_table(mean: Floats, precision: Floats) -> ParameterTable:
    """The functions (−log B(a, b), a − 1, b − 1) of the parameters, with a = λφ and b = λ(1 − φ), (3, draw)."""
    a, b = precision * mean, precision * (1.0 - mean)
    parts = scipy.special.gammaln(precision), scipy.special.gammaln(a), scipy.special.gammaln(b)
    size = 1.0 + np.abs(parts).sum(axis=0).max()
    return ParameterTable.of(parts[0] - parts[1] - parts[2], a - 1.0, b - 1.0, formed_from=size)


def simulated_share(mean: Floats, precision: Floats, uniforms: Floats) -> Floats:
    return np.clip(scipy.special.betaincinv(precision * mean, precision * (1.0 - mean), uniforms), *INSIDE)


def limited_beta_mean(mean: Floats, precision: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) of a beta law, from E Y·1(Y ≤ t) = mean·I_t(a + 1, b)."""
    low, high = np.clip(bounds, 0.0, 1.0)
    a, b = precision * mean, precision * (1.0 - mean)
    inside = mean * (scipy.special.betainc(a + 1.0, b, high) - scipy.special.betainc(a + 1.0, b, low))
    return np.asarray(inside + low * scipy.special.betainc(a, b, low) + high * scipy.special.betainc(b, a, 1.0 - high))


class BetaRegression(RegressionModel):
    """Beta regression, logit φ(x) = x'β ([G] §5); its statistics are Σα, Σα log y and Σα log(1 − y), (pattern, 3).

    [G] prints no priors. Here they are β ~ N(0, PRIOR_SD²) independently, and λ ~ Pareto(.1, 1.5) as in `Beta`.
    """

    program = "beta_regression"
    of_program: ClassVar[Mapping[str, str]] = {"coefficients": "coefficients", "precision": "lambda"}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (self.coefficients, Parameter("precision"))

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, *share_features(records.outcome)[:, 1:].T)

    def outcomes(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> Floats:
        mean = scipy.special.expit(self.location(theta))[0][self.pattern(crosstab_row)]
        return simulated_share(mean, theta["precision"][0], open_uniforms(rng, (len(crosstab_row),)))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        mean, precision = scipy.special.expit(self.location(theta)), theta["precision"][:, None]
        return self.per_row(limited_beta_mean(mean, precision, self.outcome_bounds))

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, log_y, log1m_y = check_shares(statistics).T.tolist()
        sums = {"total": total, "sum_log": log_y, "sum_log1m": log1m_y}
        return {**self.design_data(), **sums, "prior_sd": PRIOR_SD, **no_records("pattern", "y")}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, size = scipy.special.expit(self.location(draws)), self.summed(draws)

        def table(pattern: int) -> ParameterTable:
            exact = share_table(mean[:, pattern], draws["precision"])
            return ParameterTable(exact.values, size * exact.magnitude)

        return products(self.pattern(records.row), share_features(records.outcome), len(draws), table)
