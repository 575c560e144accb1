"""Samplers without Markov chains: closed forms, and public grids. Draws are independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.models.protocol import Draws, Exact, Gridded, StratumModel
from dpdist.records import Floats


@dataclass(frozen=True)
class ExactSampler:
    """From the closed form; total variation to the posterior is 0."""

    draws: int

    def many(self, model: StratumModel, statistics: Floats, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Exact)
        return model.draw(statistics, self.draws, rng)

    def one(self, model: StratumModel, statistics: Floats, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Exact)
        return model.draw(statistics, 1, rng)


@dataclass(frozen=True)
class GridSampler:
    """From the posterior on a public dense grid; the model states the grid's error."""

    draws: int

    def many(self, model: StratumModel, statistics: Floats, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Gridded)
        return model.draw_on_grid(statistics, self.draws, rng)

    def one(self, model: StratumModel, statistics: Floats, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Gridded)
        return model.draw_on_grid(statistics, 1, rng)
