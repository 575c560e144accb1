"""The interface that every kind of study implements for `studies.run`: settings, one replicate, texts."""

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
"""A line of the page on the study's design: a heading, and its values."""
S = TypeVar("S", bound=Study)


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


class StudyKind(Protocol[S]):
    """A kind of study. Its class `settings` names the kind as the type of the key `kind`."""

    @property
    def settings(self) -> type[S]: ...

    @property
    def heads(self) -> tuple[str, ...]: ...

    @property
    def findings_title(self) -> str: ...

    @property
    def beside_title(self) -> str: ...

    @property
    def captions(self) -> Mapping[str, Caption]: ...

    def refusals(self, study: S) -> Iterator[Refusal]: ...

    def replicate(self, study: S, case: int, number: int) -> Replicate:
        """Replicate `number`, from 1, of the case at this position; the first may return by-products for figures."""
        ...

    def by_cell(self, study: S, results: pd.DataFrame) -> pd.DataFrame | None:
        """Errors of all replicates by cell (case, mechanism, epsilon, cell, measure, value), or None."""
        ...

    def facts(self, study: S) -> list[Fact]:
        """The page's lines on the study's design."""
        ...

    def arms(self, study: S) -> list[tuple[str, ...]]:
        """Rows of the page's table of arms, under `heads`."""
        ...

    def target(self, study: S, case: str, epsilon: str, measure: str) -> float | None:
        """Value of the figures' dashed line, if any."""
        ...

    def made_of(self, study: S) -> str:
        """A text on what the data are, and why they may be shown."""
        ...


class SimulatedKind:
    """Defaults of kinds without errors by cell."""

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
