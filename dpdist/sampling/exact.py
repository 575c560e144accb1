"""Samplers without Markov chains: closed forms, and public grids. Draws are independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Boxed, Clamped, Draws, Exact, Gridded, StratumModel
from dpdist.sampling import clamped


@dataclass(frozen=True)
class ExactSampler:
    """From the closed form; total variation to the posterior is 0. Clamped posteriors have none."""

    draws: int

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, self.draws, rng)

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, 1, rng)

    @staticmethod
    def _draw(model: StratumModel, posterior: Floats | Clamped, draws: int, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Exact)
        assert not isinstance(posterior, Clamped)
        return model.draw(posterior, draws, rng)


@dataclass(frozen=True)
class GridSampler:
    """From the posterior on a public dense grid; the model states the grid's error. Clamped posteriors: see `clamped`."""

    draws: int

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, self.draws, rng)

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, 1, rng)

    @staticmethod
    def _draw(model: StratumModel, posterior: Floats | Clamped, draws: int, rng: np.random.Generator) -> Draws:
        if isinstance(posterior, Clamped):
            assert isinstance(model, Boxed)
            return clamped.draw(model, posterior, draws, rng)
        assert isinstance(model, Gridded)
        return model.draw_on_grid(posterior, draws, rng)
