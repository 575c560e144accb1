"""Studies of noisy counts over a partition: how similar synthetic records are, and how regressions on them predict.

As in [S], section 3: four categories with 2, 3, 4 and 5 levels, and a number that is normal given the categories and is cut
into 15 bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.evaluation.microdata.coded import Coded
from dpdist.evaluation.microdata.marginals import total_variation
from dpdist.job import Adjacency, Frozen, Job, Name
from dpdist.mechanisms.partitions.post import PartitionCounts
from dpdist.mechanisms.partitions.query import CellCounts
from dpdist.studies.kinds.one_stratum import described, model_of, released
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.kinds.similarity import CAPTIONS, apart, similarity
from dpdist.studies.settings import StudyOfArms

CATEGORIES = {"x1": 2, "x2": 3, "x3": 4, "x4": 5}
NUMBER, BINS = "y", 15
EFFECTS = ((0.5,), (0.5, -0.8), (1.0, 0.5, 0.5), (0.5, 0.7, 0.8, 0.5))
"""Regression effects of every level but the first on the number ([S], section 3.2); the intercept is 0."""
BOUNDS = {"main_effects": (-4.0, 6.0), "saturated": (-6.0, 6.0)}
FIRST = (0, 1, 3)
"""Positions of x1, x2 and x4, the columns by which [S] splits the partition first."""
SHAPE = (*CATEGORIES.values(), BINS)
MEASURES = ("first_layer", "one_way", "two_way", "all_cells", "specks", "prediction_error")


class LawCase(Frozen):
    """How the number's mean depends on the categories: by main effects, or freely in each of the 120 combinations.

    In the second case the means are drawn from a standard normal law.
    """

    name: Name
    n: int = Field(ge=100, le=1_000_000)
    law: Literal["main_effects", "saturated"]


class PartitionArm(Frozen):
    """A mechanism with its constants, apart from the number of bins."""

    label: Name
    mechanism: dict[str, Any]


class PartitionStudy(StudyOfArms):
    """Study of distances between synthetic records and the file's records, and of a regression's prediction error."""

    measures = MEASURES
    kind: Literal["partitions"]
    cases: tuple[LawCase, ...] = Field(min_length=1)
    mechanisms: tuple[PartitionArm, ...] = Field(min_length=1)
    adjacency: Adjacency = "zero_out"
    sets: int = Field(default=4, ge=1, le=100, description="synthetic sets of a release, which share ε")


class PartitionsKind(SimulatedKind):
    settings = PartitionStudy
    heads = ("Label", "Mechanism", "Constants", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {
            "first_layer": apart("x1, x2 and x4 together"),
            **CAPTIONS,
            "all_cells": apart("all 1,800 cells"),
            "specks": Caption(
                "SPECKS",
                "Kolmogorov–Smirnov distance of propensity scores between both files; the columns are predictors.",
            ),
            "prediction_error": Caption(
                "root mean squared error of predictions",
                "Of the mean given the categories, fitted to synthetic records; mean over sets.",
            ),
        }

    def replicate(self, study: PartitionStudy, case: int, number: int) -> Replicate:
        said = study.cases[case]
        key = study.key_of(said.name, number)
        means = _means(said, key)
        file = _file(said, means, key)
        return Replicate([each for arm in study.mechanisms for each in _measured(study, said, arm, means, file, key)], [])

    def facts(self, study: PartitionStudy) -> list[Fact]:
        cases = [f"{case.name}: {case.n:,} records, {case.law.replace('_', ' ')}" for case in study.cases]
        return [
            ("Data", ["simulated, 2 × 3 × 4 × 5 categories and 15 bins", *cases]),
            ("Replicates", [f"R = {study.replicates}"]),
            ("ε", [", ".join(study.grid) + f" of {study.sets} sets together, {study.adjacency}"]),
            randomness(study),
        ]

    def arms(self, study: PartitionStudy) -> list[tuple[str, ...]]:
        jobs = (job_of(study, study.cases[0], arm, study.grid[0]) for arm in study.mechanisms)
        return [(arm.label, *described(arm.mechanism, job)) for arm, job in zip(study.mechanisms, jobs, strict=True)]


def _measured(
    study: PartitionStudy, case: LawCase, arm: PartitionArm, means: Floats, file: Records, key: Key
) -> Iterator[Result]:
    for epsilon in study.grid:
        said = job_of(study, case, arm, epsilon)
        model, own = model_of(said, case.n), key.child(arm.label + epsilon)
        assert isinstance(model, PartitionCounts)
        exact = CellCounts(model).sums(file).reshape(SHAPE)
        rng, found = own.generator("synthesis"), released(said, model, file, own)
        sets = [rng.multinomial(case.n, theta["cells"][0]).reshape(SHAPE).astype(float) for theta in found]
        for measure, value in _measures(case, means, exact, sets, model.attributes[-1].values).items():
            yield Result(arm.label, epsilon, measure, value)


def _measures(case: LawCase, means: Floats, exact: Floats, sets: list[Floats], values: Floats) -> dict[str, float]:
    """Every measure as a mean over sets. Predictions of the sets are averaged before their error is taken."""
    predicted = np.mean([_fitted(case, each, values) for each in sets], axis=0)
    file, synthetic = Coded.of_counts(exact), [Coded.of_counts(each) for each in sets]
    first, found = file.about(FIRST), similarity(file, synthetic)
    return {
        "first_layer": float(np.mean([total_variation(first, each.about(FIRST), len(FIRST)) for each in synthetic])),
        "one_way": found["one_way"],
        "two_way": found["two_way"],
        "all_cells": float(np.mean([total_variation(file, each, exact.ndim) for each in synthetic])),
        "specks": found["specks"],
        "prediction_error": float(np.sqrt(((predicted - means) ** 2).mean())),
    }


def _fitted(case: LawCase, counts: Floats, values: Floats) -> Floats:
    """Predicted means (combination,) by least squares on main effects; in the saturated case by cell, with a ridge of 1."""
    n, total = counts.reshape(-1, BINS).sum(axis=1), counts.reshape(-1, BINS) @ values
    design = _design() if case.law == "main_effects" else np.eye(len(n))
    gram = design.T @ (n[:, None] * design) + (1e-9 if case.law == "main_effects" else 1.0) * np.eye(design.shape[1])
    return np.asarray(design @ np.linalg.solve(gram, design.T @ total))


def _design() -> Floats:
    """Design matrix with an intercept and an indicator of every level except the first, (combination, column)."""
    codes = np.indices(tuple(CATEGORIES.values())).reshape(len(CATEGORIES), -1)
    columns = [codes[k] == level for k, size in enumerate(CATEGORIES.values()) for level in range(1, size)]
    return np.column_stack([np.ones(codes.shape[1]), *columns]).astype(float)


def _means(case: LawCase, key: Key) -> Floats:
    """The number's true mean in every combination of categories, (combination,)."""
    if case.law == "saturated":
        return key.generator("effects").normal(size=len(_design()))
    return np.asarray(_design() @ np.concatenate([[0.0], *EFFECTS]))


def _file(case: LawCase, means: Floats, key: Key) -> Records:
    rng, sizes = key.generator("file"), tuple(CATEGORIES.values())
    which = rng.integers(0, len(means), case.n)
    number = np.clip(rng.normal(means[which], 1.0), *BOUNDS[case.law])
    columns = np.column_stack([*np.unravel_index(which, sizes), number]).astype(float)
    none = np.full(case.n, -1, np.int32)
    return Records(np.arange(case.n), np.zeros(case.n, np.int32), columns, np.ones(case.n), none)


def job_of(study: PartitionStudy, case: LawCase, arm: PartitionArm, epsilon: str) -> Job:
    """Job for the release of such a file."""
    coded = {name: {"bounds": (0, size - 1), "whole": True, "outside": "clip"} for name, size in CATEGORIES.items()}
    return Job.model_validate(
        {
            "dataset": "study",
            "period": "1",
            "columns": coded | {NUMBER: {"bounds": BOUNDS[case.law], "outside": "clip"}},
            "outcome": [*CATEGORIES, NUMBER],
            "mechanism": arm.mechanism | {"bins": {NUMBER: BINS}},
            "budget": {"epsilon": epsilon, "adjacency": study.adjacency},
            "synthetic_sets": study.sets,
            "tables": [{"name": "t", "by": [], "statistics": [{"mean": NUMBER}]}],
        }
    )
