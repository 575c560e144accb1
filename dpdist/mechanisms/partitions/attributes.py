"""Turns an outcome into an attribute with levels: its whole numbers, or equal bins of its public bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.job import Column


@dataclass(frozen=True)
class Attribute:
    """Levels of an outcome: the whole numbers between the bounds, or bins; values are uniform within a bin."""

    name: str
    low: float
    high: float
    levels: int
    binned: bool

    @classmethod
    def of(cls, name: str, column: Column, levels: int, binned: bool) -> Attribute:
        assert column.bounds is not None
        return cls(name, *column.bounds, levels, binned)

    @property
    def width(self) -> float:
        """The width of a bin, or 1 for whole numbers."""
        return (self.high - self.low) / self.levels if self.binned else 1.0

    @property
    def values(self) -> Floats:
        """The value of every level, or the middle of every bin, (level,)."""
        return np.asarray(
            self.low + self.width * (np.arange(self.levels) + (0.5 if self.binned else 0.0)), dtype=np.float64
        )

    @property
    def labels(self) -> tuple[str, ...]:
        if not self.binned:
            return tuple(f"{value:.10g}" for value in self.values)
        half = self.width / 2.0
        return tuple(f"from {value - half:.10g} to {value + half:.10g}" for value in self.values)

    def level(self, outcome: Floats) -> Ints:
        """The level of every outcome, from 0; the upper bound is in the last level."""
        place = np.floor((outcome - self.low) / self.width) if self.binned else np.rint(outcome - self.low)
        return np.clip(place, 0, self.levels - 1).astype(np.int64)

    def drawn(self, level: Ints | Codes, rng: np.random.Generator) -> Floats:
        """Draws a value for each given level."""
        spread = rng.random(len(level)) - 0.5 if self.binned else 0.0
        return np.asarray(np.clip(self.values[level] + self.width * spread, self.low, self.high))

    def until(self, value: float) -> Floats:
        """The share of every level at or below a value, (level,)."""
        if not self.binned:
            return np.where(self.values <= value, 1.0, 0.0)
        return np.clip((value - self.values) / self.width + 0.5, 0.0, 1.0)
