"""Base class of kinds of study, for `studies.run`: settings, one replicate, texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import pandas as pd

from dpdist.core.records import Floats
from dpdist.studies.settings import Study

SIMULATED = (
    "from simulated data or spaces with seeded NumPy randomness. Nothing here comes from a respondent, and nothing here is "
    "a release."
)
RANDOMNESS = (
    "NumPy generators keyed by seed {}, case and replicate, noise included; a study, not a release: its noise is not "
    "safe in floating point"
)
Fact = tuple[str, list[str]]
"""A line of the page on the study's design: a heading, and its values."""


class Result(NamedTuple):
    """A measure of one arm (a mechanism with its settings) in one replicate; ε is exact text."""

    mechanism: str
    epsilon: str
    measure: str
    value: float


class RecordRows(NamedTuple):
    """By-products of one arm, (record,) each."""

    mechanism: str
    epsilon: str
    columns: dict[str, Floats]


class Replicate(NamedTuple):
    results: list[Result]
    records: list[RecordRows]


class Caption(NamedTuple):
    """A measure's title, how to read it, and a short title for an axis."""

    title: str
    reading: str = ""
    axis: str = ""


class Refusal(NamedTuple):
    """An arm, by its place, with settings that no release can have."""

    place: int
    fault: str
    remedy: str


class StudyKind(ABC):
    """A kind of study. Its class `settings` names the kind as the type of the key `kind`."""

    settings: ClassVar[type[Study]]
    heads: ClassVar[tuple[str, ...]]
    findings_title: ClassVar[str] = "Findings"
    beside_title: ClassVar[str] = "Beside the published figures"

    @property
    @abstractmethod
    def captions(self) -> Mapping[str, Caption]: ...

    @abstractmethod
    def replicate(self, study: Any, case: int, number: int) -> Replicate:
        """Replicate `number`, from 1, of the case at this position; the first may return by-products for figures."""

    @abstractmethod
    def facts(self, study: Any) -> list[Fact]:
        """The page's lines on the study's design."""

    @abstractmethod
    def arms(self, study: Any) -> list[tuple[str, ...]]:
        """Rows of the page's table of arms, under `heads`."""

    def refusals(self, study: Any) -> Iterator[Refusal]:
        yield from ()

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame | None:
        """Errors of all replicates by cell (case, mechanism, epsilon, cell, measure, value), or None."""
        return None

    def target(self, study: Any, case: str, epsilon: str, measure: str) -> float | None:
        """Value of the figures' dashed line, if any."""
        return 1.0 if "_ratio_" in measure else None

    def made_of(self, study: Any) -> str:
        """A text on what the data are, and why they may be shown."""
        return SIMULATED


def randomness(study: Study) -> Fact:
    return "Randomness", [RANDOMNESS.format(study.seed)]
