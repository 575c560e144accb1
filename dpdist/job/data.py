"""Sections on the data: `input`, `columns`, `universe`, `recode`, and `survey` with weights, strata, PSUs, replicates."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from dpdist.core.records import TOTAL, Crosstab, Floats, Level
from dpdist.job.values import (
    ColumnName,
    Frozen,
    Levels,
    Lonely,
    MissingRule,
    PublicLevel,
    ReplicateKind,
    Rule,
    StatisticName,
    adapter_of,
    at_most,
    keys_as_text,
)


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
        default="normal", description="distribution of the noise in the log inclusion probability"
    )
    law: Literal["lognormal", "top_coded"] = Field(
        default="lognormal",
        description=(
            "distribution of salaries within a group; top_coded: left-skewed logarithms, whole thousands, at most 150,000"
        ),
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

    encoding: str | None = Field(default=None, description="encoding if not UTF-8: latin-1, cp1252, utf-16")
    separator: Literal[",", ";", "\t", "|"] | None = Field(
        default=None, description="field separator of a CSV file, unless a comma"
    )

    @field_validator("encoding")
    @classmethod
    def _an_encoding(cls, name: str | None) -> str | None:
        """Raises `ValueError` for an unknown encoding, or one that is not for text."""
        try:
            if name is not None:
                "".encode(name)
        except LookupError:
            raise ValueError("a text encoding, such as latin-1, cp1252, utf-16 or utf-8") from None
        return name

    @property
    def left_out(self) -> frozenset[str]:
        """The keys that were left out."""
        return frozenset(name for name in TextFile.model_fields if getattr(self, name) is None)


class Input(TextFile):
    """The confidential microdata: a file of Parquet, CSV, SAS, Stata or SPSS, a folder of Parquet, or a simulation."""

    path: str | None = Field(default=None, description="a file, or a folder of Parquet files")
    simulate: Simulate | None = Field(default=None, description="a simulated survey instead of a path, for examples")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.simulate is not None:
            raise ValueError("give either path or simulate, not both")
        return self


WHOLE = re.compile(r"-?[0-9]{1,15}")
NOT_REPORTED = "Not reported"
"""The level for missing values, if these are a level."""


class Column(Frozen):
    """A column's public domain, and the treatment of values that a model cannot use."""

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
        description="missing values: refuse the file (error), leave these records out (drop; also if no table has the "
        f"column), or, for text levels, count them in a last level '{NOT_REPORTED}' (category)",
    )
    zeros: Rule = Field(
        default="error",
        description="zeros that the model cannot fit: refuse the file (error), or leave these records out (drop)",
    )
    outside: Literal["error", "clip"] = Field(
        default="error",
        description="values of an outcome or weight beyond the bounds: refuse the file (error), or set them to the nearer "
        "bound (clip); clip also counts whole numbers that are not levels in the nearest level",
    )
    whole: bool = Field(default=False, description="whole numbers only, in the file and in synthetic records")
    codes: dict[str, float] | None = Field(
        default=None,
        min_length=2,
        description='the number for each text in the file, as in {"No": 0, "Yes": 1}; other texts are refused',
    )

    @model_validator(mode="after")
    def _domain(self) -> Self:
        if (self.levels is None) == (self.bounds is None):
            raise ValueError("give either levels (a category) or bounds (a number)")
        if self.levels is not None and (not self.levels or len(set(map(str, self.levels))) != len(self.levels)):
            raise ValueError("levels must be a list of distinct values")
        if self.levels is not None and len(set(map(type, self.levels))) > 1:
            raise ValueError("levels must be of one type: quote them all")
        if any(isinstance(level, int) and not -(2**63) <= level < 2**63 for level in self.levels or ()):
            raise ValueError("levels that are whole numbers must fit into 64 bits: quote them all")
        if self.levels is not None and TOTAL in map(str, self.levels):
            raise ValueError(f"'{TOTAL}' is the name of tables' margins: rename the level")
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
                "outside: clip is for levels that are whole numbers, or for bounds; list every level, or leave it out"
            )
        if self.codes is not None and self.levels is not None:
            raise ValueError("codes are for columns with bounds; remove them from a column with levels")
        if self.codes is not None:
            object.__setattr__(self, "outside", "error")  # codes lie within the bounds: nothing can be clipped
        if self.missing == "category" and self.levels is None:
            raise ValueError("missing: category is for a column with levels")
        if self.missing == "category" and self.levels is not None and NOT_REPORTED not in self.levels:
            texts = (str(level).lower() if isinstance(level, bool) else str(level) for level in self.levels)
            object.__setattr__(self, "levels", (*texts, NOT_REPORTED))
        low, high = self.bounds or (0.0, 0.0)
        if outside := [text for text, code in (self.codes or {}).items() if not low <= code <= high]:
            raise ValueError(f"the code of '{outside[0]}' lies outside the bounds")
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds of a number; infinite for a category, which has none."""
        return (-inf, inf) if self.bounds is None else self.bounds

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
    def whole_numbers(self) -> bool:
        """True if values are whole numbers, or codes that are consecutive ones."""
        codes = set((self.codes or {}).values())
        return self.whole or (bool(codes) and codes == {min(codes) + k for k in range(len(codes))} and min(codes) % 1 == 0)

    @property
    def two_valued(self) -> bool:
        """True if the job states that an outcome is always at one of its two bounds."""
        low, high = self.bounds or (0.0, 0.0)
        if self.codes is not None:
            return set(self.codes.values()) == {low, high}
        return self.whole and high - low == 1.0 and low.is_integer()


class Keep(Frozen):
    """A public filter: a record belongs to the universe if its column has one of these values.

    In a declared column, values must be levels, and its rule for missing values applies. In other columns, missing values
    are outside the universe. A value is refused if its spelling almost matches a listed one.
    """

    column: str = Field(description="a column of the file")
    keep: tuple[PublicLevel, ...] = Field(min_length=1, description="values of the records to keep")


def level_text(level: Level) -> str:
    """A level as the text that files and messages have."""
    return str(level).lower() if isinstance(level, bool) else str(level)


def _by_text(merges: Any) -> Any:
    if not isinstance(merges, dict):
        return merges
    if any(not isinstance(source, str | int) for source in merges):
        raise ValueError("levels and what each becomes, as in {Alaska Native: Other}: quote the levels")
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


def with_merged(keys: dict[str, Any]) -> dict[str, Any]:
    """A job's keys with the levels that it merges into others, as a job file lists them: the inverse of `left_over`."""
    columns: Any = keys["columns"]
    for name, merges in recode_of(keys).items():
        if levels := declared_levels(keys, name):
            listed = set(map(level_text, levels))
            merged = [source for source, target in merges.items() if target is not None and source not in listed]
            columns = columns | {name: columns[name] | {"levels": [*levels, *merged]}}
    return keys | {"columns": columns}


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


COLUMN = "weight"
"""The column of weights in a CSV file."""
JOINED = " / "
"""What stands between the levels of a combination."""


def label_of(levels: Sequence[object]) -> str:
    """The name of a combination of levels, as in "north / heavy"."""
    return JOINED.join(map(str, levels))


class DesignWeights(Frozen):
    """Public weights of design strata: all records of a combination of levels of `by` have one weight.

    They stand under `weights`, or in the CSV file `path`, which is read when the job is loaded.
    """

    by: tuple[ColumnName, ...] = Field(min_length=1, description="columns whose combinations have a public weight")
    weights: Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(keys_as_text)] = (
        Field(default={}, description='weight of each combination, as in {"north / heavy": 12.5}')
    )
    path: str | None = Field(
        default=None,
        exclude=True,
        description="public CSV file with the columns of `by` and a column `weight`, instead of weights",
    )

    def of(self, crosstab: Crosstab) -> Floats:
        """The weight of the records of every crosstab row, (row,)."""
        group, labels = crosstab.group(self.by)
        return np.array([self.weights[label_of(levels)] for levels in labels], dtype=np.float64)[group]


def read_weights(path: Path, by: Sequence[str]) -> dict[str, str]:
    """Weights by combination of levels, as texts. Raises `ValueError` if the file has other columns, or one row twice."""
    weights: dict[str, str] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if lacking := [name for name in (*by, COLUMN) if name not in (rows.fieldnames or ())]:
            raise ValueError(f"no column '{lacking[0]}'")
        for number, row in enumerate(rows, start=2):
            label = label_of([row[name] for name in by])
            if label in weights:
                raise ValueError(f"line {number} has '{label:.80}' a second time")
            weights[label] = row[COLUMN]
    return weights


class ReplicateWeights(Frozen):
    """Columns of replicate weights, named by `prefix` and 1, 2, … up to `number`, or 001, 002, ….

    The variance is V = scale Σ factor_r (θ_r − θ̂)², where θ_r is the estimate under replicate r of R. Scale by
    kind: brr 1/R, fay 1/(R(1−k)²), jackknife (R−1)/R, bootstrap 1/R, successive_difference 4/R.
    """

    kind: ReplicateKind = Field(description="replication method, which determines the scale")
    prefix: str = Field(min_length=1, description="part of the column names before the replicate's number")
    number: int = Field(ge=2, le=10_000, description="number of replicates")
    fay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Fay's k: factor on the weights in the half-sample that a replicate leaves out",
    )
    scale: float | None = Field(default=None, gt=0, description="scale, instead of the kind's")
    factors: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        default=None, description="a factor for each replicate; for a stratified jackknife (n_h − 1)/n_h, with scale: 1"
    )
    centre: Literal["estimate", "mean"] = Field(
        default="estimate", description="centre of the squared deviations: the estimate, or the mean of the replicates"
    )
    df: float | None = Field(
        default=None, gt=0, description="degrees of freedom; unset: rank of the replicate weights minus 1"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.fay is not None) != (self.kind == "fay"):
            raise ValueError("fay: k goes with kind: fay, and only with it")
        if self.kind in ("brr", "fay") and self.number % 4:
            raise ValueError("balanced repeated replication has a multiple of 4 replicates")
        if self.factors is not None and len(self.factors) != self.number:
            raise ValueError("one factor is needed for each replicate")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{r}" for r in range(1, self.number + 1))

    def number_of(self, name: str) -> int | None:
        """The replicate's number in a column's name, which may have zeros before it; None if the name has none."""
        digits = name.removeprefix(self.prefix) if name.startswith(self.prefix) else ""
        return int(digits) if digits.isascii() and digits.isdigit() else None

    def has(self, name: str) -> bool:
        """True if the name is that of one of the replicates."""
        return 1 <= (self.number_of(name) or 0) <= self.number

    def columns_in(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns by number, as a file with these column names spells them."""
        spelled = {number: name for name in names if (number := self.number_of(name)) is not None}
        return tuple(spelled.get(number, name) for number, name in enumerate(self.columns, 1))

    @property
    def overall(self) -> float:
        """The scale that the job states, or the default scale of the kind."""
        r = float(self.number)
        scales = {"jackknife": (r - 1.0) / r, "successive_difference": 4.0 / r}
        return self.scale if self.scale is not None else scales.get(self.kind, 1.0 / (r * (1.0 - (self.fay or 0.0)) ** 2))


def _stages(value: Any) -> Any:
    return (value,) if isinstance(value, str) else () if value is None else value


LARGEST_EFFECT = 100
REFERENCE = "reference"


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"a number from 1 to {LARGEST_EFFECT}, not true or false")
    return value


def _in_range(value: float) -> float:
    if not 1 <= value <= LARGEST_EFFECT:
        raise ValueError(
            f"from 1 to {LARGEST_EFFECT}: an effect below 1 would make standard errors smaller than the model's. If a "
            "reported effect includes that of unequal weights, state the part that is due to clusters alone"
        )
    return value


Effect = Annotated[float, BeforeValidator(_number), AfterValidator(_in_range)]


class DesignEffect(Frozen):
    """A public design effect, with the figures to which it applies. An omitted setting restricts nothing."""

    effect: Effect = Field(description="variance under the design divided by that of the same records without clusters")
    statistics: tuple[StatisticName, ...] = Field(
        default=(), description="statistics to which the effect applies; unset: all"
    )
    outcome: ColumnName | None = Field(default=None, description="outcome to which the effect applies; unset: any")
    by: tuple[ColumnName, ...] | None = Field(
        default=None,
        description=(
            "columns that define the cells to which the effect applies; []: the figure for all records; unset: any cell"
        ),
    )

    def fits(self, columns: frozenset[str], statistic: str, outcome: str | None) -> bool:
        """True if the effect applies to this statistic of this outcome, in cells that are crossed by these columns."""
        return (
            (not self.statistics or statistic in self.statistics)
            and self.outcome in (None, outcome)
            and (self.by is None or frozenset(self.by) == columns)
        )

    @property
    def in_words(self) -> str:
        """Returns a text with the effect and the figures that it applies to."""
        what = f"{', '.join(self.statistics) or 'every statistic'}{f' of {self.outcome}' if self.outcome else ''}"
        cells = "in any cell" if self.by is None else f"by {', '.join(self.by)}" if self.by else "of all records"
        return f"{self.effect:.3g} ({what}, {cells})"


def _form_of(value: Any) -> str:
    return REFERENCE if isinstance(value, str) else "list" if isinstance(value, list | tuple) else "number"


DesignEffects: TypeAlias = Annotated[
    Annotated[Effect, Tag("number")]
    | Annotated[Literal["reference"], Tag(REFERENCE)]
    | Annotated[tuple[DesignEffect, ...], Field(min_length=1), Tag("list")],
    Discriminator(_form_of),
]
"""One number, the word `reference`, or a list. A figure takes the first entry of the list that fits it."""


class Survey(Frozen):
    """The survey's design. Without a weight column, every record has weight 1.

    `fpc` names columns with population sizes: the number of PSUs (without PSUs, of records) in the design stratum and, if
    records were sampled within PSUs, the number of records in the PSU.
    """

    weight: str | None = Field(default=None, description="column of the sampling weight; unset: all weights are 1")
    design_strata: tuple[str, ...] = Field(default=(), description="columns whose combinations were sampled separately")
    weights_constant_in: tuple[ColumnName, ...] = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns whose levels determine the weight, as is publicly known; also in records of `tables`",
    )
    design_weights: DesignWeights | None = Field(
        default=None,
        exclude_if=lambda weights: weights is None,
        description="every design stratum's weight, from published documents; `tables` then spends nothing on weights",
    )
    psu: str | None = Field(default=None, description="column of the primary sampling unit; unset: each record is its own")
    fpc: Annotated[tuple[str, ...], BeforeValidator(_stages), Field(max_length=2)] = Field(
        default=(),
        description=("one or two columns with population sizes"),
    )
    lonely_psu: Lonely = Field(
        default="error",
        description="a design stratum with one PSU: refuse it, add no variance, use the average of the others, or use "
        "deviations from the grand mean",
    )
    replicate_weights: ReplicateWeights | None = Field(
        default=None, description="replicate weights, instead of psu and fpc"
    )
    design_effect: DesignEffects | None = Field(
        default=None,
        description="public factor by which clustering increases sampling variances: a number, a list, or `reference` "
        "(estimated from it)",
    )
    population: int | None = Field(default=None, gt=0, description="public population size, for proportional weights")

    @property
    def measured_weight(self) -> str | None:
        """The column of the weight if its values are protected; None without weights, and where they are public."""
        return self.weight if self.design_weights is None else None

    @property
    def one_weight_in(self) -> tuple[str, ...]:
        """Columns in each of whose combinations all records have one weight, as the job states."""
        return self.weights_constant_in if self.design_weights is None else self.design_weights.by

    @property
    def clustered(self) -> bool:
        """True if errors of direct estimates come from PSUs or replicate weights. Models ignore both."""
        return self.psu is not None or self.replicate_weights is not None

    @property
    def stated_effects(self) -> tuple[DesignEffect, ...]:
        """Returns the design effects that the job states. The list is empty if the reference gives them."""
        effects = self.design_effect
        return (
            effects if isinstance(effects, tuple) else (DesignEffect(effect=effects),) if isinstance(effects, float) else ()
        )

    @property
    def effects_of_reference(self) -> bool:
        """True if design effects are estimated from the reference."""
        return self.design_effect == REFERENCE

    @property
    def lonely_record(self) -> Lonely:
        """The rule for a design stratum with one synthetic record: `lonely_psu`, with `certainty` in place of `error`.

        Under `certainty`, such a design stratum adds no variance.
        """
        return "certainty" if self.lonely_psu == "error" else self.lonely_psu


BASE_SCHEMA = {"type": "string", "description": "another job file, whose keys apply unless this one states them"}


class Base(Frozen):
    """The file that a job extends, and the dotted keys whose values the job changes."""

    path: str = Field(description="path of the file, as the job names it")
    differs: tuple[str, ...] = Field(default=(), description="keys whose values differ from those in the base")

    @property
    def in_words(self) -> str:
        """The base as text, for plans."""
        return f"{self.path}; differs in: {', '.join(self.differs) or 'nothing'}"
