"""Sections `input`, `columns`, `universe` and `recode` of a job: the confidential file and its columns' domains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from dpdist.core.records import TOTAL, Level
from dpdist.job.design import JOINED, label_of
from dpdist.job.values import ColumnName, Frozen, Levels, MissingRule, PublicLevel, Rule, adapter_of, at_most


class Simulate(Frozen):
    kind: Literal["doctorates"] = Field(description="a survey of doctorates: field, sex, salary, hours, weight")
    population: Annotated[int, at_most(10**9, "it is drawn in memory")] = Field(
        gt=0, description="people in the simulated population"
    )
    sample: int = Field(gt=0, description="people in the sample")
    seed: int = Field(ge=0, description="seed of the simulation")
    sd: float = Field(default=0.4, gt=0, description="sd of log outcome within a group")
    noise_sd: float = Field(default=0.4, ge=0, description="sd of log inclusion probability given the outcome")
    noise: Literal["normal", "lognormal"] = Field(
        default="normal", description="law of the noise in the log inclusion probability"
    )
    law: Literal["lognormal", "top_coded"] = Field(
        default="lognormal",
        description="law of salary within a group; top_coded: left-skewed logarithms, whole thousands, at most 150,000",
    )
    growth: float = Field(default=0.0, gt=-1, description="growth of salaries since 2017, as a share")
    gap: float = Field(default=1.0, ge=0, description="factor on every field's log salary gap between the sexes")

    @model_validator(mode="after")
    def _sample_from_population(self) -> Self:
        if self.sample > self.population:
            raise ValueError("sample must not exceed population")
        return self


class TextFile(Frozen):
    """How a CSV file is written. `encoding` also replaces a wrong encoding in SAS, Stata and SPSS files."""

    encoding: str | None = Field(default=None, description="encoding of a text file, if not UTF-8: latin-1, cp1252, utf-16")
    separator: Literal[",", ";", "\t", "|"] | None = Field(
        default=None, description="field separator of a CSV file, if not a comma"
    )

    @field_validator("encoding")
    @classmethod
    def _an_encoding(cls, name: str | None) -> str | None:
        """Raises `ValueError` for an unknown encoding, or one that is not for text."""
        try:
            if name is not None:
                "".encode(name)
        except LookupError:
            raise ValueError("an encoding of texts, as latin-1, cp1252, utf-16 or utf-8") from None
        return name

    @property
    def left_out(self) -> frozenset[str]:
        """The keys that were left out."""
        return frozenset(name for name in TextFile.model_fields if getattr(self, name) is None)


class Input(TextFile):
    """The confidential microdata: a file of Parquet, CSV, SAS, Stata or SPSS, a folder of Parquet, or a simulation."""

    path: str | None = Field(
        default=None, description="a Parquet, CSV, SAS, Stata or SPSS file, or a folder of Parquet files"
    )
    simulate: Simulate | None = Field(default=None, description="a simulated survey, for examples, in place of a path")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.simulate is not None:
            raise ValueError("give either path or simulate, not both")
        return self


WHOLE = re.compile(r"-?[0-9]{1,15}")
NOT_REPORTED = "Not reported"
"""The level for missing values, if these are a level."""


class Column(Frozen):
    """A column's public domain, and the treatment of values that a model cannot take."""

    levels: Levels | None = Field(
        default=None,
        description="every value of a category, from a codebook, in the order of tables; whole numbers also "
        "as {range: [1, 255]}",
    )
    bounds: tuple[float, float] | None = Field(
        default=None, description="smallest and largest value of a number, from public sources"
    )
    missing: MissingRule = Field(
        default="error",
        description="missing values: refuse the file (error), leave records out (drop), or of a category: "
        f"a last level '{NOT_REPORTED}' beside the others (category), which are texts then",
    )
    zeros: Rule = Field(
        default="error",
        description="zeros that the model cannot fit: refuse the file (error), or leave the record out (drop)",
    )
    outside: Literal["error", "clip"] = Field(
        default="error",
        description="values of an outcome or weight beyond the bounds: refuse the file (error), or set them "
        "to the nearer bound (clip); other whole numbers than the levels: count them in the "
        "nearest level (clip)",
    )
    whole: bool = Field(default=False, description="whole numbers only, in the file and in synthetic records")
    codes: dict[str, float] | None = Field(
        default=None,
        min_length=2,
        description='numbers that the texts of the file stand for, as in {"No": 0, "Yes": 1}; other texts are refused',
    )

    @model_validator(mode="after")
    def _domain(self) -> Self:
        if (self.levels is None) == (self.bounds is None):
            raise ValueError("give levels (a category) or bounds (a number), one of them")
        if self.levels is not None and (not self.levels or len(set(map(str, self.levels))) != len(self.levels)):
            raise ValueError("levels must be a list of different values")
        if self.levels is not None and len(set(map(type, self.levels))) > 1:
            raise ValueError("levels must be of one type: quote them all")
        if self.levels is not None and TOTAL in map(str, self.levels):
            raise ValueError(f"'{TOTAL}' names the margins of tables: rename the level")
        if self.bounds is not None and not self.bounds[0] < self.bounds[1]:
            raise ValueError("bounds must be [lower, upper] with lower < upper")
        if self.levels is not None and (self.zeros, self.whole) != ("error", False):
            raise ValueError("zeros and whole are rules for a column with bounds")
        if (
            self.levels is not None
            and self.outside == "clip"
            and len(self.whole_levels) < len(self.levels) - self.with_missing
        ):
            raise ValueError(
                "outside: clip is of levels that are whole numbers, or of bounds: list every level, or leave it out"
            )
        if self.codes is not None and self.levels is not None:
            raise ValueError("codes are of a column with bounds: leave them out beside levels")
        if self.codes is not None:
            object.__setattr__(self, "outside", "error")  # codes lie within the bounds: nothing can be clipped
        if self.missing == "category" and self.levels is None:
            raise ValueError("missing: category is of a column with levels")
        if self.missing == "category" and self.levels is not None and NOT_REPORTED not in self.levels:
            texts = (str(level).lower() if isinstance(level, bool) else str(level) for level in self.levels)
            object.__setattr__(self, "levels", (*texts, NOT_REPORTED))
        low, high = self.bounds or (0.0, 0.0)
        if outside := [text for text, code in (self.codes or {}).items() if not low <= code <= high]:
            raise ValueError(f"the code of '{outside[0]}' lies outside the bounds")
        return self

    @property
    def with_missing(self) -> bool:
        """True if the last level is that of missing values."""
        return self.missing == "category" and self.levels is not None and NOT_REPORTED in self.levels

    @property
    def whole_levels(self) -> dict[int, int]:
        """The whole numbers that are levels, each with its position."""
        numbers = ((str(level), place) for place, level in enumerate(self.levels or ()) if not isinstance(level, bool))
        return {int(text): place for text, place in numbers if WHOLE.fullmatch(text)}

    @property
    def two_valued(self) -> bool:
        """True if the job states that an outcome is always at one of its two bounds."""
        low, high = self.bounds or (0.0, 0.0)
        if self.codes is not None:
            return set(self.codes.values()) == {low, high}
        return self.whole and high - low == 1.0 and low.is_integer()


class Keep(Frozen):
    """A public filter: a record belongs to the universe if its column has one of these values.

    Values of a declared column must be levels, and its rule of missing values applies. In other columns a missing value is
    outside the universe. A value that is spelled almost as a kept one is refused.
    """

    column: str = Field(description="a column of the file")
    keep: tuple[PublicLevel, ...] = Field(min_length=1, description="values of the records that are kept")


def level_text(level: Level) -> str:
    """A level as the text that files and messages have."""
    return str(level).lower() if isinstance(level, bool) else str(level)


def _by_text(merges: Any) -> Any:
    if not isinstance(merges, dict):
        return merges
    if any(not isinstance(source, str | int) for source in merges):
        raise ValueError("levels, each with the level that it becomes, as in {Alaska Native: Other}: quote the levels")
    return {level_text(source): target for source, target in merges.items()}


Merges: TypeAlias = Annotated[dict[str, PublicLevel | None], BeforeValidator(_by_text)]
"""The level that each level becomes, by its text; None for a level that counts as missing."""
Recode: TypeAlias = dict[ColumnName, Merges]


def in_words(merges: Mapping[str, Level | None]) -> str:
    """What becomes of levels, as a text."""
    parts = [
        f"'{level}' {'counts as missing' if to is None else f'becomes {level_text(to)!r}'}" for level, to in merges.items()
    ]
    return ", ".join(parts)


def recode_of(keys: Mapping[str, Any]) -> Recode:
    """The recode of a job's keys; empty where it is not valid, which validation reports."""
    try:
        recode: Recode = adapter_of(Recode).validate_python(keys.get("recode") or {})
    except ValidationError:
        return {}
    return recode


def declared_levels(keys: Mapping[str, Any], column: str) -> tuple[Level, ...]:
    """The levels that a job's keys list for a column; empty where they are not valid."""
    try:
        levels: tuple[Level, ...] = adapter_of(Levels).validate_python(keys["columns"][column]["levels"])
    except (ValidationError, LookupError, TypeError):
        return ()
    return levels


def left_over(keys: dict[str, Any]) -> dict[str, Any]:
    """A job's keys without the levels, and labels of levels, that it merges into others."""
    columns: Any = keys.get("columns")
    labelled: Any = (keys.get("presentation") or {}).get("columns")
    for name, merges in recode_of(keys).items():
        if levels := declared_levels(keys, name):
            unmerged = [level for level in levels if level_text(level) not in merges]
            columns = columns | {name: columns[name] | {"levels": unmerged}}
        try:
            labels = {level: label for level, label in labelled[name]["levels"].items() if str(level) not in merges}
            labelled = labelled | {name: labelled[name] | {"levels": labels}}
        except (LookupError, TypeError, AttributeError):  # no labels, or none that are valid
            continue
    labels_left = {"presentation": keys["presentation"] | {"columns": labelled}} if labelled is not None else {}
    return keys | {"columns": columns} | labels_left


def recoded_weights(weights: Mapping[str, Any], by: Sequence[str], recode: Recode) -> dict[str, Any]:
    """Weights by combination of levels, after the recode. Raises `ValueError` if it joins different weights."""
    after = dict[str, Any]()
    for label, weight in weights.items():
        cell: Sequence[Any] = str(label).split(JOINED)
        if len(cell) == len(by):
            cell = [recode.get(name, {}).get(level, level) for name, level in zip(by, cell, strict=True)]
        if None in cell:  # records of a missing level have no stratum
            continue
        combination = label_of([level_text(level) for level in cell])
        if combination not in after:
            after[combination] = weight
        elif float(after[combination]) != float(weight):
            raise ValueError(f"recode merges combinations with different weights into '{combination:.80}'")
    return after
