"""Studies of strict tables with a reference (METHODS §7b, §8): simulated surveys, errors against the truth.

All arms share the samples, and for one ε the uniform random numbers of the noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, Floats
from dpdist.engine.protocol import Learned
from dpdist.engine.rounds import Unwatched, noise_of, run_rounds
from dpdist.estimation.direct import direct
from dpdist.estimation.estimators import STATISTICS as FIGURES
from dpdist.job import Frozen, Job, Name, StatisticName, Synthesis
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.claims import promised
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import spreads
from dpdist.publish.tables import from_parameters
from dpdist.quality.comparators import noised, reference_baselines
from dpdist.runtime.reference import learned_from
from dpdist.sampling import facts, reference_sampler, sampler_of
from dpdist.studies.kinds.populations import BOUNDS, OfSurveys, Survey, SurveyCase, errors_of, simulated
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.kinds.table_errors import STATISTICS, biases, coverages, ratios, ratios_of_errors
from dpdist.survey.reference_file import open_reference, place_reference
from dpdist.survey.simulate import FIELDS, SEXES
from dpdist.survey.source import open_source

YARDSTICK = "direct"


UNPROTECTED = (YARDSTICK, "reference_only", "laplace_composed")
"""Labels of every case for figures without formal protection."""


class StrictArm(Frozen):
    """A strict mechanism, whose released parameters make the table."""

    label: Name
    mechanism: Literal["sanitized_statistics", "reference_tables"]
    adjacency: Literal["zero_out", "substitution"] = "zero_out"
    synthesis: Synthesis = "fbs"
    shrinkage: bool = True

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.mechanism == "reference_tables" and self.synthesis != "fbs":
            raise ValueError("reference_tables synthesises nothing: leave synthesis out")
        return self


class StrictTablesStudy(OfSurveys):
    """RMSE over the direct estimate's, bias, and coverage of 90 % intervals, by field × sex with margins."""

    kind: Literal["strict_tables"]
    mechanisms: tuple[StrictArm, ...] = Field(min_length=1)

    @property
    def labels(self) -> tuple[str, ...]:
        return (*UNPROTECTED, *(arm.label for arm in self.mechanisms))

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Labels by whose RMSE all others are divided."""
        return (YARDSTICK,)

    @property
    def all_measures(self) -> tuple[str, ...]:
        return tuple(f"{one}_{what}" for what in ("ratio_direct", "bias_direct", "coverage") for one in STATISTICS)


BESIDE = (
    ("direct", "survey-weighted estimates of the sample, not protected", "–", "none"),
    ("reference_only", "the earlier survey's means at the current public sizes", "–", "no current data"),
    (
        "laplace_composed",
        "direct + Laplace noise of the sample's own sensitivity, ε shared by a record's 8 figures",
        "–",
        "none",
    ),
)


class StrictTables(SimulatedKind):
    settings = StrictTablesStudy
    heads = ("Label", "What is released", "Cells", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return ratios_of_errors(("direct",)) | biases() | coverages()

    def replicate(self, study: StrictTablesStudy, case: int, number: int) -> Replicate:
        return replicate(study, study.cases[case], number)

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(study, results)

    def facts(self, study: StrictTablesStudy) -> list[Fact]:
        numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
        return [
            (
                "Data",
                ["simulated doctorates, now and earlier; counts and mean salaries by field × sex with margins, 27 cells"],
            ),
            ("Cases", [f"{case.name}: {case.described()}" for case in study.cases]),
            (
                "Replicates",
                [f"R = {' or '.join(map(str, numbers))}, each with populations and samples of its own in every case"],
            ),
            ("ε", [", ".join(study.grid) + " of the whole release"]),
            randomness(study),
        ]

    def arms(self, study: StrictTablesStudy) -> list[tuple[str, ...]]:
        return [*BESIDE, *map(_arm, study.mechanisms)]


def _arm(arm: StrictArm) -> tuple[str, ...]:
    how = {
        "sanitized_statistics": f"whitened, winsorised sums, lognormal ({arm.synthesis.upper()})",
        "reference_tables": "clipped sums, clipping inverted with the reference",
    }
    shrunk = "cells shrunk as far as noise moved them" if arm.shrinkage else "cells stand alone"
    return arm.label, how[arm.mechanism], shrunk, f"strict, {arm.adjacency}"


def replicate(study: StrictTablesStudy, case: SurveyCase, number: int) -> Replicate:
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
    """The release that an arm simulates, with one fit for all cells."""

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
    """The earlier survey, in rows of the current frame; raises `DataError` if a cell is missing."""
    return records_of(job_of(study, case, key, study.mechanisms[0], study.grid[0]), survey)


def records_of(job: Job, survey: Survey) -> Records:
    """Records of the job's reference, in rows of the current frame. Raises `DataError` if a cell is missing."""
    source = open_reference(job, open_source(job), survey.frame)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place_reference(job, source, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        return Records(*fields)


def _unprotected(
    study: StrictTablesStudy, case: SurveyCase, survey: Survey, earlier: Records, key: Key
) -> Iterator[Result]:
    """Errors of direct estimates, of the reference alone, and under Laplace noise with ε shared by 8 figures."""
    values = {name: e.value for name, e in zip(STATISTICS, direct(survey.totals, survey.frame, survey.cells), strict=False)}
    job = job_of(study, case, key, study.mechanisms[0], study.grid[0])
    others = reference_baselines(job, survey.frame, [survey.records], [earlier], key)
    for epsilon in study.grid:
        yield from errors_of("direct", epsilon, values, survey)
        yield from errors_of("reference_only", epsilon, others.figures("reference_only", survey.cells), survey)
        figures, total = survey.cells.per_record * len(STATISTICS), float(Fraction(epsilon))
        noisy = noised(values, survey.totals, survey.cells, total, "laplace_composed", key.child(epsilon), "all", figures)
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
    """A release in memory, with noise from keys."""
    return released(job, survey, learned_of(job, survey, earlier, key), key)


def learned_of(job: Job, survey: Survey, earlier: Records, key: Key) -> Learned:
    model = builder_of(job).build(job, survey.frame, slice(0, len(survey.frame)))
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        taught = reference_sampler(job, sampler_of(job, Path(folder)))
        return learned_from(job, model, taught, key.child("reference"), POOLED, earlier, len(survey.records))


def released(job: Job, survey: Survey, learned: Learned, key: Key) -> ReleasedObject:
    """A release from what the mechanism learned."""
    model, mechanism = builder_of(job).build(job, survey.frame, slice(0, len(survey.frame))), mechanism_of(job)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        rounds, sampler = mechanism.protect(job, model, Unwatched(), learned), sampler_of(job, Path(folder))
        ended = run_rounds(rounds, model, sampler, key, POOLED, [survey.records], noise=noise_of(key))
    sets = tuple({POOLED: model.describe(theta)} for theta in ended.parameters)
    claim = promised(mechanism.promise(job), facts(job))
    return ReleasedObject(job, claim, survey.frame, sets, key.child("publish"))
