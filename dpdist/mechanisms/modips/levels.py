"""An outcome with public levels, given sanitised counts: a Dirichlet posterior by cell.

The prior is worth one record: 1/K for each of K levels, so that many levels weigh no more than few. Noisy counts are set to
the nearest ones that are not negative and have the cell's Σv as their sum. Cut off at 0 alone, noise on many empty levels
would add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Records
from dpdist.estimation.simplex import nearest_on_simplex
from dpdist.mechanisms.modips.sanitized_sums import Sanitized
from dpdist.mechanisms.modips.sensitivity import UNIT
from dpdist.models.protocol import Draws, Parameter

PRIOR = 1.0
"""Records that the prior is worth, over all levels of a cell."""


@dataclass(frozen=True)
class LevelCounts(Sanitized):
    """Sums of 1 − v by cell and of v by cell and level; levels are the whole numbers between the public bounds."""

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
        """Probabilities of levels; where all gammas are too small for float64, the level with the most has all of it."""
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        counts = nearest_on_simplex(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, self.held(sums))
        gammas = rng.standard_gamma(PRIOR / levels + counts)
        total = gammas.sum(axis=2, keepdims=True)
        most = np.eye(levels)[counts.argmax(axis=2)]
        return {"probability": np.divide(gammas, total, out=most, where=total > 0.0)}

    def moved(self, theta: Draws, before: Floats, after: Floats) -> Mapping[str, Floats]:
        """Probabilities of at least 0 that sum to 1."""
        old, new = (self._shares(theta["sums"], held) for held in (before, after))
        probability = theta["probability"] + new - old
        return {"probability": nearest_on_simplex(probability, np.ones(probability.shape[:-1]))}

    def _shares(self, sums: Floats, held: Floats) -> Floats:
        """Of a cell's Σv by level, as the sums say, (draw, cell, level)."""
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        values = np.broadcast_to(sums[:, start:].reshape(len(sums), -1, levels) / UNIT, (*held.shape, levels))
        return np.asarray(nearest_on_simplex(values, held) / held[..., None])

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x), (draw, row)."""
        weight = self.weight(theta)
        typical = theta["probability"] @ self.levels
        return weight[:, self.design.pattern], (weight * typical)[:, self.design.pattern]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Levels by their cell's probabilities, with its mean weight."""
        cell = self.pattern(frame_row)
        cumulated = np.cumsum(theta["probability"][0], axis=1)[cell]
        uniforms = open_uniforms(rng, (len(frame_row), 1)) * cumulated[:, -1:]
        return self.levels[(uniforms > cumulated[:, :-1]).sum(axis=1)], self.weight(theta)[0][cell]
