"""Reads a codebook for a new job: a CSV file, or the labels in the header of a SAS, Stata or SPSS file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpdist.survey.domains import Domain, codebook, column_labels
from dpdist.survey.statistical_file import StatisticalSource
from dpdist.survey.unreadable import STATISTICAL
from dpdist.survey.value_labels import labelled


def domains_of(book: Path, known: Mapping[str, str], seen: Mapping[str, Domain]) -> dict[str, Domain]:
    """Levels or bounds of columns. Raises `DataError`."""
    return labelled(book, known, seen) if _statistical(book) else codebook(book, known)


def labels_of(book: Path) -> dict[str, str]:
    """Labels of columns: of those with bounds in a CSV file, of all in another file. Raises `DataError`."""
    return StatisticalSource(book).column_labels if _statistical(book) else column_labels(book)


def _statistical(book: Path) -> bool:
    return book.suffix.lower() in STATISTICAL
