"""The MODIPS model of an outcome with public levels: a Dirichlet posterior by cell, given noisy counts.

The prior counts as one record: 1/K for each of K levels, so that many levels have no more prior weight than few. A record
counts as v, its weight over the weight's public bound. Noisy counts are projected onto the nearest non-negative ones that
sum to the cell's Σv. If negative counts were only set to 0, positive noise on many empty levels would add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats
from dpdist.estimation.least_squares import nearest_on_simplex
from dpdist.mechanisms.modips.sanitized_sums import Sanitized
from dpdist.mechanisms.modips.sensitivity import UNIT
from dpdist.models.protocol import Draws, Parameter

PRIOR = 1.0
"""Number of records that a cell's prior counts as, over all levels."""


@dataclass(frozen=True)
class LevelCounts(Sanitized):
    """Sums of 1 − v by cell, and of v by cell and level; levels are the whole numbers between the public bounds."""

    @property
    def levels(self) -> Floats:
        low, high = self.outcome_bounds
        return np.arange(np.ceil(low), np.floor(high) + 1.0)

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        first = () if self.weights is None else (tuple(f"1 - v of {cell}" for cell in self.labels),)
        return (*first, tuple(f"v 1[y = k] of {cell} / {level:g}" for cell in self.labels for level in self.levels))

    @property
    def domain(self) -> tuple[Floats, Floats]:
        n = UNIT * self.count
        first = [] if self.weights is None else [n]
        high = np.concatenate([*first, np.repeat(n, len(self.levels))])
        return np.zeros_like(high), high

    @property
    def drawn(self) -> tuple[Parameter, ...]:
        names = tuple(f"{level:g}" for level in self.levels)
        return (Parameter("probability", (("cell", self.labels), ("level", names))),)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        levels, v, cell = len(self.levels), self.entered(records, alpha), self.pattern(records.frame)
        level = np.clip(np.rint(records.outcome - self.levels[0]), 0, levels - 1).astype(np.int64)
        counts = np.bincount(cell * levels + level, weights=v, minlength=levels * len(self.labels))
        return np.concatenate([self.absent(cell, alpha, v), counts])

    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        """Probabilities of levels, drawn from their posteriors given noisy sums.

        If all gamma draws of a cell are too small for float64, the level with the largest count gets probability 1.
        """
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        counts = nearest_on_simplex(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, self.held(sums))
        gammas = rng.standard_gamma(PRIOR / levels + counts)
        total = gammas.sum(axis=2, keepdims=True)
        most = np.eye(levels)[counts.argmax(axis=2)]
        return {"probability": np.divide(gammas, total, out=most, where=total > 0.0)}

    def moved(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """Probabilities of levels, changed as their estimates change with Σv; they stay non-negative and sum to 1."""
        old, new = (self._shares(theta["sums"], held) for held in (before, after))
        probability = theta["probability"] + new - old
        return {"probability": nearest_on_simplex(probability, np.ones(probability.shape[:-1]))}

    def _shares(self, sums: Floats, held: Floats) -> Floats:
        """Each level's part of a cell's Σv, from the noisy sums, (draw, cell, level)."""
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        values = np.broadcast_to(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, (*held.shape, levels))
        return np.asarray(nearest_on_simplex(values, held) / held[..., None])

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        weight = self.weight(theta)
        typical = theta["probability"] @ self.levels
        return weight[:, self.design.pattern], (weight * typical)[:, self.design.pattern]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws levels by their cell's probabilities; every record has its cell's mean weight."""
        cell = self.pattern(frame_row)
        cumulated = np.cumsum(theta["probability"][0], axis=1)[cell]
        uniforms = open_uniforms(rng, (len(frame_row), 1)) * cumulated[:, -1:]
        return self.levels[(uniforms > cumulated[:, :-1]).sum(axis=1)], self.weight(theta)[0][cell]
