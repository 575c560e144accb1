"""Base class of kinds of study: settings, one replicate, texts; and releases of a file that is one stratum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import StratumRecorder, noise_of, run_rounds
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.quality.microdata import RecordCodes, propensity, total_variation
from dpdist.sampling.samplers import ExactSampler
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
    comparison_title: ClassVar[str] = "Beside the published figures"

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


def job_of_columns(
    columns: Mapping[str, Any], mechanism: Mapping[str, Any], epsilon: str, adjacency: Adjacency, sets: int, of: str
) -> Job:
    """The job of a file of these outcomes, with a table of the mean of one of them."""
    return Job.model_validate(
        {
            "dataset": "study",
            "period": "1",
            "columns": columns,
            "outcome": list(columns),
            "mechanism": mechanism,
            "budget": {"epsilon": epsilon, "adjacency": adjacency},
            "synthetic_sets": sets,
            "tables": [{"name": "t", "by": [], "statistics": [{"mean": of}]}],
        }
    )


def model_of(job: Job, records: int) -> Any:
    return builder_of(job).build(job, Crosstab({}, {}, np.array([records]), (), ()), slice(0, 1))


def released(job: Job, model: Any, file: Records, key: Key) -> tuple[Draws, ...]:
    rounds = mechanism_of(job).protect(job, model, StratumRecorder(), None)
    return run_rounds(rounds, model, ExactSampler(1), key, "all", [file], noise=noise_of(key)).parameters


def described(mechanism: Mapping[str, Any], job: Job, *further: str) -> tuple[str, str, str]:
    """A mechanism's name, constants as text, and class of guarantee."""
    constants = [*(f"{name} {_text(value)}" for name, value in mechanism.items() if name != "name"), *further]
    return job.mechanism.name, "; ".join(constants) or "–", mechanism_of(job).promise(job).per_set.name


def _text(value: Any) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else str(value)


_APART = "Half the L1 distance between shares of synthetic records and of the file's, mean over marginals and sets."


def total_variation_of(what: str) -> Caption:
    """A caption."""
    return Caption(f"total variation of {what}", _APART)


CAPTIONS = {"one_way": total_variation_of("single columns"), "two_way": total_variation_of("pairs of columns")}
"""Captions of the measures of `similarity`, except SPECKS, for which a study names the predictors."""


def over_sets(measure: Callable[[RecordCodes], float], sets: Sequence[RecordCodes]) -> float:
    return float(np.mean([measure(records) for records in sets]))


def similarity(file: RecordCodes, sets: Sequence[RecordCodes]) -> Mapping[str, float]:
    """Total variation of single columns and of pairs, and SPECKS, as means over sets."""
    return {
        "one_way": float(np.mean([total_variation(file, records, 1) for records in sets])),
        "two_way": float(np.mean([total_variation(file, records, 2) for records in sets])),
        "specks": over_sets(lambda records: propensity(file, records).specks, sets),
    }
