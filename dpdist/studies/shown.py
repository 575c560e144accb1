"""Settings in a study file for its page: limits to check, notes, published numbers to compare with, and plots."""

from __future__ import annotations

from math import inf
from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Budget, Frozen

FigureKind = Literal[
    "violins", "ecdf", "densities", "record_bounds", "weights_and_bounds", "outcomes_and_weights", "by_size", "by_period"
]


class Row(Frozen):
    """Published figures of one mechanism at one ε, by column."""

    mechanism: str
    epsilon: Budget | None = None
    values: dict[str, float | str]


class Published(Frozen):
    """Names the column of published means and the number of replicates behind them, to compare them with this study's."""

    column: str = Field(description="key of the column with the published mean, or with an interval's ends")
    sd: str | None = Field(default=None, description="key of the column with the sd between published replicates")
    replicates: int = Field(ge=1, description="behind the published mean; 1 for a figure of one file")


class Beside(Frozen):
    """A table of published figures that the page shows next to the study's figures."""

    title: str
    measure: str
    case: str | None = None
    statistic: Literal["mean", "mean_sd", "median", "five_numbers", "range", "interval"] = "mean"
    columns: dict[str, str] = Field(description="key of a published column and its heading")
    rows: tuple[Row, ...] = Field(min_length=1)
    published: Published | None = None
    reading: str = ""

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        for column in (self.published.column, self.published.sd) if self.published else ():
            if column is not None and column not in self.columns:
                raise ValueError(f"`published` names the column '{column}', which is none of {', '.join(self.columns)}")
        return self


class Figure(Frozen):
    kind: FigureKind
    title: str
    measure: str | None = None
    cases: tuple[str, ...] | None = None
    mechanisms: tuple[str, ...] | None = None
    epsilons: tuple[str, ...] | None = Field(default=None, description="of the study's, as exact text; unset: all")
    log: bool = False
    reading: str = ""


class Note(Frozen):
    """A note for readers of the findings, such as a definition. It quotes no figure of a run."""

    title: str
    text: str


class Limit(Frozen):
    """A limit for measures. The page states which results meet it, computed from the study's rows.

    With `over: replicates`, the interval of the mean is compared with the limit. With `over: all`, the worst replicate is.
    With `over: cells`, the median over cells of a ratio of errors is compared. Its error comes from resampled replicates.
    `below` names a mechanism whose measure should be larger in the same replicates.
    """

    title: str
    measures: tuple[str, ...] = Field(min_length=1)
    over: Literal["replicates", "all", "cells"] = "replicates"
    at_least: float | None = None
    at_most: float | None = None
    below: str | None = Field(
        default=None, description="a mechanism whose measure should be larger, replicate by replicate"
    )
    mechanisms: tuple[str, ...] | None = None
    cases: tuple[str, ...] | None = None
    epsilons: tuple[str, ...] | None = Field(default=None, description="of the study's, as exact text; unset: all")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        bounded = self.at_least is not None or self.at_most is not None
        if not bounded and self.below is None:
            raise ValueError("give at_least, at_most or both, or below")
        if bounded and self.below is not None:
            raise ValueError("below compares two mechanisms: leave at_least and at_most out")
        if self.below is not None and self.over != "replicates":
            raise ValueError("below compares replicates: leave over out")
        if self.below is not None and self.mechanisms is None:
            raise ValueError(f"name the mechanisms whose measure should be below that of '{self.below}'")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The two ends between which a figure should lie; with `below`, between which the difference should lie."""
        if self.below is not None:
            return -inf, 0.0
        low = -inf if self.at_least is None else self.at_least
        return low, inf if self.at_most is None else self.at_most

    def beyond(self, value: float) -> float:
        """How far a value lies outside the limit; negative where it lies inside."""
        low, high = self.ends
        return max(low - value, value - high)

    @property
    def text(self) -> str:
        if self.below is not None:
            return f"less than {self.below}, replicate by replicate"
        bounds = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        return " and ".join(bounds + ([f"at most {self.at_most:g}"] if self.at_most is not None else []))
