"""Base classes of models whose statistics are sums that get noise: `SumsModel` and `LinearSumsModel`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.models.outcome import OutcomeModel
from dpdist.models.protocol import Draws, Extremes


@dataclass(frozen=True)
class SumsModel(OutcomeModel):
    """A model of noisy sums. A sum has no density of a record, so no record has a log likelihood."""

    def log_lik(self, draws: Draws, records: Records) -> Floats:
        """NaN for every draw and record."""
        return np.full((len(draws), len(records)), np.nan)

    def extremes(self, draws: Draws, records: Records) -> Extremes:
        """∞ and −∞ for every record, so that its bound is infinite."""
        return Extremes(np.full(len(records), np.inf), np.full(len(records), -np.inf))


@dataclass(frozen=True)
class LinearSumsModel(SumsModel):
    """A model of noisy sums whose expectations are linear in its parameters."""

    def averaged(self, drawn: Draws) -> Draws:
        """The mean of the parameters over simulated noise, in the form of one draw."""
        return Draws({name: values.mean(axis=0, keepdims=True) for name, values in drawn.values.items()})
