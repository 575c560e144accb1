"""The key `recode`, for `job.whole` and `job.loading`: levels that become others, or missing, when a file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ValidationError

from dpdist.core.records import Level
from dpdist.job.design import JOINED, label_of
from dpdist.job.values import ColumnName, Levels, PublicLevel, adapter_of


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
