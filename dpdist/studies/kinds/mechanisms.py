"""Studies of all mechanisms at one ε and adjacency, by releases of public files and simulated surveys.

The job of a case runs under each mechanism as in a rehearsal, with as few other changes as possible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dpdist.core.errors import DpdistError, Problem, StudyError
from dpdist.core.keys import Key
from dpdist.job import Adjacency, Frozen, Guarantee, Job, Name
from dpdist.job.loading import job_of, load_job
from dpdist.job.specs import SPECS
from dpdist.studies.kinds.populations import DESCRIBED, UNITS, PopulationName, population, population_job
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, SimulatedKind, randomness
from dpdist.studies.kinds.repeated_samples import SIZE, WEIGHT, file_records, sampled
from dpdist.studies.rehearsal_candidates import Candidate, candidates
from dpdist.studies.rehearsal_thirds import Parts, numbered, parted, thirds
from dpdist.studies.rehearsal_trials import Trial, trial
from dpdist.studies.settings import StudyOfArms, StudyOfFiles

STATISTICS = ("count", "mean")
MEASURES = ("median", "largest", "coverage", "direct_coverage", "withheld")
REFUSED = "refused"
PUBLIC = "a study of public or simulated files"
OF_FILES = (
    "from releases of parts of public files and of samples from simulated populations. What is compared with direct "
    "estimates tells of these files' records, and may be shown because they are public."
)


class MechanismCase(Frozen):
    """A public file and its job, or a simulated population with public bounds."""

    name: Name
    file: str | None = Field(default=None, description="in the folder that `dpdist study --data` names")
    job: str | None = Field(default=None, description="a job file, or the name of a shipped job")
    population: PopulationName | None = Field(default=None, description="simulated, in place of a file and its job")
    records: int = Field(ge=100, le=1_000_000, description="of each third: current file, reference, truth")
    weight_bounds: tuple[float, float] = Field(description="public, for mechanisms without a reference")
    outcome_bounds: tuple[float, float] | None = Field(default=None, description="public, in place of the job's")
    adjacency: Adjacency = "substitution"
    complete: tuple[str, ...] = Field(default=(), description="columns of which records with missing values are left out")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.population is None):
            raise ValueError("give file or population, one of them")
        if (self.file is None) != (self.job is None):
            raise ValueError("job goes with file: a simulated population has a job of its own")
        return self


class MechanismArm(Frozen):
    """A mechanism's label in a rehearsal, and its class of guarantee."""

    candidate: str = Field(description="as in `reference_tables, histograms` or `weighted (scores)`")
    guarantee: Guarantee = "strict"

    @property
    def label(self) -> str:
        return f"{self.candidate}: {self.guarantee}"


class MechanismsStudy(StudyOfArms, StudyOfFiles):
    """Errors and coverage of counts and means, and run time, of every mechanism at one ε."""

    measures = (*(f"{name}_{what}" for name, what in product(STATISTICS, MEASURES)), "seconds", REFUSED)
    kind: Literal["mechanisms"]
    cases: tuple[MechanismCase, ...] = Field(min_length=1)
    mechanisms: tuple[MechanismArm, ...] = Field(min_length=1)


class MechanismsKind(SimulatedKind):
    settings = MechanismsStudy
    heads = ("Label", "Guarantee class", "Fixed on")

    @property
    def captions(self) -> Mapping[str, Caption]:
        made: dict[str, Caption] = {}
        for name in STATISTICS:
            error = (
                "|published − direct estimate| over the direct estimate's standard error, {} over cells and margins whose "
                "figure is published."
            )
            for size in ("median", "largest"):
                made[f"{name}_{size}"] = Caption(
                    f"{size} error of {name}s in direct standard errors", error.format(size), "direct standard errors"
                )
            reading = (
                f"Proportion of cells whose nominal 90 % interval holds the {name} of a third part, which has an error of "
                "its own. Both are given the cells' numbers of records. "
            )
            missed = "A cell without an interval counts as missed."
            made[f"{name}_coverage"] = Caption(f"coverage of true {name}s by 90 % intervals", reading + missed)
            direct = "The intervals are those of the released part's direct estimates."
            made[f"{name}_direct_coverage"] = Caption(f"coverage of true {name}s by direct intervals", reading + direct)
            made[f"{name}_withheld"] = Caption(
                f"share of cells whose {name} is withheld",
                "A release withholds a figure that it cannot tell from its noise, and publishes an interval alone. Errors "
                "leave these cells out.",
            )
        made["seconds"] = Caption(
            "seconds of a release", "With its tables, pages and evaluation, on one core of this machine."
        )
        made[REFUSED] = Caption(
            "releases that were refused", "1 where the job or its fit was refused, as no release could be."
        )
        return made

    def replicate(self, study: MechanismsStudy, case: int, number: int) -> Replicate:
        chosen, results = study.cases[case], list[Result]()
        key = study.key_of(chosen.name, number)
        with tempfile.TemporaryDirectory(prefix="dpdist-") as name:
            parts = _parts(study, chosen, key, Path(name))
            for epsilon in study.grid:
                results += _measured(study, chosen, epsilon, parts, Path(name) / f"at-{len(results)}", key)
        return Replicate(results, [])

    def facts(self, study: MechanismsStudy) -> list[Fact]:
        cases = [f"{case.name}: {_source(case)}; {case.records:,} records; {case.adjacency}" for case in study.cases]
        return [
            ("Data", cases),
            ("Replicates", [f"R = {study.replicates}: other parts, samples and noise each time"]),
            ("ε", [", ".join(study.grid) + " of every release, all of its sets and histograms together"]),
            randomness(study),
        ]

    def arms(self, study: MechanismsStudy) -> list[tuple[str, ...]]:
        return [(arm.label, arm.guarantee, _fixed_on(arm.candidate)) for arm in study.mechanisms]

    def target(self, study: Any, case: str, epsilon: str, measure: str) -> float | None:
        return 0.9 if measure.endswith("_coverage") else None

    def made_of(self, study: MechanismsStudy) -> str:
        return OF_FILES


def case_job(case: MechanismCase, epsilon: str) -> Job:
    base = load_job(str(case.job)) if case.population is None else job_of(population_job(case.population))
    terms = base.model_dump(mode="json", exclude_unset=True, exclude={"extends", "input", "compare", "calibration"})
    columns = dict(terms["columns"])
    columns[str(base.survey.weight)] = {"bounds": list(case.weight_bounds), "outside": "clip"}
    if case.outcome_bounds is not None:
        columns[base.outcomes[0]] = columns[base.outcomes[0]] | {"bounds": list(case.outcome_bounds)}
    terms |= {"columns": columns, "budget": {"epsilon": epsilon, "adjacency": case.adjacency}}
    return job_of(terms | {"public_frame": {"accepted": PUBLIC}})


def _measured(
    study: MechanismsStudy, case: MechanismCase, epsilon: str, parts: Parts, folder: Path, key: Key
) -> Iterator[Result]:
    """Yields a mechanism's measures at one ε; a refused mechanism has only `refused` = 1."""
    job, wanted = case_job(case, epsilon), {arm.candidate: arm for arm in study.mechanisms}
    ground = {"path": str(parts.earlier), "provenance": "another part of the same file"}
    runs, _ = candidates(job, str(parts.earlier), ground, only=wanted)
    earlier = {candidate.label: candidate for candidate in runs}
    for number, arm in enumerate(study.mechanisms):
        made = earlier.get(arm.candidate)
        if made is None:
            yield Result(arm.label, epsilon, REFUSED, 1.0)
            continue
        _same_class(study, arm, made)
        try:
            one = trial(made, parts, folder.with_name(f"{folder.name}-{number}"), key.child(f"{arm.label} {epsilon}"))
        except DpdistError:
            yield Result(arm.label, epsilon, REFUSED, 1.0)
            continue
        yield from (Result(arm.label, epsilon, measure, value) for measure, value in measures(one))


def measures(one: Trial) -> Iterator[tuple[str, float]]:
    """Errors of published figures, coverage of all cells, and the share of cells withheld."""
    for name in STATISTICS:
        cells = one.cells[one.cells["statistic"].str.split().str[0] == name]
        withheld = np.isinf(cells["error_in_direct_se"])
        published = cells[~withheld]
        if len(cells):
            yield f"{name}_withheld", float(withheld.mean())
        if cells["covered"].notna().any():
            yield f"{name}_coverage", float(cells["covered"].mean())
            yield f"{name}_direct_coverage", float(cells["direct_covered"].mean())
        if len(published):
            yield f"{name}_median", float(published["error_in_direct_se"].median())
            yield f"{name}_largest", float(published["error_in_direct_se"].max())
    yield "seconds", one.seconds


def _same_class(study: MechanismsStudy, arm: MechanismArm, made: Candidate) -> None:
    """Raises `StudyError` if a mechanism's class of guarantee differs from the study's."""
    if not made.guarantee.startswith(arm.guarantee):
        problem = Problem(
            f"mechanisms.{arm.candidate}", f"it promises {made.guarantee}", arm.guarantee, "correct the class"
        )
        raise StudyError(study.study, [problem])


def _parts(study: MechanismsStudy, case: MechanismCase, key: Key, folder: Path) -> Parts:
    """Writes the part to release, the reference and the truth: thirds of a file, or of a population's sample."""
    rng = key.generator("split")
    if case.population is not None:
        units = population(case.population, study.key_of(case.name).generator("population")).rename(columns={"size": SIZE})
        low, high = case.outcome_bounds or (-np.inf, np.inf)
        rows, job = sampled(units.assign(y=np.clip(units["y"], low, high)), 3 * case.records, rng), case_job(case, "1")
        rows[WEIGHT] *= 3.0
    else:
        job = load_job(str(case.job))
        rows = file_records(study.path_of(str(case.file), f"cases.{case.name}.file"), job, case.complete)
        rows = rows.iloc[np.sort(rng.permutation(len(rows))[: 3 * case.records])].reset_index(drop=True)
    made = Parts(*(folder / f"{name}.parquet" for name in Parts._fields))
    for path, kept in zip(made, parted(thirds(numbered(rows[list(job.categories)]), rng)), strict=True):
        rows[kept].reset_index(drop=True).to_parquet(path)
    return made


def _source(case: MechanismCase) -> str:
    if case.population is not None:
        return f"samples of {UNITS:,} simulated units, {DESCRIBED[case.population]}"
    return f"disjoint thirds of {case.file} under job {case.job}"


def _fixed_on(candidate: str) -> str:
    """The source of a mechanism's limits or shapes, which are fixed before it reads records."""
    name = candidate.split(" ")[0].rstrip(",")
    if candidate.endswith("histograms"):
        return "noisy histograms of the current part"
    return "the reference" if SPECS[name].takes_reference and not candidate.endswith("no reference") else "public bounds"
