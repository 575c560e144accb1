"""Runs one replicate of a study of strict tables: simulates a survey and an earlier one, releases, measures errors.

The rounds, models, estimators and intervals are the same as in a release; noise comes from NumPy generators with keys. All
arms (a mechanism with its settings) share the samples. At one ε they also share the uniform random numbers of the noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Floats
from dpdist.engine.in_memory import Unwatched, noise_of, run_rounds
from dpdist.engine.protocol import Learned
from dpdist.estimation.direct import direct
from dpdist.estimation.estimators import STATISTICS as FIGURES
from dpdist.evaluation.laplace import noised
from dpdist.evaluation.reference_baselines import reference_baselines
from dpdist.job import Job, StatisticName
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.claims import promised
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import spreads
from dpdist.publish.tables import from_parameters
from dpdist.runtime.reference import learned_from
from dpdist.sampling import facts, reference_sampler, sampler_of
from dpdist.studies.kinds.protocol import Replicate, Result
from dpdist.studies.kinds.strict_tables_settings import StrictArm, StrictTablesStudy
from dpdist.studies.kinds.surveys import SurveyCase
from dpdist.studies.kinds.tables_replicates import Survey, errors_of, simulated
from dpdist.studies.kinds.tables_settings import STATISTICS
from dpdist.survey.reference_file import open_reference, place_reference
from dpdist.survey.simulate import FIELDS, SEXES, TOP_CODE
from dpdist.survey.source import open_source

BOUNDS = {"lognormal": (1e3, 2e6), "top_coded": (1e3, TOP_CODE)}
"""Public bounds of salaries."""


def replicate(study: StrictTablesStudy, case: SurveyCase, number: int) -> Replicate:
    """Relative errors of counts and means in every cell, and coverage, by arm and ε."""
    key = study.key_of(case.name, number)
    survey = simulated(job_of(study, case, key, study.mechanisms[0], study.grid[0]))
    try:
        earlier = earlier_records(study, case, key, survey)
    except DataError:  # A small cell has no record in this sample.
        return Replicate([Result(arm.label, e, "refused", 1.0) for e in study.grid for arm in study.mechanisms], [])
    results = list(_unprotected(study, case, survey, earlier, key))
    for epsilon in study.grid:
        for arm in study.mechanisms:
            job = job_of(study, case, key, arm, epsilon)
            results += _released(job, arm, epsilon, survey, earlier, key)
    return Replicate(results, [])


def job_of(study: StrictTablesStudy, case: SurveyCase, key: Key, arm: StrictArm, epsilon: str) -> Job:
    """Job for the release that an arm simulates, with one fit for all cells."""

    def simulation(name: str, growth: float = 0.0, **shape: float) -> dict[str, Any]:
        seed, size = int(key.child(name).hex()[:12], 16), round(case.population * (1.0 + growth))
        plain = {"kind": "doctorates", "population": size, "sample": case.sample, "seed": seed, "law": case.law}
        return plain | {"growth": growth} | shape

    sanitized = arm.mechanism == "sanitized_statistics"
    current = simulation("survey", case.growth, sd=case.sd, noise_sd=case.noise_sd, gap=case.gap)
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": "simulated",
            "input": {"simulate": current},
            "columns": {
                "field": {"levels": FIELDS},
                "sex": {"levels": SEXES},
                "salary": {"bounds": BOUNDS[case.law], "outside": "clip"},
            },
            "survey": {"weight": "weight", "design_strata": ["field"], "lonely_psu": "certainty"},
            "outcome": "salary",
            "model": {"family": "lognormal", "synthesis": arm.synthesis} if sanitized else None,
            "mechanism": {"name": arm.mechanism, "shrinkage": arm.shrinkage},
            "budget": {"epsilon": epsilon, "adjacency": arm.adjacency},
            "reference": {"simulate": simulation("earlier")},
            "tables": [{"name": "salaries", "by": ["field", "sex"], "statistics": ["count", {"mean": "salary"}]}],
        }
    )


def earlier_records(study: StrictTablesStudy, case: SurveyCase, key: Key, survey: Survey) -> Records:
    """Records of the earlier survey, in rows of the current frame. Raises `DataError` where it lacks a cell."""
    return records_of(job_of(study, case, key, study.mechanisms[0], study.grid[0]), survey)


def records_of(job: Job, survey: Survey) -> Records:
    """Records of the job's reference, in rows of the current frame. Raises `DataError` where it lacks a cell."""
    found = open_reference(job, open_source(job), survey.frame)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place_reference(job, found, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        return Records(*fields)


def _unprotected(
    study: StrictTablesStudy, case: SurveyCase, survey: Survey, earlier: Records, key: Key
) -> Iterator[Result]:
    """Errors of direct estimates, of the reference alone, and of direct estimates under Laplace noise.

    Each record is in 8 figures, and these share ε.
    """
    values = {name: e.value for name, e in zip(STATISTICS, direct(survey.found, survey.frame, survey.cells), strict=False)}
    job = job_of(study, case, key, study.mechanisms[0], study.grid[0])
    others = reference_baselines(job, survey.frame, [survey.records], [earlier], key)
    for epsilon in study.grid:
        yield from errors_of("direct", epsilon, values, survey)
        yield from errors_of("reference_only", epsilon, others.figures("reference_only", survey.cells), survey)
        figures, total = survey.cells.per_record * len(STATISTICS), float(Fraction(epsilon))
        noisy = noised(values, survey.found, survey.cells, total, "laplace_composed", key.child(epsilon), "all", figures)
        yield from errors_of("laplace_composed", epsilon, noisy, survey)


def _released(job: Job, arm: StrictArm, epsilon: str, survey: Survey, earlier: Records, key: Key) -> Iterator[Result]:
    release = release_of(job, survey, earlier, key)
    expected, spread = expectations(release), spreads(release, lambda _: None)
    assert expected is not None
    assert spread is not None
    values: dict[StatisticName, Floats] = {}
    intervals = from_parameters(release, survey.cells, expected, spread[0])
    for name, interval in zip(FIGURES, intervals, strict=True):
        if name in STATISTICS:
            values[name], truth = interval.value, survey.truth[name]
            covered = (interval.lower <= truth) & (truth <= interval.upper)
            yield Result(arm.label, epsilon, f"{name}_coverage", float(covered.mean()))
    yield from errors_of(arm.label, epsilon, values, survey)


def release_of(job: Job, survey: Survey, earlier: Records, key: Key) -> ReleasedObject:
    """The job's release of a simulated survey, made in memory with noise from keys."""
    return released(job, survey, learned_of(job, survey, earlier, key), key)


def learned_of(job: Job, survey: Survey, earlier: Records, key: Key) -> Learned:
    """What the mechanism learns from the reference's records."""
    model = builder_of(job).build(job, survey.frame, slice(0, len(survey.frame)))
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        taught = reference_sampler(job, sampler_of(job, Path(folder)))
        return learned_from(job, model, taught, key.child("reference"), POOLED, earlier, len(survey.records))


def released(job: Job, survey: Survey, learned: Learned, key: Key) -> ReleasedObject:
    """The release of a survey, given what the mechanism learned from a reference."""
    model, mechanism = builder_of(job).build(job, survey.frame, slice(0, len(survey.frame))), mechanism_of(job)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        rounds, sampler = mechanism.protect(job, model, Unwatched(), learned), sampler_of(job, Path(folder))
        found = run_rounds(rounds, model, sampler, key, POOLED, [survey.records], noise=noise_of(key))
    sets = tuple({POOLED: model.describe(theta)} for theta in found.parameters)
    said = promised(mechanism.promise(job), facts(job))
    return ReleasedObject(job, said, survey.frame, sets, key.child("publish"))
