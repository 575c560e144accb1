"""Reads value labels from the headers of SAS, Stata and SPSS files, as a codebook for a new job; no record is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dpdist.core.records import Level
from dpdist.survey.domains import Domain
from dpdist.survey.statistical_file import StatisticalSource


def labelled(path: Path, known: Mapping[str, str], seen: Mapping[str, Domain]) -> dict[str, Domain]:
    """Domains of columns from a file's value labels. Raises `DataError`.

    Where a public file has shown a column's levels (`seen`), these stay, and labels are added to them. A
    column that was seen without levels is left out: its labels may be of special codes alone, such as reasons for a
    missing number.
    """
    made = {}
    for name, labels in StatisticalSource(path).labels.items():
        codes = {_code(value): str(label) for value, label in labels.items()}
        if None in codes or not codes or (known and name not in known):
            continue
        levels = {level: label for level, label in codes.items() if level is not None}
        texts = {str(level): label for level, label in levels.items()}
        there = seen.get(name)
        if there is None:
            made[name] = Domain(path.name, levels=tuple(levels), labels=texts)
        elif there.levels is not None:
            met = {str(level) for level in there.levels}
            made[name] = replace(there, labels={text: label for text, label in texts.items() if text in met})
    return made


def _code(value: object) -> Level | None:
    """A labelled value as a level: a whole number or a text; None for other values."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, str | int) else None
