"""The interface of samplers: a sampler draws from a posterior, and knows models only by their capabilities."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dpdist.core.records import Floats
from dpdist.models.protocol import Clamped, Draws, StratumModel


class Unconverged(Exception):
    """A posterior could not be sampled as the job asks; the message gives the reason without any figure of the records."""


class Sampler(Protocol):
    """Samples π(θ) ∏ p(record_i | θ)^α_i, given the statistics of the α-weighted records; or a clamped posterior.

    The same generator state gives the same draws, and close statistics give close draws. So all rounds have common random
    numbers.
    """

    def many(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """The job's S draws; raises `Improper` where the posterior does not exist."""
        ...

    def one(self, model: StratumModel, posterior: Floats | Clamped, rng: np.random.Generator) -> Draws:
        """A single draw."""
        ...
