"""Reads a codebook for a new job: a CSV file, or the labels in the header of a SAS, Stata or SPSS file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dpdist.core.records import Level
from dpdist.survey.domains import Domain, codebook, column_labels
from dpdist.survey.statistical_file import StatisticalSource
from dpdist.survey.typed_file import STATISTICAL


def labelled(path: Path, kinds_of: Mapping[str, str], seen: Mapping[str, Domain]) -> dict[str, Domain]:
    """Domains of columns from a file's value labels. Raises `DataError`.

    Where a public file has shown a column's levels (`seen`), these stay, and labels are added to them. A
    column that was seen without levels is left out: its labels may be of special codes alone, such as reasons for a
    missing number.
    """
    made = {}
    for name, labels in StatisticalSource(path).labels.items():
        codes = {_code(value): str(label) for value, label in labels.items()}
        if None in codes or not codes or (kinds_of and name not in kinds_of):
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
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, str | int) else None


def domains_of(book: Path, kinds_of: Mapping[str, str], seen: Mapping[str, Domain]) -> dict[str, Domain]:
    """Levels or bounds of columns. Raises `DataError`."""
    return labelled(book, kinds_of, seen) if _statistical(book) else codebook(book, kinds_of)


def labels_of(book: Path) -> dict[str, str]:
    """Labels of columns: of those with bounds in a CSV file, of all in another file. Raises `DataError`."""
    return StatisticalSource(book).column_labels if _statistical(book) else column_labels(book)


def _statistical(book: Path) -> bool:
    return book.suffix.lower() in STATISTICAL
