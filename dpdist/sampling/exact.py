"""Exact sampler: independent draws from a closed-form posterior; total variation to the posterior is 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.models.protocol import Draws, Exact
from dpdist.records import Floats


class Posterior(NamedTuple):
    """A pseudo posterior: the model and the statistics of the α-weighted records."""

    model: Exact
    statistics: Floats


def sample(posterior: Posterior, draws: int, rng: np.random.Generator) -> Draws:
    """Independent draws; raises `Improper` where the posterior does not exist."""
    return posterior.model.draw(posterior.statistics, draws, rng)
