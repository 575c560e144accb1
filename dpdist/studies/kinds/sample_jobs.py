"""Builds the jobs of a study of repeated samples: the case's table under each mechanism of the study."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.job import Job, budget_text
from dpdist.job.families import FAMILIES
from dpdist.job.loading import load_job
from dpdist.studies.kinds.files_arms import FilesArm
from dpdist.studies.kinds.files_settings import FileCase
from dpdist.studies.kinds.populations import population_job

WEIGHT = "weight"
FLOOR = 1.0
"""The smallest outcome for lognormal models, where a job's bounds begin below it."""


def job_of_case(case: FileCase) -> Job:
    """The job of the file, or of the simulated population."""
    if case.population is not None:
        return Job.model_validate(population_job(case.population))
    return load_job(str(case.job))


def tabulated_job(job: Job, case: FileCase) -> Job:
    """The job with one table by the case's columns: counts and means, with margins."""
    table = job.tables[0]
    wanted = ["count", {"mean": job.outcomes[0]}]
    said = {"name": table.name, "by": list(case.by or table.by), "margins": True, "statistics": wanted}
    return Job.model_validate(job.model_dump(mode="json") | {"tables": [said], "compare": [], "rake": []})


def arm_job(job: Job, case: FileCase, arm: FilesArm, epsilon: str, reference: str) -> Job:
    """The job under a mechanism of the study. A likelihood is fitted once for all cells, with the columns as predictors."""
    outcome, columns = job.outcomes[0], job.model_dump(mode="json")["columns"]
    if arm.family is not None and FAMILIES[arm.family].logs:
        low, high = job.outcome_column.bounds or (0.0, np.inf)
        columns[outcome]["bounds"] = [max(low, FLOOR), high]
    if case.weight_bounds is not None and arm.histogram is not None:
        columns[WEIGHT] = {"bounds": case.weight_bounds, "outside": "clip"}
    fixed_on: dict[str, Any] | None = {"path": reference} if arm.reference == "sample" else None
    if arm.histogram is not None:
        fixed_on = {"histogram": {"epsilon": budget_text(arm.histogram * Fraction(epsilon))}}
    predictors = list(job.cell_columns) if not arm.mechanism.sets_are_free else []
    model = {"family": arm.family, "predictors": predictors, "synthesis": arm.synthesis}
    changes = {
        "columns": columns,
        "survey": {"weight": WEIGHT},
        "strata": [],
        "outcome": outcome,
        "model": None if arm.family is None else model,
        "mechanism": arm.mechanism.model_dump(mode="json"),
        "budget": {"epsilon": epsilon, "adjacency": arm.adjacency},
        "synthetic_sets": arm.synthetic_sets,
        "reference": fixed_on,
        "calibration": None,
        "sampler": {},
        "record": {"log_lik": "never"},
        "runtime": {"executor": "serial"},
    }
    return Job.model_validate(job.model_dump(mode="json") | changes)
