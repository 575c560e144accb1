"""Declares what a sampler does: it draws from a posterior. Its code depends on a model's methods, not on its name."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.clamped import Clamped
from dpdist.models.protocol import Draws, StratumModel


class Unconverged(Exception):
    """A posterior could not be sampled as the job asks. The message gives the reason, without figures of the records."""


class Sampler(Protocol):
    """Draws from π(θ) ∏ p(record_i | θ)^α_i, given statistics of the α-weighted records; or from a clamped posterior.

    A generator in the same state gives the same draws, and similar statistics give similar draws. So all rounds share
    random numbers.
    """

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """The job's S draws. Raises `Improper` where the posterior does not exist."""
        ...

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """One draw."""
        ...
