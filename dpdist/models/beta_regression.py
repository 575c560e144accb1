"""Model of shares given predictors: y | x ~ Beta(λφ(x), λ(1 − φ(x))), logit φ(x) = x'β ([G] §5).

[G] prints no priors. Here they are β ~ N(0, 2.5²) independently, and λ ~ Pareto(.1, 1.5) as in model `beta`. In sums, α
is a record's privacy weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats
from dpdist.models.beta import (
    check_shares,
    limited_beta_mean,
    share_features,
    share_statistics,
    share_table,
    simulated_share,
)
from dpdist.models.numerics.tiles import Table, Tile, products
from dpdist.models.outcome import RegressionModel
from dpdist.models.protocol import Draws, Parameter
from dpdist.models.stan_records import no_records

PRIOR_SD = 2.5


class BetaRegression(RegressionModel):
    """Beta regression of one stratum's outcome; its statistics are Σα, Σα log y and Σα log(1 − y), (pattern, 3)."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (self.coefficients, Parameter("precision"))

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return share_statistics(self, records, alpha)

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Outcomes by the inverse distribution function, limited to their public bounds, and weights 1."""
        mean = scipy.special.expit(self.location(theta))[0][self.pattern(frame_row)]
        y = simulated_share(mean, theta["precision"][0], open_uniforms(rng, (len(frame_row),)))
        return np.clip(y, *self.outcome_bounds), np.ones(len(frame_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E(y | x) with y limited to its public bounds, of every frame row, (draw, row)."""
        mean, precision = scipy.special.expit(self.location(theta)), theta["precision"][:, None]
        return self.per_row(limited_beta_mean(mean, precision, self.outcome_bounds))

    @property
    def program(self) -> str:
        return "beta_regression"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, log_y, log1m_y = check_shares(statistics).T.tolist()
        sums = {"total": total, "sum_log": log_y, "sum_log1m": log1m_y}
        return {**self.design_data(), **sums, "prior_sd": PRIOR_SD, **no_records("pattern", "y")}

    def from_stan(self, drawn: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"coefficients": self.with_aliased(drawn["coefficients"]), "precision": drawn["lambda"]}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        mean, size = scipy.special.expit(self.location(draws)), self.summed(draws)

        def table(pattern: int) -> Table:
            exact = share_table(mean[:, pattern], draws["precision"])
            return Table(exact.values, size * exact.magnitude)

        return products(self.pattern(records.frame), share_features(records.outcome), len(draws), table)
