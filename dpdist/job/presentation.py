"""Sections on what is published: `presentation` (labels, rules of print), `accept`, `approval` and `correction`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from dpdist.core.errors import JobError, install, installed
from dpdist.job.tables import Statistic, statistic_of, statistic_text
from dpdist.job.values import (
    ADDRESS,
    AGENCY,
    LANGUAGE,
    RELEASE,
    VERSION,
    Budget,
    Frozen,
    KeyText,
    Sentence,
    StatisticName,
    keys_as_text,
)

Format = Literal["csv", "dta", "sav", "ddi"]
"""Formats of synthetic records besides Parquet: CSV, Stata, SPSS, and a DDI codebook as XML.

With Stata, noisy measurements are written for Stata too.
"""
NEEDS_AN_EXTRA: tuple[Format, ...] = ("sav",)
"""Formats that need a library which dpdist does not install by itself."""
FLAGS = ("reliable", "caution", "unreliable")


class ColumnText(Frozen):
    """A column's label, its unit, and the labels of its levels."""

    label: Sentence | None = Field(default=None, description="name of the column in print")
    unit: Sentence | None = Field(default=None, description='unit in print, such as "US dollars"')
    levels: Annotated[dict[str, Sentence], BeforeValidator(keys_as_text)] = Field(
        default={}, description="names of levels in print"
    )


class TableText(Frozen):
    """Text above and below a printed table."""

    title: Sentence | None = Field(default=None, description="printed above the table")
    notes: tuple[Sentence, ...] = Field(default=(), description="printed below the table")
    across: str | None = Field(default=None, description="column whose levels are printed side by side")


class Thresholds(Frozen):
    """Values of a measure of error above which a figure is flagged."""

    caution: Annotated[float, Field(gt=0, description="value above which a figure is marked caution")]
    unreliable: Annotated[float, Field(gt=0, description="value above which a figure is marked unreliable")]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.caution < self.unreliable:
            raise ValueError("caution must be below unreliable")
        return self


class Quality(Frozen):
    """Rules for printed figures. The long files keep every figure, because the guarantee covers them all."""

    cv: Thresholds | None = Field(default=None, description="limits on the standard error over the estimate")
    margin: dict[StatisticName, Thresholds] = Field(default={}, description="limits on the margin of error, by statistic")
    minimum: int | None = Field(default=None, gt=0, description="smallest published count of a printed cell")
    hide_unreliable: bool = Field(default=False, description="print no unreliable figure")

    @property
    def flags(self) -> bool:
        """True if figures get flags."""
        return self.cv is not None or bool(self.margin)


class Registry(Frozen):
    """Facts for an entry in the registry of deployments that dpdist cannot know."""

    intended_use: Sentence = Field(description="what the release is for")
    region: Sentence = Field(description="region that the data describe, or whose legislation applies")
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = Field(
        default=None, description="sector that the release is about"
    )
    publication_date: date = Field(description="the day of publication, such as 2026-11-21")
    tuning: Sentence | None = Field(
        default=None, description="how constants and the budget were chosen; unset: presentation.choices"
    )
    justification: Sentence = Field(description="why this budget and this unit of privacy")
    author: Sentence | None = Field(default=None, description="author of the entry; unset: the responsible body")
    url: str | None = Field(default=None, pattern=ADDRESS, description="where the release is published")
    continual: bool = Field(default=False, description="whether the product is published every period")


class Sdmx(Frozen):
    """Names under which tables are published as SDMX dataflows."""

    agency: str = Field(
        pattern=AGENCY,
        description="agency that maintains the structures, such as ESTAT",
    )
    version: str = Field(default="1.0", pattern=VERSION, description="version of the structures")


class Presentation(Frozen):
    """Labels, notes and rules of print. All of it is public text, from which nothing is inferred."""

    title: Sentence | None = Field(default=None, description="title of the release; `{{period}}` stands for its period")
    universe: Sentence | None = Field(default=None, description="population of the figures, in words")
    source: Sentence | None = Field(default=None, description="survey, its period and who collected it")
    licence: Sentence | None = Field(default=None, description="licence of the release")
    contact: Sentence | None = Field(default=None, description="address or page for questions")
    responsible: Sentence | None = Field(default=None, description="body that answers for the release")
    choices: Sentence | None = Field(
        default=None,
        exclude_if=lambda text: text is None,
        description="how constants and the budget were chosen, and on which data",
    )
    retention: Sentence | None = Field(
        default=None,
        exclude_if=lambda text: text is None,
        description="how long records and confidential by-products are kept",
    )
    notes: tuple[Sentence, ...] = Field(default=(), description="printed with every table")
    language: str = Field(default="en", pattern=LANGUAGE, description="language of the texts, such as en-GB")
    columns: dict[str, ColumnText] = Field(default={}, description="labels, units and levels by column")
    tables: dict[str, TableText] = Field(default={}, description="titles and notes, by table")
    estimator: Literal["parameters", "records"] | None = Field(
        default=None, description="estimates to print; unset: parameters, if there are any"
    )
    decimals: dict[StatisticName, Annotated[int, Field(ge=-9, le=9)]] = Field(
        default={}, description="decimals by statistic; -3 prints whole thousands; unset: four digits of the largest figure"
    )
    se: Literal["margin", "column"] = Field(
        default="margin",
        exclude_if=lambda value: value == "margin",
        description=(
            "error printed beside a figure: its margin of error (90 %), or its standard error in a column of its own"
        ),
    )
    sample_size: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="print the unweighted number of sample records in every cell, if it is public",
    )
    quality: Quality = Field(default=Quality(), description="flags and limits of printed figures")
    registry: Registry | None = Field(default=None, description="entry of the registry of deployments, for registry.yaml")
    sdmx: Sdmx | None = Field(
        default=None,
        exclude_if=lambda text: text is None,
        description="also write tables as SDMX-CSV, with their structures",
    )
    formats: tuple[Format, ...] = Field(
        default=("csv",),
        description="formats of synthetic records in addition to Parquet; ddi adds their codebook (DDI 2.5)",
    )

    def column(self, name: str) -> ColumnText:
        return self.columns.get(name, ColumnText())

    def table(self, name: str) -> TableText:
        return self.tables.get(name, TableText())

    def label(self, column: str) -> str:
        return self.column(column).label or column

    def level(self, column: str, level: object) -> str:
        return self.column(column).levels.get(str(level), str(level))

    def cell(self, columns: Iterable[str], levels: Iterable[object]) -> str:
        """The labels of a cell's levels; "all" without a column."""
        return ", ".join(map(self.level, columns, levels)) or "all"

    def within(self, universe: Mapping[str, Sequence[object]]) -> str:
        """A table's universe in words, as in "status: employed or retired; sex: female"; "" for all records."""
        clauses = (
            (self.label(name), _either([self.level(name, level) for level in levels])) for name, levels in universe.items()
        )
        return "; ".join(f"{label}: {levels}" for label, levels in clauses)

    def with_unit(self, column: str) -> str:
        unit = self.column(column).unit
        return f"{self.label(column)} ({unit})" if unit else self.label(column)


def _either(names: Sequence[str]) -> str:
    """Joins texts: a; a or b; a, b or c."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


WRITABLE = "formats that can be written here"


def refuse_formats(dataset: str, presentation: Presentation) -> None:
    """Raises `JobError` if an output format needs a library that is not installed."""
    if presentation.sdmx is not None and not installed("pysdmx"):
        fault = "SDMX needs pysdmx, which is not installed"
        raise JobError.of(dataset, "presentation.sdmx", fault, WRITABLE, install("pysdmx"))
    for i, name in enumerate(presentation.formats):
        if name in NEEDS_AN_EXTRA and not installed("pyreadstat"):
            where, fault = f"presentation.formats.{i}", f"{name} needs pyreadstat, which is not installed"
            raise JobError.of(dataset, where, fault, WRITABLE, install("pyreadstat"))


class Gate(Frozen):
    """A limit on the errors of one statistic in all cells of the listed tables."""

    measure: Literal["largest", "median", "coverage"] = Field(
        description="the largest or median error as a share of the published figure, or the share of intervals that cover"
    )
    of: Annotated[Statistic, BeforeValidator(statistic_of), PlainSerializer(statistic_text)] = Field(
        description="count or {mean: outcome}"
    )
    limit: float = Field(
        gt=0, description="largest permitted error; for coverage, the smallest permitted share of intervals"
    )

    @property
    def text(self) -> str:
        return f"{self.measure} of {self.of.text}"


class Acceptance(Frozen):
    """Gates, measured under noise with a part of the release's ε. Their results are published."""

    epsilon: Budget = Field(description="the part of budget.epsilon that the gates take together")
    tables: tuple[str, ...] = Field(default=(), description="names of the tables whose cells are measured; unset: all")
    gates: tuple[Gate, ...] = Field(
        min_length=1, max_length=20, description="the gates; all must be met, or nothing is published"
    )


class Approval(Frozen):
    """The release is held back until somebody approves it under one of these keys."""

    required: Literal[True] = Field(default=True, description="true: nothing is published before somebody approves it")
    keys: tuple[KeyText, ...] = Field(
        default=(),
        max_length=100,
        description="public keys that may sign an approval (the second line of FILE.pub); unset: any key",
    )


class Correction(Frozen):
    """The public content of a correction. A correction is a further release, and is charged again."""

    version: Annotated[int, Field(ge=2, le=1000)] = Field(
        description="number of the release within its period; the first correction is 2"
    )
    of: str = Field(pattern=RELEASE, description="id of the corrected release, from its manifest")
    reason: Sentence = Field(min_length=1, description="the error that is corrected, for readers")
