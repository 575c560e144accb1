"""Base class of public models whose expectations are linear in noisy sums."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.models.protocol import Draws
from dpdist.models.public_model import PublicModel

SumsModel = PublicModel


@dataclass(frozen=True)
class LinearSumsModel(PublicModel):
    """A model of noisy sums whose expectations are linear in its parameters."""

    def averaged(self, drawn: Draws) -> Draws:
        """The mean of the parameters over simulated noise, in the form of one draw."""
        return Draws({name: values.mean(axis=0, keepdims=True) for name, values in drawn.values.items()})
