"""Section `hierarchies` of a job: columns nested by a public map, as county and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from dpdist.core.errors import JobError, Problem
from dpdist.core.records import Codes, Crosstab, Level
from dpdist.job.values import ColumnName, Frozen, Name

UNSEEN = -1
"""The parent of a level if the job does not state it and no public record has the level."""


@dataclass(frozen=True)
class Nesting:
    """Columns of a hierarchy, the coarsest first, and the map between them.

    `parents[k]` has, for every level of `columns[k + 1]`, the position of its parent in `columns[k]`, or `UNSEEN`.
    """

    name: str
    columns: tuple[str, ...]
    parents: tuple[Codes, ...]

    def __str__(self) -> str:
        return f"{self.name}: {' > '.join(self.columns)}"


class UnnestedError(Exception):
    """A level that lies in two levels of the coarser column; `fine`, `level`, `coarse` and `both` say which."""

    def __init__(self, fine: str, level: Level, coarse: str, both: tuple[Level, Level]) -> None:
        super().__init__(f"{fine} {level}: {coarse} {both[0]} and {both[1]}")
        self.fine, self.level, self.coarse, self.both = fine, level, coarse, both


def parents_in(frames: Iterable[Crosstab], fine: str, coarse: str, declared: Codes) -> Codes:
    """The coarser level of every level of a column, from a stated map and from records of public frames.

    `declared` has `UNSEEN` for levels that the records decide. Raises `UnnestedError` if a level has two parents.
    """
    parent = declared.copy()
    for crosstab in frames:
        levels, occurs = crosstab.levels, crosstab.count > 0
        pairs = np.unique(np.column_stack([crosstab.codes[fine], crosstab.codes[coarse]])[occurs], axis=0)
        for level, within in pairs.tolist():
            if parent[level] not in (UNSEEN, within):
                both = (levels[coarse][parent[level]], levels[coarse][within])
                raise UnnestedError(fine, levels[fine][level], coarse, both)
            parent[level] = within
    return parent


def _texts(value: Any) -> Any:
    return {str(fine): str(coarse) for fine, coarse in value.items()} if isinstance(value, dict) else value


class Hierarchy(Frozen):
    """Columns, each nested in the previous one, as in [region, state, county]."""

    columns: tuple[ColumnName, ...] = Field(min_length=2, description="the columns, the coarsest first")
    within: dict[ColumnName, Annotated[dict[str, str], BeforeValidator(_texts)]] = Field(
        default={},
        description="by column, the coarser level that contains each of its levels, as in {state: {Texas: "
        "South, Utah: West}}; unset: as they occur together in public records",
    )

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Every finer column with its coarser column."""
        return tuple(zip(self.columns[1:], self.columns, strict=False))

    def stated(self, levels: Mapping[str, Sequence[Level]], fine: str, coarse: str) -> Codes:
        """The job's map of a column, as positions of levels, (level,); `UNSEEN` for levels that it does not map."""
        if fine not in self.within:
            return np.full(len(levels[fine]), UNSEEN, dtype=np.int32)
        place = {str(level): k for k, level in enumerate(levels[coarse])}
        return np.array([place[self.within[fine][str(level)]] for level in levels[fine]], dtype=np.int32)


class _OrColumns:
    """Annotates a hierarchy that a job may write as a list of columns."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(Annotated[source, BeforeValidator(_as_mapping)])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "array", "items": {"type": "string"}}, handler(schema)]}


def _as_mapping(value: Any) -> Any:
    return {"columns": value} if isinstance(value, list | tuple) else value


Hierarchies = dict[Name, Annotated[Hierarchy, _OrColumns()]]


def nestings(
    dataset: str, hierarchies: Mapping[str, Hierarchy], levels: Mapping[str, Sequence[Level]], frames: Iterable[Crosstab]
) -> tuple[Nesting, ...]:
    """The maps of all hierarchies, from the job and from records of public frames.

    `levels` are the levels of the columns. Raises `JobError` if a level belongs to two levels of the coarser column.
    """
    public, nested = tuple(frames), []
    for name, hierarchy in hierarchies.items():
        parents = []
        for fine, coarse in hierarchy.steps:
            holding = [crosstab for crosstab in public if {fine, coarse} <= crosstab.codes.keys()]
            try:
                parents.append(parents_in(holding, fine, coarse, hierarchy.stated(levels, fine, coarse)))
            except UnnestedError as error:
                swapped = not hierarchy.within and _nested(holding, levels, coarse, fine)
                raise _not_nested(dataset, name, error, fine in hierarchy.within, swapped) from None
        nested.append(Nesting(name, hierarchy.columns, tuple(parents)))
    return tuple(nested)


def _nested(frames: Sequence[Crosstab], levels: Mapping[str, Sequence[Level]], fine: str, coarse: str) -> bool:
    try:
        parents_in(frames, fine, coarse, np.full(len(levels[fine]), UNSEEN, dtype=np.int32))
    except UnnestedError:
        return False
    return True


def _not_nested(dataset: str, name: str, error: UnnestedError, is_declared: bool, swapped: bool) -> JobError:
    fine, coarse, (_, other) = error.fine, error.coarse, error.both
    first = f"{coarse} '{_}' by the job" if is_declared else f"{coarse} '{_}'"
    fault = f"{fine} '{error.level}' lies in {first}, and public records have it in '{other}', too"
    allowed = f"one level of {coarse} for every level of {fine}"
    remedy = "correct the map, or the records; or leave the column out of the hierarchy"
    if swapped:
        remedy = f"the coarsest column comes first: write {fine} before {coarse}"
    return JobError(dataset, [Problem(f"hierarchies.{name}", fault, allowed, remedy)])
