"""Samplers that draw independently, from closed forms or on public grids, without Markov chains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Boxed, Clamped, Draws, Exact, Gridded, StratumModel
from dpdist.sampling import clamped


@dataclass(frozen=True)
class ExactSampler:
    """Draws from the closed form; the total variation to the posterior is 0. Clamped posteriors have no closed form."""

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
    """Draws from the posterior on a public dense grid; the model states the grid's error.

    For clamped posteriors see `clamped`.
    """

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
