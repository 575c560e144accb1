"""The interface of a kind of study: its settings, one replicate, and its texts on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

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
"""A line on the study's design: its subject, and the study's values."""
S = TypeVar("S", bound=Study)


class Result(NamedTuple):
    """A measure of one arm in one replicate; ε as exact text."""

    mechanism: str
    epsilon: str
    measure: str
    value: float


class RecordRows(NamedTuple):
    """Record-level by-products of one arm, each (record,)."""

    mechanism: str
    epsilon: str
    columns: dict[str, Floats]


class Replicate(NamedTuple):
    results: list[Result]
    records: list[RecordRows]


class Caption(NamedTuple):
    """A measure in words: its title, how to read it, and a short title for axes."""

    title: str
    reading: str = ""
    axis: str = ""


class Refusal(NamedTuple):
    """An arm, by its position, that no release could be, with the contradiction and the remedy."""

    place: int
    found: str
    remedy: str


class StudyKind(Protocol[S]):
    """A kind of study. `settings` has the kind's name as the literal type of its key `kind`."""

    @property
    def settings(self) -> type[S]: ...

    @property
    def heads(self) -> tuple[str, ...]:
        """Headings of the page's table of arms."""
        ...

    @property
    def findings_title(self) -> str: ...

    @property
    def beside_title(self) -> str: ...

    @property
    def captions(self) -> Mapping[str, Caption]:
        """Captions of every measure of a study of this kind."""
        ...

    def refusals(self, study: S) -> Iterator[Refusal]:
        """Arms that no release could be."""
        ...

    def replicate(self, study: S, case: int, number: int) -> Replicate:
        """Runs the `number`-th replicate, from 1, of a case by its position.

        The first replicate may store records for figures.
        """
        ...

    def by_cell(self, study: S, results: pd.DataFrame) -> pd.DataFrame | None:
        """Errors of all replicates combined by cell: case, mechanism, epsilon, cell, measure, value."""
        ...

    def facts(self, study: S) -> list[Fact]:
        """The study's design, without versions."""
        ...

    def arms(self, study: S) -> list[tuple[str, ...]]:
        """The compared arms, one row each, with columns as in `heads`."""
        ...

    def target(self, study: S, case: str, epsilon: str, measure: str) -> float | None:
        """The value at which a figure has a dashed line."""
        ...

    def made_of(self, study: S) -> str:
        """A text for the page on the data and on why they may be shown."""
        ...


class SimulatedKind:
    """Shared code of kinds that simulate their data and publish no cell errors of their own."""

    findings_title = "Findings"
    beside_title = "Beside the published figures"

    def refusals(self, study: Any) -> Iterator[Refusal]:
        yield from ()

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame | None:
        return None

    def target(self, study: Any, case: str, epsilon: str, measure: str) -> float | None:
        return 1.0 if "_ratio_" in measure else None

    def made_of(self, study: Any) -> str:
        return SIMULATED


def randomness(study: Study) -> Fact:
    return "Randomness", [RANDOMNESS.format(study.seed)]
