"""An outcome with public levels, given sanitised counts: a Dirichlet posterior by cell under the uniform prior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpdist.core.keys import open_uniforms
from dpdist.core.records import Codes, Floats, Records
from dpdist.mechanisms.modips.release import Sanitized
from dpdist.mechanisms.modips.sensitivity import UNIT
from dpdist.models.protocol import Draws, Parameter


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
        return np.concatenate([self.absent(cell, v), counts])

    def laws(self, sums: Floats, rng: np.random.Generator) -> Mapping[str, Floats]:
        """Counts are scaled to the cell's Σv where they have a sum above 0; otherwise all levels are equally likely."""
        start, levels = (0 if self.weights is None else len(self.count)), len(self.levels)
        counts = np.maximum(sums[:, start:].reshape(len(sums), -1, levels), 0.0)
        total = counts.sum(axis=2, keepdims=True)
        share = np.divide(counts, total, out=np.full_like(counts, 1.0 / levels), where=total > 0.0)
        gammas = rng.standard_gamma(1.0 + self.held(sums)[..., None] * share)
        return {"probability": gammas / gammas.sum(axis=2, keepdims=True)}

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
