"""Settings of a study that compares tables from synthetic records with tables under noise (METHODS §7)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Budget, Frozen, Name, RuleOrName, StatisticName, Synthesis, budget_text
from dpdist.studies.settings import Study

Yardstick = Literal["direct", "laplace", "laplace_composed", "laplace_strict"]
YARDSTICKS: tuple[Yardstick, ...] = ("direct", "laplace", "laplace_composed", "laplace_strict")
STATISTICS: tuple[StatisticName, ...] = ("count", "mean")
SIZES = ("median", "max")
"""Summaries over cells of |error| in direct standard errors."""


def sizes_of(statistic: str) -> tuple[str, ...]:
    """Names of the summaries of a statistic's errors. Counts also have them in standard errors given the cells' sizes."""
    given = tuple(f"given_{size}" for size in SIZES) if statistic == "count" else ()
    return (*SIZES, *given)


def scale(size: str) -> str:
    """Says which direct standard errors are the unit of a summary: given the cells' sizes, or as designed."""
    return "given the cells' sizes" if size.startswith("given_") else "as designed"


class TableFile(Frozen):
    """A public file that is the population of a case: its columns of field, sex and salary, and their levels."""

    path: str = Field(description="in the folder that `dpdist study --data` names")
    field: str = Field(description="the column that is taken for the field")
    fields: tuple[str, ...] = Field(min_length=2, description="its levels")
    sex: str = Field(description="the column that is taken for sex")
    sexes: tuple[str, ...] = Field(min_length=2, description="its levels")
    salary: str = Field(description="the outcome; records with none or 0 are left out")


class TableCase(Frozen):
    """A simulated survey of doctorates, with a new population and a new sample in every replicate; or samples of a file.

    Samples of a file are systematic, with probabilities that grow with the outcome.
    """

    name: Name
    population: int | None = Field(default=None, gt=0, description="units that are simulated")
    file: TableFile | None = Field(default=None, description="whose records are the population, in place of simulated ones")
    sample: int = Field(gt=0)
    noise: Literal["normal", "lognormal"] = Field(default="normal", description="of simulated inclusion probabilities")
    weight_bound: float = Field(default=500.0, gt=0, description="public, of the strict table: larger weights are clipped")
    outcome_bound: float = Field(default=400_000.0, gt=0, description="public, likewise")

    @model_validator(mode="after")
    def _one_population(self) -> Self:
        if (self.population is None) == (self.file is None):
            raise ValueError("give population or file, one of them")
        return self

    @property
    def n(self) -> int:
        return self.sample


class Synthetic(Frozen):
    """Tables from m synthetic sets, drawn by FBS or FBP under a weight rule, and estimated from records or parameters.

    With `expected_weights`, each synthetic weight w* is replaced by E(w|y*, x), given the synthetic outcome y*.
    """

    label: Name
    weights: RuleOrName
    synthesis: Synthesis = "fbs"
    population_weights: Literal["inverse_inclusion", "proportional"] = "inverse_inclusion"
    estimator: Literal["records", "expected_weights", "parameters"] = "records"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.synthesis == "fbs" and self.population_weights == "proportional":
            raise ValueError("population_weights are of synthesis: fbp")
        if self.synthesis == "fbp" and self.estimator == "expected_weights":
            raise ValueError("fbp has no synthetic weights to replace: take estimator: records")
        return self


class TablesStudy(Study):
    """Study of RMSE against the truth in every cell of field × sex with margins, over the RMSE of yardsticks.

    The RMSE is over replicates.
    """

    kind: Literal["tables"]
    cases: tuple[TableCase, ...] = Field(min_length=1)
    mechanisms: tuple[Synthetic, ...] = Field(min_length=1)
    sets: tuple[Annotated[int, Field(ge=1, le=20)], ...] = Field(min_length=1, description="numbers m of synthetic sets")
    epsilon_per_set: Budget
    draws: int = Field(default=1000, ge=100)
    data: str | None = Field(default=None, description="folder of the files; `--data` names another")

    def with_data(self, folder: str) -> Self:
        return self.model_copy(update={"data": folder})

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        if self.epsilons:
            raise ValueError("epsilons follow from sets and epsilon_per_set: leave them out")
        if len(set(self.sets)) < len(self.sets):
            raise ValueError("numbers of sets must differ")
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        return (*YARDSTICKS, *(arm.label for arm in self.mechanisms))

    @property
    def grid(self) -> tuple[str, ...]:
        """The total ε of m sets, for every m. Tables under noise have the same ε."""
        return tuple(budget_text(self.epsilon_per_set * Fraction(m)) for m in self.sets)

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Labels of the yardsticks, by whose RMSE each arm's RMSE is divided."""
        return YARDSTICKS

    @property
    def asked(self) -> tuple[str, ...]:
        order: tuple[Yardstick, ...] = ("laplace", "laplace_composed", "direct", "laplace_strict")
        ratios = tuple(f"{statistic}_ratio_{other}" for other in order for statistic in STATISTICS)
        coverage = tuple(f"{name}_coverage{which}" for which in ("", "_margins", "_sets") for name in STATISTICS)
        return (*ratios, *coverage, "database_bound")
