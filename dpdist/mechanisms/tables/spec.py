"""The job section of `tables`: its keys, and the jobs that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from dpdist.job.mechanism import JobView, Noisy, OwnKey, Sets
from dpdist.job.rules import Contradiction, broken
from dpdist.job.values import Guarantee, NoiseName

MEAN_SQUARE: Literal["mean_square"] = "mean_square"
LARGEST: Literal["largest"] = "largest"
PredictionName: TypeAlias = Literal["effects", "trees", "best"]
EFFECTS: Literal["effects"] = "effects"
RULES = Path(__file__).with_name("rules.txt")


class Tables(Noisy):
    """Noisy sums of residuals from a public prediction, by cell of every table."""

    name: Literal["tables"] = Field(
        description="one table or many from one budget: noisy sums of residuals from a public prediction"
    )
    noise: NoiseName = Field(
        default="laplace", description="discrete Laplace, for ε alone, or Gaussian, for zCDP and a delta"
    )
    objective: Literal["mean_square", "largest"] = Field(
        default=MEAN_SQUARE,
        exclude_if=lambda objective: objective == MEAN_SQUARE,
        description="error that the split of the budget minimises: the tables' mean squared error by priority, or the "
        "largest error of any cell",
    )
    prediction: PredictionName = Field(
        default=EFFECTS,
        exclude_if=lambda prediction: prediction == EFFECTS,
        description="predictor of weights and outcomes: effects of levels and cells, boosted trees on top of them, or, for "
        "each separately, the one with the smaller cross-fitted deviance",
    )
    statistics: ClassVar[str | None] = "residuals"
    by_cell: ClassVar[bool] = True
    sums_weights: ClassVar[bool] = True
    tabulates: ClassVar[bool] = True
    needs_reference: ClassVar[str] = "predicts weights and outcomes from a reference's records"
    histogram_share: ClassVar[Fraction | None] = Fraction(1, 6)
    sets: ClassVar[Sets] = "copied"
    several_outcomes: ClassVar[bool] = True
    own_keys: ClassVar[frozenset[OwnKey]] = frozenset(
        {"accept", "hierarchies", "reference", "reference.release", "survey.design_weights"}
    )

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @property
    def gaussian(self) -> bool:
        return self.noise == "gaussian"

    @property
    def library(self) -> str | None:
        return None if self.prediction == EFFECTS else "sklearn"

    def against_noisy_crosstab(self, job: JobView) -> str:
        return "its own sums measure secret numbers of records, so there are no separate noisy counts"

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        yield from broken("tables", job, RULES)
        yield from broken("secret_counts", job, RULES)
