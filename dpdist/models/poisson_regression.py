"""Model of counts given predictors: y | x ~ Poisson(exp(x'β)) ([V], Appendix 2).

Prior: β ~ N(0, diag(σ) Ω diag(σ)), σ_k ~ half Student t(3, 0, 1), Ω ~ LKJ(6). Only β is released, because outcomes depend
on β alone. In sums, α is a record's privacy weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats
from dpdist.models.numerics.tiles import Table, Tile, products
from dpdist.models.outcome import RegressionModel, whole
from dpdist.models.poisson import count_features, limited_poisson_mean
from dpdist.models.protocol import Draws, Parameter
from dpdist.models.stan_records import no_records


class PoissonRegression(RegressionModel):
    """Poisson regression of one stratum's outcome; its sufficient statistics are Σα and Σαy by pattern, (pattern, 2)."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (self.coefficients,)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, records.outcome)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes by the inverse distribution function, limited to their public bounds, and weights 1."""
        rate = np.exp(self.location(theta))[0][self.pattern(frame_row)]
        y = scipy.stats.poisson.ppf(open_uniforms(rng, (len(frame_row),)), rate)
        return np.clip(y, *whole(self.outcome_bounds)), np.ones(len(frame_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E(y | x) with y limited to its public bounds, of every frame row, (draw, row)."""
        return self.per_row(limited_poisson_mean(np.exp(self.location(theta)), self.outcome_bounds))

    @property
    def program(self) -> str:
        return "poisson_regression"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, sum_y = statistics.T.tolist()
        return {**self.design_data(), "total": total, "sum_y": sum_y, **no_records("pattern", "y")}

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"coefficients": self.with_aliased(drawn["beta"])}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        location, size = self.location(draws), self.summed(draws)

        def table(pattern: int) -> Table:
            rate = np.exp(location[:, pattern])
            values = Table.of(-rate, location[:, pattern], -1.0).values
            return Table(values, np.array([size * rate.max(), size, 1.0]))

        features = count_features(records.outcome)
        return products(self.pattern(records.frame), features, len(draws), table)
