"""Base class of mechanisms' models in `post.py`: design, form of parameters, figures of crosstab rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import Job
from dpdist.models.design import Design, design
from dpdist.models.protocol import Draws, Parameter, describe_draws, recall_draws


@dataclass(frozen=True)
class PublicModel:
    """The public part of a stratum's model.

    A pattern is a distinct combination of predictor levels. Without predictors there is one pattern.
    """

    design: Design
    outcome_bounds: tuple[float, float]

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
        return cls(design(crosstab, cls.predictors(job, crosstab), rows), job.outcome_column.bounds or (-np.inf, np.inf))

    @staticmethod
    def predictors(job: Job, crosstab: Crosstab) -> tuple[str, ...]:
        return ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        raise NotImplementedError

    @property
    def identified(self) -> int:
        return len(self.design.kept)

    @property
    def improper(self) -> bool:
        return False

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        return describe_draws(self.parameters, theta)

    def recall(self, described: Mapping[str, Any]) -> Draws:
        return recall_draws(self.parameters, described)

    def pattern(self, crosstab_row: Codes) -> Codes:
        return self.design.pattern[crosstab_row - self.design.first]

    def per_row(self, mean: Floats) -> tuple[Floats, Floats]:
        """E(w | x) = 1 and E(w y | x) = E(y | x) of every crosstab row, (draw, row), from `mean`, E(y | x) by pattern."""
        product = mean[:, self.design.pattern]
        return np.ones_like(product), product

    def within_bounds(self, share: Floats, value: Floats) -> Floats:
        """P(outcome ≤ value), (draw, pair), after the outcome is limited to its public bounds; `share` is without
        limits.
        """
        low, top = self.outcome_bounds
        return np.where(value >= top, 1.0, np.where(value < low, 0.0, share))


@dataclass(frozen=True)
class LinearModel(PublicModel):
    """A public model whose expectations are linear in its parameters."""

    def averaged(self, drawn: Draws) -> Draws:
        """The mean of the parameters over simulated noise, in the form of one draw."""
        return Draws({name: values.mean(axis=0, keepdims=True) for name, values in drawn.values.items()})
