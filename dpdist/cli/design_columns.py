"""Detection of a survey's design columns (strata, PSUs, replicate weights) by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import typer

from dpdist.core.errors import JobError, suggestion

PSU = re.compile(r"(^|_)(psus?|clusters?|sdmvpsu|varunit|secu)(_?id|_?code|_?no)?$", re.IGNORECASE)
STRATUM = re.compile(
    r"^(design_?|var(iance)?_?|pseudo_?)?(strat|stratum|strata|sdmvstra|varstr(at)?)(_?id|_?code|_?no)?$", re.I
)
REPLICATE = re.compile(r"^(.*(?:rep|brr|jk|boot|bs|wgt|weight|wt|rw|fay).*?)([0-9]+)$", re.IGNORECASE)
NONE = "none"
KINDS = ("brr", "fay", "jackknife", "bootstrap", "successive_difference")
"""Methods of replicate weights."""
FEWEST_REPLICATES = 8
"""Smallest number of columns, numbered 1, 2, 3 and so on, that are proposed as replicate weights."""


class NumberedColumns(NamedTuple):
    """Columns whose names are one prefix and the numbers 1, 2, … in order, possibly with zeros before them."""

    prefix: str
    columns: tuple[str, ...]

    @property
    def in_words(self) -> str:
        return f"{self.columns[0]} to {self.columns[-1]}"

    def of_full_sample(self, names: Sequence[str]) -> list[str]:
        """The columns whose names are the prefix alone, or the prefix and zeros: the weight before replication."""
        return [name for name in names if name.startswith(self.prefix) and not name.removeprefix(self.prefix).strip("0")]


@dataclass(frozen=True)
class DesignColumns:
    """Columns of the design: strata, PSU and replicate weights."""

    strata: tuple[str, ...] = ()
    psu: str | None = None
    replicates: NumberedColumns | None = None

    @property
    def names(self) -> frozenset[str]:
        """Returns every column that has a part in the design."""
        replicate_columns = () if self.replicates is None else self.replicates.columns
        return frozenset({*self.strata, *replicate_columns, *([self.psu] if self.psu is not None else [])})

    @property
    def in_words(self) -> str:
        """Returns the columns and their parts."""
        parts = {
            "strata": ", ".join(self.strata),
            "PSU": self.psu or "",
            "replicate weights": "" if self.replicates is None else self.replicates.in_words,
        }
        return "; ".join(f"{name} {columns}" for name, columns in parts.items() if columns)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Returns the settings of `survey`. Replicate weights are left out, because nobody has stated their method."""
        settings: dict[str, Any] = {"design_strata": list(self.strata)} if self.strata else {}
        return settings | ({"psu": self.psu} if self.psu is not None else {})


class Options(NamedTuple):
    """The options about the design; None for an option that was not given."""

    strata: Sequence[str] | None
    psu: str | None
    replicates: str | None


def chosen_design(names: Sequence[str], options: Options, asks: bool, job: Path) -> DesignColumns:
    """Returns the design by the options, the answers, or the names of columns. Raises `JobError` for an unknown column."""
    likely = by_name(names)
    strata, psu, prefix = options.strata, options.psu, options.replicates
    if asks and strata is None:
        answer = str(
            typer.prompt(
                "Columns of design strata, separated by commas (or none)", default=", ".join(likely.strata) or NONE
            )
        )
        strata = [name.strip() for name in answer.split(",")]
    if asks and psu is None and prefix is None and likely.replicates is None:
        psu = str(typer.prompt("The column of primary sampling units (or none)", default=likely.psu or NONE))
    chosen = likely.strata if strata is None else tuple(name for name in strata if name != NONE)
    unit = (likely.psu if prefix in (None, NONE) else None) if psu is None else None if psu == NONE else psu
    replicate_columns = likely.replicates if psu in (None, NONE) else None
    if prefix is not None:
        replicate_columns = None if prefix == NONE else replicates(names, prefix)
    if prefix not in (None, NONE) and replicate_columns is None:
        allowed = f"columns {prefix:.80}1, {prefix:.80}2, …"
        raise JobError.of(str(job), "--replicate-weights", "the file has no such columns", allowed, "name their prefix")
    named = [*(("--design-strata", column) for column in chosen), ("--psu", unit)]
    refuse_unknown(named, names, job, "name one of these, or none")
    return DesignColumns(chosen, unit, replicate_columns)


def refuse_unknown(options: Iterable[tuple[str, str | None]], names: Sequence[str], job: Path, otherwise: str) -> None:
    """Raises `JobError` for an option that names no column of the file."""
    for option, name in options:
        if name is not None and name not in names:
            remedy = suggestion(name, names, otherwise)
            raise JobError.of(str(job), option, f"the file has no column '{name:.80}'", ", ".join(names[:20]), remedy)


def by_name(names: Iterable[str]) -> DesignColumns:
    """Returns the design's columns as their names suggest. Replicate weights are preferred to PSUs."""
    listed = list(names)
    strata = tuple(name for name in listed if STRATUM.search(name))[:1]
    units = [name for name in listed if PSU.search(name)]
    replicate_columns = replicates(listed)
    psu = units[0] if len(units) == 1 and replicate_columns is None else None
    return DesignColumns(strata, psu, replicate_columns)


def replicates(names: Iterable[str], prefix: str | None = None) -> NumberedColumns | None:
    """Returns columns numbered 1, 2, 3 and so on, with the given prefix or of the longest series."""
    series: dict[str, dict[int, str]] = {}
    for name in names:
        parted = REPLICATE.fullmatch(name) if prefix is None else re.fullmatch(f"({re.escape(prefix)})([0-9]+)", name)
        if parted is not None:
            series.setdefault(parted[1], {})[int(parted[2])] = name
    runs = {stem: _in_a_row(columns) for stem, columns in series.items()}
    if not runs:
        return None
    best = max(runs, key=lambda stem: len(runs[stem]))
    fewest = FEWEST_REPLICATES if prefix is None else 2
    return NumberedColumns(best, runs[best]) if len(runs[best]) >= fewest else None


def _in_a_row(columns: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(columns[k] for k in range(1, next(k for k in range(1, len(columns) + 2) if k not in columns)))
