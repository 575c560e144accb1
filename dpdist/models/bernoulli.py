"""Model of a binary outcome: y ~ Bernoulli(probability), probability ~ Beta(1, 1) (METHODS §5b).

With α a record's privacy weight, the posterior is Beta(1 + Σαy, 1 + Σα(1 − y)).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats
from dpdist.models.numerics.tiles import ParameterTable, Tile, products
from dpdist.models.outcome import ConjugateModel, no_records
from dpdist.models.protocol import Draws, Parameter

PRIOR_A = PRIOR_B = 1.0
INSIDE = (2.0**-1000, 1.0 - 2.0**-53)
"""Draws are limited to this interval, where log p and log(1 − p) are finite; 1 − 2⁻⁵³ is the last double before 1."""


class Bernoulli(ConjugateModel):
    """Bernoulli model of one stratum's outcome, 0 or 1; statistics are (1, 2): Σα, Σαy."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("probability"),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, records.outcome)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        total, ones = statistics[0]
        p = scipy.special.betaincinv(PRIOR_A + ones, PRIOR_B + max(total - ones, 0.0), open_uniforms(rng, (draws,)))
        return Draws({"probability": np.clip(p, *INSIDE)})

    def centre(self, statistics: Floats) -> Draws:
        total, ones = statistics[:, 0].T
        return Draws({"probability": np.clip((PRIOR_A + ones) / (PRIOR_A + PRIOR_B + total), *INSIDE)})

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        y = (open_uniforms(rng, (len(crosstab_row),)) > 1.0 - theta["probability"][0]).astype(float)
        return np.clip(y, *self.outcome_bounds), np.ones(len(crosstab_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        at_zero, at_one = np.clip([0.0, 1.0], *self.outcome_bounds)
        p = theta["probability"][:, None]
        return self.per_row(p * at_one + (1.0 - p) * at_zero)

    @property
    def program(self) -> str:
        return "bernoulli"

    def stan_data(self, statistics: Floats) -> Mapping[str, Any]:
        total, ones = map(float, statistics[0])
        return {"total": total, "sum_y": min(ones, total), "prior_a": PRIOR_A, "prior_b": PRIOR_B, **no_records("y")}

    def from_stan(self, draws: Mapping[str, Floats]) -> Mapping[str, Floats]:
        return {"probability": draws["probability"]}

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        features = np.column_stack([1.0 - records.outcome, records.outcome])
        table = ParameterTable.of(np.log1p(-draws["probability"]), np.log(draws["probability"]))
        return products(self.pattern(records.row), features, len(draws), lambda _: table)
