"""Models of counts, without and with predictors: y ~ Poisson(rate), as in [V] §3.1.

Without predictors the prior is conjugate: rate ~ Gamma(.01, .01) (shape, rate).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.numerics.tiles import ParameterTable, Tile, products
from dpdist.models.outcome import ConjugateModel, RegressionModel, integer_bounds, no_records
from dpdist.models.protocol import Draws, Parameter

PRIOR_SHAPE = PRIOR_RATE = 0.01
SMALLEST = 1e-300
"""Lower limit of draws; without a positive count, up to 10⁻³ of a posterior's mass lies below it."""


class Poisson(ConjugateModel):
    """Poisson model of one stratum's outcome; statistics are (1, 2): Σα, Σαy."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("rate"),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, records.outcome)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        total, sum_y = statistics[0]
        standard = scipy.special.gammaincinv(PRIOR_SHAPE + sum_y, open_uniforms(rng, (draws,)))
        return Draws({"rate": np.maximum(standard / (PRIOR_RATE + total), SMALLEST)})

    def centre(self, statistics: Floats) -> Draws:
        total, sum_y = statistics[:, 0].T
        return Draws({"rate": np.maximum((PRIOR_SHAPE + sum_y) / (PRIOR_RATE + total), SMALLEST)})

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        y = scipy.stats.poisson.ppf(open_uniforms(rng, (len(crosstab_row),)), theta["rate"][0])
        return np.clip(y, *integer_bounds(self.outcome_bounds)), np.ones(len(crosstab_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        return self.per_row(limited_poisson_mean(theta["rate"], self.outcome_bounds)[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        share = np.where(value >= 0, scipy.special.pdtr(np.maximum(np.floor(value), 0.0), theta["rate"][:, None]), 0.0)
        return self.within_bounds(share, value)

    @property
    def program(self) -> str:
        return "poisson"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, sum_y = map(float, statistics[0])
        prior = {"prior_shape": PRIOR_SHAPE, "prior_rate": PRIOR_RATE}
        return {"total": total, "sum_y": sum_y, **prior, **no_records("y")}

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"rate": draws["rate"]}

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

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (self.coefficients,)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, records.outcome)

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        rate = np.exp(self.location(theta))[0][self.pattern(crosstab_row)]
        y = scipy.stats.poisson.ppf(open_uniforms(rng, (len(crosstab_row),)), rate)
        return np.clip(y, *integer_bounds(self.outcome_bounds)), np.ones(len(crosstab_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        return self.per_row(limited_poisson_mean(np.exp(self.location(theta)), self.outcome_bounds))

    @property
    def program(self) -> str:
        return "poisson_regression"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, sum_y = statistics.T.tolist()
        return {**self.design_data(), "total": total, "sum_y": sum_y, **no_records("pattern", "y")}

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"coefficients": self.with_aliased(draws["beta"])}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        location, size = self.location(draws), self.summed(draws)

        def table(pattern: int) -> ParameterTable:
            rate = np.exp(location[:, pattern])
            values = ParameterTable.of(-rate, location[:, pattern], -1.0).values
            return ParameterTable(values, np.array([size * rate.max(), size, 1.0]))

        features = count_features(records.outcome)
        return products(self.pattern(records.row), features, len(draws), table)
