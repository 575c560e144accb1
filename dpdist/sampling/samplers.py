"""The protocol of samplers, for `engine` and `runtime`; and the samplers `exact` and `grid`, with independent draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Boxed, Clamped, Draws, Exact, Gridded, StratumModel, redrawing
from dpdist.sampling import clamped


@dataclass(frozen=True)
class ExactSampler:
    """Draws from closed forms, with total variation 0 from the posterior. A clamped posterior has no closed form."""

    draws: int

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, self.draws, rng)

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        return self._draw(model, posterior, 1, rng)

    def repeated(
        self, model: StratumModel, stream: Callable[[], np.random.Generator]
    ) -> Callable[[Floats | Clamped], Draws]:
        """`many` of the rounds of one stage, which share the random numbers of a stream."""
        assert isinstance(model, Exact)
        redraw = redrawing(model, self.draws, stream)

        def draws_of(posterior: Floats | Clamped) -> Draws:
            assert not isinstance(posterior, Clamped)
            return redraw(posterior)

        return draws_of

    @staticmethod
    def _draw(model: StratumModel, posterior: Floats | Clamped, draws: int, rng: np.random.Generator) -> Draws:
        assert isinstance(model, Exact)
        assert not isinstance(posterior, Clamped)
        return model.draw(posterior, draws, rng)


@dataclass(frozen=True)
class GridSampler:
    """Draws from posteriors on a dense public grid. The model states the grid's error.

    Clamped posteriors are drawn from by `clamped`.
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


class Unconverged(Exception):
    """A posterior could not be sampled as the job asks. The message gives the reason, without figures of the records."""


class PosteriorSampler(Protocol):
    """Draws from π(θ) ∏ p(record_i | θ)^α_i, given statistics of α-weighted records, or from a clamped posterior.

    A generator in the same state gives the same draws, and similar statistics give similar draws. All rounds therefore
    share random numbers.
    """

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """The job's S draws. Raises `Improper` if the posterior does not exist."""
        ...

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """One draw."""
        ...
