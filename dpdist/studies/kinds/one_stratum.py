"""Releases of a file that is one stratum, and how similar its synthetic records are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Crosstab
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.quality.microdata import RecordCodes, propensity, total_variation
from dpdist.quality.predicted.replicates import released_by
from dpdist.sampling.samplers import IndependentSampler
from dpdist.studies.settings import Caption, Fact, Replicate, Result, StudyOfArms

MeasuresOf = Callable[[Any, Sequence[Draws], np.random.Generator], Mapping[str, float]]
"""The measures of a model's released sets; synthetic records are drawn with the generator."""


class StudyOfSets(StudyOfArms):
    """A study that compares the synthetic sets of mechanisms that a job can name."""

    heads: ClassVar[tuple[str, ...]] = ("Label", "Mechanism", "Constants", "Guarantee class")
    adjacency: Adjacency = "zero_out"
    sets: int = Field(default=5, ge=1, le=100, description="synthetic sets of a release, which share ε")

    @abstractmethod
    def job_of(self, case: Any, arm: Any, epsilon: str) -> Job:
        """The release of an arm."""

    def measured(self, case: Any, file: Records, key: Key, measures_of: MeasuresOf) -> Replicate:
        """Releases of a file under every arm and ε, measured."""
        results = list[Result]()
        for arm in self.mechanisms:
            for epsilon in self.grid:
                job = self.job_of(case, arm, epsilon)
                model, noise_key = model_of(job, len(file)), key.child(arm.label + epsilon)
                sets = released(job, model, file, noise_key)
                measures = measures_of(model, sets, noise_key.generator("synthesis"))
                results += [Result(arm.label, epsilon, measure, value) for measure, value in measures.items()]
        return Replicate(results)

    @property
    def budgets(self) -> Fact:
        return "ε", [", ".join(self.grid) + f" of {self.sets} sets together, {self.adjacency}"]

    def arms(self) -> list[tuple[str, ...]]:
        arms = list[tuple[str, ...]]()
        for arm in self.mechanisms:
            job = self.job_of(self.cases[0], arm, self.grid[0])
            constants = [f"{name} {_text(value)}" for name, value in arm.mechanism.items() if name != "name"]
            constants += ["one set"] if getattr(arm, "single", False) else []
            guarantee = mechanism_of(job).promise(job).per_set.name
            arms.append((arm.label, job.mechanism.name, "; ".join(constants) or "–", guarantee))
        return arms


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


def released(job: Job, model: Any, file: Records, key: Key) -> Sequence[Draws]:
    return released_by(job, model, IndependentSampler(1), POOLED, file, None, key)[1]


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
