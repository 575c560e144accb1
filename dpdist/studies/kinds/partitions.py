"""Studies of `partitions`' noisy counts: similarity of synthetic records, and how regressions on them predict.

Data are as in [S], section 3: four categories with 2, 3, 4 and 5 levels, and a number cut into 15 bins. Given the
categories, the number is normal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.job import Frozen, Job, Name
from dpdist.mechanisms.partitions.post import PartitionCounts
from dpdist.mechanisms.partitions.query import CellCounts
from dpdist.models.protocol import Draws
from dpdist.quality.microdata import RecordCodes, total_variation
from dpdist.studies.kinds.one_stratum import (
    CAPTIONS,
    StudyOfSets,
    job_of_columns,
    similarity,
    total_variation_of,
)
from dpdist.studies.settings import Caption, Fact, MechanismArm, Replicate

CATEGORIES = {"x1": 2, "x2": 3, "x3": 4, "x4": 5}
NUMBER, BINS = "y", 15
EFFECTS = ((0.5,), (0.5, -0.8), (1.0, 0.5, 0.5), (0.5, 0.7, 0.8, 0.5))
"""Regression effects of every level but the first on the number ([S], section 3.2); the intercept is 0."""
BOUNDS = {"main_effects": (-4.0, 6.0), "saturated": (-6.0, 6.0)}
FIRST = (0, 1, 3)
"""Positions of x1, x2 and x4, by which [S] splits the partition first."""
SHAPE = (*CATEGORIES.values(), BINS)


class LawCase(Frozen):
    """The number's mean given the categories: main effects, or free (standard normal) in the 120 combinations."""

    name: Name
    n: int = Field(ge=100, le=1_000_000)
    law: Literal["main_effects", "saturated"]


class PartitionStudy(StudyOfSets):
    """Compares synthetic records with the file's, and regressions on both."""

    kind: Literal["partitions"]
    cases: tuple[LawCase, ...] = Field(min_length=1)
    mechanisms: tuple[MechanismArm, ...] = Field(min_length=1)
    sets: int = Field(default=4, ge=1, le=100, description="synthetic sets of a release, which share ε")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {
            "first_layer": total_variation_of("x1, x2 and x4 together"),
            **CAPTIONS,
            "all_cells": total_variation_of("all 1,800 cells"),
            "specks": Caption(
                "SPECKS",
                "Kolmogorov–Smirnov distance of propensity scores between both files; the columns are predictors.",
            ),
            "prediction_error": Caption(
                "root mean squared error of predictions",
                "Of the mean given the categories, fitted to synthetic records; mean over sets.",
            ),
        }

    def replicate(self, case: int, number: int) -> Replicate:
        case_settings = self.cases[case]
        key = self.key_of(case_settings.name, number)
        means = _means(case_settings, key)
        file = _file(case_settings, means, key)

        def measures_of(model: PartitionCounts, sets: Sequence[Draws], rng: np.random.Generator) -> Mapping[str, float]:
            exact = CellCounts(model).sums(file).reshape(SHAPE)
            counts = [rng.multinomial(case_settings.n, theta["cells"][0]).reshape(SHAPE).astype(float) for theta in sets]
            return _measures(case_settings, means, exact, counts, model.attributes[-1].values)

        return self.measured(case_settings, file, key, measures_of)

    def facts(self) -> list[Fact]:
        cases = [f"{case.name}: {case.n:,} records, {case.law.replace('_', ' ')}" for case in self.cases]
        return [
            ("Data", ["simulated, 2 × 3 × 4 × 5 categories and 15 bins", *cases]),
            ("Replicates", [f"R = {self.replicates}"]),
            self.budgets,
            self.randomness,
        ]

    def job_of(self, case: LawCase, arm: MechanismArm, epsilon: str) -> Job:
        coded = {name: {"bounds": (0, size - 1), "whole": True, "outside": "clip"} for name, size in CATEGORIES.items()}
        columns = coded | {NUMBER: {"bounds": BOUNDS[case.law], "outside": "clip"}}
        mechanism = arm.mechanism | {"bins": {NUMBER: BINS}}
        return job_of_columns(columns, mechanism, epsilon, self.adjacency, self.sets, NUMBER)


def _measures(case: LawCase, means: Floats, exact: Floats, sets: list[Floats], values: Floats) -> dict[str, float]:
    """Means over sets; predictions are averaged before their error is computed."""
    predicted = np.mean([_fitted(case, counts, values) for counts in sets], axis=0)
    file, synthetic = RecordCodes.of_counts(exact), [RecordCodes.of_counts(counts) for counts in sets]
    first, similar = file.about(FIRST), similarity(file, synthetic)
    return {
        "first_layer": float(np.mean([total_variation(first, records.about(FIRST), len(FIRST)) for records in synthetic])),
        "one_way": similar["one_way"],
        "two_way": similar["two_way"],
        "all_cells": float(np.mean([total_variation(file, records, exact.ndim) for records in synthetic])),
        "specks": similar["specks"],
        "prediction_error": float(np.sqrt(((predicted - means) ** 2).mean())),
    }


def _fitted(case: LawCase, counts: Floats, values: Floats) -> Floats:
    """Predicted means (combination,): least squares on main effects, or by cell with a ridge of 1."""
    n, total = counts.reshape(-1, BINS).sum(axis=1), counts.reshape(-1, BINS) @ values
    design = _design() if case.law == "main_effects" else np.eye(len(n))
    gram = design.T @ (n[:, None] * design) + (1e-9 if case.law == "main_effects" else 1.0) * np.eye(design.shape[1])
    return np.asarray(design @ np.linalg.solve(gram, design.T @ total))


def _design() -> Floats:
    codes = np.indices(tuple(CATEGORIES.values())).reshape(len(CATEGORIES), -1)
    columns = [codes[k] == level for k, size in enumerate(CATEGORIES.values()) for level in range(1, size)]
    return np.column_stack([np.ones(codes.shape[1]), *columns]).astype(float)


def _means(case: LawCase, key: Key) -> Floats:
    if case.law == "saturated":
        return key.generator("effects").normal(size=len(_design()))
    return np.asarray(_design() @ np.concatenate([[0.0], *EFFECTS]))


def _file(case: LawCase, means: Floats, key: Key) -> Records:
    rng, sizes = key.generator("file"), tuple(CATEGORIES.values())
    which = rng.integers(0, len(means), case.n)
    number = np.clip(rng.normal(means[which], 1.0), *BOUNDS[case.law])
    return Records.of_outcomes(np.column_stack([*np.unravel_index(which, sizes), number]).astype(float))
