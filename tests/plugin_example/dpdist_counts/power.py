"""Weight rule `power`: α = min(1, (c/F)^steepness), which falls the faster the larger `steepness` is."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from dpdist.core.records import Floats
from dpdist.job import Weights
from dpdist.privacy.weights import Step, Summary, WeightRule


class PowerWeights(Weights):
    """What a job may state of the rule."""

    steepness: float = Field(default=2.0, ge=1, le=8, description="of power: how fast weights fall beyond c")


class Power(NamedTuple):
    """The step. Records without a finite bound have the weight 0."""

    c: float
    steepness: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        share = np.divide(self.c, unweighted, out=np.ones_like(unweighted), where=unweighted > self.c)
        return np.where(np.isfinite(unweighted), share**self.steepness, 0.0)


class PowerRule(WeightRule):
    """Powers of a constant over the record bound."""

    CONTRACT: ClassVar[int] = 2
    constants: ClassVar[frozenset[str]] = frozenset({"c", "steepness"})
    section: ClassVar[type[Weights]] = PowerWeights

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        assert isinstance(weights, PowerWeights)
        return Power(c, weights.steepness)

    def start(self, target: float, first: Summary) -> float:
        return target
