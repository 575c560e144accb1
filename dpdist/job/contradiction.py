"""Contradictions between keys of a job, and the view of a job that mechanisms' `spec` see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple, Protocol

from dpdist.core.errors import Problem
from dpdist.job.budget import ReleaseBudget
from dpdist.job.data import Column
from dpdist.job.design import Survey
from dpdist.job.model import Model
from dpdist.job.reference import Reference
from dpdist.job.runtime import Record, Sampler
from dpdist.job.tables import Rake
from dpdist.job.yaml_lines import Lines, Where, dotted, place


class JobView(Protocol):
    """Keys of a job, and facts that follow from them. Guarantees and refusals depend on nothing else."""

    @property
    def columns(self) -> Mapping[str, Column]: ...

    @property
    def survey(self) -> Survey: ...

    @property
    def strata(self) -> tuple[str, ...]: ...

    @property
    def outcomes(self) -> tuple[str, ...]: ...

    @property
    def likelihood(self) -> Model: ...

    @property
    def family(self) -> str: ...

    @property
    def budget(self) -> ReleaseBudget: ...

    @property
    def mechanism(self) -> Any: ...

    @property
    def synthetic_sets(self) -> int: ...

    @property
    def epsilon_per_set(self) -> Fraction: ...

    @property
    def reference(self) -> Reference | None: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def record(self) -> Record: ...

    @property
    def rake(self) -> tuple[Rake, ...]: ...

    @property
    def most_records(self) -> int: ...

    @property
    def strict(self) -> bool: ...

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]: ...


class Contradiction(NamedTuple):
    """Keys of a job that contradict each other: the path of the key to change, what is wrong, and the remedy."""

    where: Where
    fault: str
    remedy: str
    allowed: str = ""
    """The values that are allowed; empty if the remedy names them."""

    def problem(self, lines: Lines) -> Problem:
        return Problem(dotted(self.where), self.fault, self.allowed, self.remedy, 1, place(self.where, lines))


def declared(job: JobView) -> tuple[str, ...]:
    return tuple(name for name in job.outcomes if name in job.columns)


def near_column(job: JobView, name: str) -> str | None:
    """The declared column whose name is nearest to an undeclared one; None if none is near. Case is ignored."""
    names = {column.casefold(): column for column in job.columns}
    near = get_close_matches(name.casefold(), list(names), n=1)
    return names[near[0]] if near else None


def listed(values: Sequence[object], most: int = 8) -> str:
    """The first values of a public list as text."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")


def levels_between(column: Column) -> int:
    """Number of whole numbers between the public bounds; 0 without bounds."""
    return floor(column.bounds[1]) - ceil(column.bounds[0]) + 1 if column.bounds is not None else 0


def without_distinct_levels(outcome: str, column: Column, who: str) -> Iterator[Contradiction]:
    """Reasons why an outcome has no distinct public levels. `who` names, in the message, what needs distinct levels."""
    path = ("columns", outcome)
    if column.codes is None and not column.whole:
        yield Contradiction((*path, "whole"), f"{who} has whole numbers, or coded levels", "add whole: true, or codes")
    if column.bounds is not None and not all(float(end).is_integer() for end in column.bounds):
        fault = f"{who} has the whole numbers between the bounds, to which values beyond are set"
        yield Contradiction((*path, "bounds"), fault, "write whole bounds")
    if wrong := [text for text, code in (column.codes or {}).items() if not float(code).is_integer()]:
        fault = f"'{wrong[0]}' is coded {(column.codes or {})[wrong[0]]:g}, and {who} has whole levels"
        yield Contradiction((*path, "codes"), fault, "code the texts 0, 1, 2, …")
    elif column.codes and (missing := _gaps(column)):
        fault = f"no text is coded {missing[0]:g}, and {who} has a level at every whole number between the bounds"
        yield Contradiction((*path, "codes"), fault, "code the texts 0, 1, 2, … without a gap, up to the bounds")


def _gaps(column: Column) -> list[float]:
    """Whole numbers between the bounds, or between smallest and largest code, that are not the code of a text."""
    codes = set((column.codes or {}).values())
    low, high = column.bounds or (min(codes), max(codes))
    return [float(level) for level in range(ceil(low), floor(high) + 1) if level not in codes]
