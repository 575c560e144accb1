"""Family `geometric`: whole numbers y with P(y) = p (1 − p)^y, and p ~ Beta(.5, .5).

With α a record's privacy weight, the posterior is Beta(.5 + Σα, .5 + Σαy).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Ints
from dpdist.job.families import COUNT, FamilyFacts
from dpdist.models.numerics.tiles import ParameterTable, Tile, products
from dpdist.models.outcome import ConjugateModel, integer_bounds
from dpdist.models.protocol import Draws, Parameter

PRIOR = 0.5
ENDS = 1e-12, 1.0 - 1e-12


class Geometric(ConjugateModel):
    """Geometric model of one stratum's outcome; statistics are (1, 2): Σα, Σαy."""

    CONTRACT: ClassVar[int] = 2
    facts: ClassVar[FamilyFacts] = FamilyFacts(
        "geometric probability of {outcome}", COUNT, False, False, ("exact",), "geometric"
    )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("stop"),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        return self.sums(records, alpha, records.outcome)

    def draw(self, statistics: Floats, draws: int, rng: np.random.Generator) -> Draws:
        total, sum_y = statistics[0]
        drawn = scipy.special.betaincinv(PRIOR + total, PRIOR + sum_y, open_uniforms(rng, (draws,)))
        return Draws({"stop": np.clip(drawn, *ENDS)})

    def centre(self, statistics: Floats) -> Draws:
        """Posterior means for many sets of statistics, (set, 1, 2)."""
        total, sum_y = statistics[:, 0].T
        return Draws({"stop": np.clip((PRIOR + total) / (2.0 * PRIOR + total + sum_y), *ENDS)})

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        y = np.floor(np.log(open_uniforms(rng, (len(crosstab_row),))) / np.log1p(-theta["stop"][0]))
        return np.clip(y, *integer_bounds(self.outcome_bounds)), np.ones(len(crosstab_row))

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E w = 1 and E y with y limited to its public bounds: the lower bound, and Σ P(y > k) from there to the upper."""
        (low, high), go = integer_bounds(self.outcome_bounds), 1.0 - theta["stop"]
        mean = low + go ** (low + 1.0) * (1.0 - go ** (high - low)) / theta["stop"]
        return self.per_row(mean[:, None])

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        share = np.where(value >= 0.0, 1.0 - (1.0 - theta["stop"][:, None]) ** (np.floor(value) + 1.0), 0.0)
        return self.within_bounds(share, value)

    def tiles(self, draws: Draws, records: Records) -> Iterator[Tile]:
        table = ParameterTable.of(np.log(draws["stop"]), np.log1p(-draws["stop"]))
        features = np.column_stack([np.ones(len(records)), records.outcome])
        return products(self.pattern(records.row), features, len(draws), lambda _: table)
