"""What all kinds of study share: settings, what the page shows and checks, and what a kind adds to them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import pandas as pd
from pydantic import BeforeValidator, Field, model_validator

from dpdist.core.errors import StudyError, suggestion
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.job import Budget, Contradiction, Frozen, Name, Runtime, budget_text

FigureKind = Literal[
    "violins", "ecdf", "densities", "record_bounds", "weights_and_bounds", "outcomes_and_weights", "by_size"
]


SIMULATED = (
    "from simulated data or spaces with seeded NumPy randomness. Nothing here comes from a respondent, and nothing here is "
    "a release."
)
RANDOMNESS = (
    "NumPy generators keyed by seed {}, case and replicate, noise included; a study, not a release: its noise is not "
    "safe in floating point"
)
Fact = tuple[str, list[str]]
"""A line of the page on the study's design: a heading, and its values."""


class Result(NamedTuple):
    """A measure of one arm (a mechanism with its settings) in one replicate; ε is exact text."""

    mechanism: str
    epsilon: str
    measure: str
    value: float


class RecordRows(NamedTuple):
    """By-products of one arm, (record,) each."""

    mechanism: str
    epsilon: str
    columns: dict[str, Floats]


class Replicate(NamedTuple):
    results: list[Result]
    records: Sequence[RecordRows] = ()


class Caption(NamedTuple):
    """A measure's title, how to read it, and a short title for an axis."""

    title: str
    reading: str = ""
    axis: str = ""


class StudyRow(Frozen):
    """Published figures of one mechanism at one ε, by column."""

    mechanism: str
    epsilon: Budget | None = None
    values: dict[str, float | str]


class Published(Frozen):
    """Published means to be compared with this study's."""

    column: str = Field(description="key of the column with the published mean, or with an interval's ends")
    sd: str | None = Field(default=None, description="key of the column with the sd between published replicates")
    replicates: int = Field(ge=1, description="behind the published mean; 1 for a figure of one file")


class ComparisonTable(Frozen):
    """Published figures that the page shows beside the study's."""

    title: str
    measure: str
    case: str | None = None
    statistic: Literal["mean", "mean_sd", "median", "five_numbers", "range", "interval"] = "mean"
    columns: dict[str, str] = Field(description="key of a published column and its heading")
    rows: tuple[StudyRow, ...] = Field(min_length=1)
    published: Published | None = None
    reading: str = ""

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        for column in (self.published.column, self.published.sd) if self.published else ():
            if column is not None and column not in self.columns:
                raise ValueError(f"`published` names the column '{column}', which is none of {', '.join(self.columns)}")
        return self


class StudyFigure(Frozen):
    kind: FigureKind
    title: str
    measure: str | None = None
    cases: tuple[str, ...] | None = None
    mechanisms: tuple[str, ...] | None = None
    epsilons: tuple[str, ...] | None = Field(default=None, description="of the study's, as exact text; unset: all")
    log: bool = False
    reading: str = ""


class Note(Frozen):
    """A note for readers, such as a definition. It quotes no figure of a run."""

    title: str
    text: str


class Limit(Frozen):
    """A limit for measures; the page states which results meet it.

    `over: replicates` compares the interval of the mean, `over: all` the worst replicate, and `over: cells` a ratio's
    median over cells. `below` names a mechanism whose measure should be larger in the same replicates.
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
        """The range for a figure; with `below`, for the difference."""
        if self.below is not None:
            return -inf, 0.0
        low = -inf if self.at_least is None else self.at_least
        return low, inf if self.at_most is None else self.at_most

    def beyond(self, value: float) -> float:
        """Distance outside the limit; negative inside."""
        low, high = self.ends
        return max(low - value, value - high)

    @property
    def text(self) -> str:
        if self.below is not None:
            return f"less than {self.below}, replicate by replicate"
        bounds = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        return " and ".join(bounds + ([f"at most {self.at_most:g}"] if self.at_most is not None else []))


def as_number(epsilon: str) -> float:
    """NaN if there is no ε."""
    numerator, _, denominator = epsilon.partition("/")
    return float(numerator) / float(denominator or 1) if epsilon else float("nan")


def one_line(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


class Study(Frozen):
    """A study. Each kind derives a class, whose field `kind` has the kind's name as its type."""

    heads: ClassVar[tuple[str, ...]]
    """Headings of the page's table of arms."""
    made_of: ClassVar[str] = SIMULATED
    """A text on what the data are, and why they may be shown."""
    kind: str
    study: Name
    title: str
    about: Annotated[str, BeforeValidator(one_line)] = ""
    seed: int = Field(ge=0, lt=2**64)
    replicates: int = Field(ge=1)
    epsilons: tuple[Budget, ...] = ()
    references: dict[str, str] = Field(default_factory=dict, description="papers that the texts cite, by their letter")
    cases: tuple[Any, ...] = Field(min_length=1)
    notes: tuple[Note, ...] = ()
    limits: tuple[Limit, ...] = Field(
        default=(), description="limits and orders of measures with which the page compares the results"
    )
    beside: tuple[ComparisonTable, ...] = ()
    figures: tuple[StudyFigure, ...] = ()
    runtime: Runtime = Runtime()

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """Values of the column `mechanism` in results, in order."""

    @property
    def case_names(self) -> tuple[str, ...]:
        return tuple(case.name for case in self.cases)

    @property
    @abstractmethod
    def captions(self) -> Mapping[str, Caption]:
        """Captions of measures, by measure."""

    @property
    def all_measures(self) -> tuple[str, ...]:
        """Measures, in order."""
        return tuple(self.captions)

    @abstractmethod
    def replicate(self, case: int, number: int) -> Replicate:
        """Replicate `number`, from 1, of the case at this position; the first may return by-products for figures."""

    @abstractmethod
    def facts(self) -> list[Fact]:
        """The page's lines on the study's design."""

    @abstractmethod
    def arms(self) -> list[tuple[str, ...]]:
        """Rows of the page's table of arms, under `heads`."""

    def refusals(self) -> Iterator[Contradiction]:
        """Settings that no release can have."""
        yield from ()

    def by_cell(self, results: pd.DataFrame) -> pd.DataFrame | None:
        """Errors of all replicates by cell (case, mechanism, epsilon, cell, measure, value), or None."""
        return None

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        """Value of the figures' dashed line, if any."""
        return 1.0 if "_ratio_" in measure else None

    @property
    def randomness(self) -> Fact:
        return "Randomness", [RANDOMNESS.format(self.seed)]

    @property
    def grid(self) -> tuple[str, ...]:
        """ε as exact text; one empty text without ε."""
        return tuple(budget_text(epsilon) for epsilon in self.epsilons) or ("",)

    def key_of(self, case: str, number: int | None = None) -> Key:
        """The key for random numbers in a case, or in one replicate."""
        key = Key(self.seed.to_bytes(32, "big")).child(case)
        return key if number is None else key.child(str(number))

    @property
    def reads_files(self) -> bool:
        return any(getattr(case, "file", None) is not None for case in self.cases)

    def with_data(self, folder: str) -> Self:
        """The study with another folder of files, if it reads any."""
        return self

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings that determine a replicate, which must agree for results to be combined."""
        return self.model_dump(mode="json", exclude=_DECIDES_NOTHING)

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        _different("labels of mechanisms", self.labels)
        _different("names of cases", self.case_names)
        for figure in self.figures:
            known_or_refused(f"figure '{figure.title}'", figure.cases, self.case_names)
            known_or_refused(f"figure '{figure.title}'", figure.mechanisms, self.labels)
            known_or_refused(f"figure '{figure.title}'", figure.epsilons, self.grid)
            known_or_refused(f"figure '{figure.title}'", (figure.measure,) if figure.measure else (), self.all_measures)
        for limit in self.limits:
            arms = (*(limit.mechanisms or ()), *((limit.below,) if limit.below else ()))
            for names, allowed in (
                (limit.cases, self.case_names),
                (arms, self.labels),
                (limit.measures, self.all_measures),
                (limit.epsilons, self.grid),
            ):
                known_or_refused(f"limit '{limit.title}'", names, allowed)
        for table in self.beside:
            known_or_refused(f"table '{table.title}'", (table.case,) if table.case else (), self.case_names)
            known_or_refused(f"table '{table.title}'", (table.measure,), self.all_measures)
            for row in table.rows:
                known_or_refused(f"table '{table.title}'", (row.mechanism,), self.labels)
                known_or_refused(f"table '{table.title}'", tuple(row.values), tuple(table.columns))
        return self


class MechanismArm(Frozen):
    """A mechanism with its constants, as a section of a job."""

    label: Name
    mechanism: dict[str, Any]


class StudyOfArms(Study):
    """A study that compares labelled mechanisms (arms) at every ε."""

    mechanisms: tuple[Any, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(arm.label for arm in self.mechanisms)


class StudyOfFiles(Study):
    """A study of public files in one folder."""

    data: str | None = Field(default=None, description="folder of the files; `--data` names another")

    def with_data(self, folder: str) -> Self:
        return self.model_copy(update={"data": folder})

    def path_of(self, file: str, where: str) -> Path:
        """The file's path. Raises `StudyError`, with the place `where` in the study, if there is no such file."""
        path = Path(self.data or ".") / file
        if not path.is_file():
            raise StudyError.of(self.study, where, f"no file {file}", "a Parquet file", "name its folder by --data")
        return path


_DECIDES_NOTHING = {"title", "about", "data", "references", "replicates", "notes", "beside", "figures", "limits", "runtime"}


def _different(what: str, names: tuple[str, ...]) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{what} must differ, '{twice}' appears twice or is reserved: give another")


def known_or_refused(where: str, names: Sequence[str] | None, allowed: Sequence[str]) -> None:
    """Raises `ValueError` for the first unknown name, with the nearest allowed one."""
    for name in names or ():
        if name not in allowed:
            near = suggestion(name, allowed, "use one of these")
            raise ValueError(f"{where} names '{name}', which is none of {', '.join(allowed)}: {near}")
