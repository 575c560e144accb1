"""Studies that compare tables from synthetic records with noisy tables, against the truth in every cell (METHODS §7).

All arms share the sample; arms with one weight rule also share the released draws. So ratios compare errors on the same
data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from dpdist.core.errors import StudyError
from dpdist.core.files import scratch
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, TOTAL, Floats, quotient
from dpdist.engine.protocol import Columns, noise_of, run_rounds
from dpdist.estimation.direct import SamplingDesign, degrees_of_freedom, direct
from dpdist.estimation.estimators import (
    STATISTICS as ALL_STATISTICS,
    Interval,
    PsuSums,
    group_sums,
    record_sums,
    t_interval,
)
from dpdist.job import Budget, Frozen, Job, Name, RuleOrName, StatisticName, Synthesis, budget_text
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import Draws, Improper
from dpdist.privacy.cell_sums import CellBounds, noise_scale
from dpdist.privacy.claims import promised
from dpdist.privacy.weights import NotReached
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import Spreads, simulate_errors
from dpdist.publish.tables import Grounds, combined_records, estimates
from dpdist.quality.evaluate import noised
from dpdist.sampling import facts, sampler_of
from dpdist.studies.kinds.populations import (
    SIZE,
    STATISTICS,
    SimulatedSurvey,
    errors_of,
    informative_size,
    placed_survey,
    ratios,
    systematic_sample,
)
from dpdist.studies.kinds.simulation import CAPTIONS, StudyRecorder
from dpdist.studies.settings import Caption, Fact, RecordRows, Replicate, Result, StudyOfFiles
from dpdist.survey.simulate import FIELDS, SEXES, Truth

YARDSTICKS = ("direct", "laplace", "laplace_composed", "laplace_strict")


class TableFile(Frozen):
    """A public file that is a population: its columns of field, sex and salary, and their levels."""

    path: str = Field(description="in the folder that `dpdist study --data` names")
    field: str = Field(description="the column that is taken for the field")
    fields: tuple[str, ...] = Field(min_length=2, description="its levels")
    sex: str = Field(description="the column that is taken for sex")
    sexes: tuple[str, ...] = Field(min_length=2, description="its levels")
    salary: str = Field(description="the outcome; records in which it is missing or 0 are left out")


class TableCase(Frozen):
    """A simulated survey, new in every replicate, or systematic samples of a file in which larger outcomes are
    likelier.
    """

    name: Name
    population: int | None = Field(default=None, gt=0, description="units that are simulated")
    file: TableFile | None = Field(
        default=None, description="file whose records are the population, in place of simulated ones"
    )
    sample: int = Field(gt=0)
    noise: Literal["normal", "lognormal"] = Field(default="normal", description="of simulated inclusion probabilities")
    weight_bound: float = Field(
        default=500.0, gt=0, description="public bound of the strict table: larger weights are clipped"
    )
    outcome_bound: float = Field(default=400_000.0, gt=0, description="public, likewise")

    @model_validator(mode="after")
    def _one_population(self) -> Self:
        if (self.population is None) == (self.file is None):
            raise ValueError("give either population or file")
        return self

    @property
    def n(self) -> int:
        return self.sample


class Synthetic(Frozen):
    """Tables from m synthetic sets, by FBS or FBP under a weight rule, from records or parameters.

    With `expected_weights`, a synthetic weight w* is replaced by E(w|y*, x).
    """

    label: Name
    weights: RuleOrName
    synthesis: Synthesis = "fbs"
    population_weights: Literal["inverse_inclusion", "proportional"] = "inverse_inclusion"
    estimator: Literal["records", "expected_weights", "parameters"] = "records"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.synthesis == "fbs" and self.population_weights == "proportional":
            raise ValueError("population_weights needs synthesis: fbp")
        if self.synthesis == "fbp" and self.estimator == "expected_weights":
            raise ValueError("fbp has no synthetic weights to replace: use estimator: records")
        return self


NOISED = {
    "direct": ("survey-weighted estimates of the sample, not protected", "none"),
    "laplace": ("direct + Laplace noise of the sample's own sensitivity, all of ε in every figure", "none"),
    "laplace_composed": ("the same, ε shared by the 8 figures that one record enters", "none"),
    "laplace_strict": ("clipped sums of base cells + Laplace noise at public bounds, margins added", "strict"),
}
"""What a yardstick is, and the class of its guarantee."""
RATIO_TITLES = {
    "laplace": "RMSE of {}s over Laplace's, all of ε in every figure",
    "laplace_composed": "RMSE of {}s over Laplace's, ε shared",
    "direct": "RMSE of {}s over the direct estimate's",
    "laplace_strict": "RMSE of {}s over strict Laplace tables'",
}
RATIO = (
    "Root mean squared error against the truth over replicates, cell by cell, over the yardstick's; means and standard "
    "deviations here are over the cells. Below 1 the synthetic table is the better one."
)
COVERED = (
    "Nominal .90, with the standard errors that a release publishes (direct estimates: Taylor, t); the mean over "
    "replicates has a Monte Carlo error of the sd over √R. Over "
)
COVERAGES = {
    "cells": "all cells of the table.",
    "margins": "the margins, where it hardly matters that the model has no interaction of field and sex.",
}
ALONE = (
    "Nominal .90, by the combining rule for an analysis of the synthetic sets without the published errors. With one set "
    "the variance is W alone, without the spread between sets. It never includes the bias of the privacy weights."
)
TABLE = "; counts and mean salaries by field × sex with margins"
OWN_SAMPLE, OWN_POPULATION = "a sample of its own", "a population and a sample of its own"


class TablesStudy(StudyOfFiles):
    """RMSE over replicates against the truth, relative to yardsticks', by field × sex with margins."""

    heads: ClassVar[tuple[str, ...]] = ("Label", "Model", "Weight rule", "Estimated from")
    kind: Literal["tables"]
    cases: tuple[TableCase, ...] = Field(min_length=1)
    mechanisms: tuple[Synthetic, ...] = Field(min_length=1)
    sets: tuple[Annotated[int, Field(ge=1, le=20)], ...] = Field(min_length=1, description="numbers m of synthetic sets")
    epsilon_per_set: Budget
    draws: int = Field(default=1000, ge=100)

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        if self.epsilons:
            raise ValueError("epsilons follow from sets and epsilon_per_set: leave them out")
        if len(set(self.sets)) < len(self.sets):
            raise ValueError("numbers of sets must differ")
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        return (*YARDSTICKS, *(arm.label for arm in self.mechanisms))

    @property
    def grid(self) -> tuple[str, ...]:
        return tuple(budget_text(self.epsilon_per_set * Fraction(m)) for m in self.sets)

    @property
    def captions(self) -> Mapping[str, Caption]:
        errors = {
            f"{name}_ratio_{other}": Caption(title.format(name), RATIO, "ratio of RMSE")
            for other, title in RATIO_TITLES.items()
            for name in STATISTICS
        }
        covered = {
            f"{name}_coverage{'_margins' * (which == 'margins')}": Caption(
                f"proportion of {which} whose 90 % interval covers the true {name}", COVERED + where
            )
            for which, where in COVERAGES.items()
            for name in STATISTICS
        }
        sets = {
            f"{name}_coverage_sets": Caption(f"{name}s: the same from the synthetic sets alone, T = B/m + W", ALONE)
            for name in STATISTICS
        }
        return errors | covered | sets | {"database_bound": CAPTIONS["database_bound"]}

    def replicate(self, case: int, number: int) -> Replicate:
        return tabulate(self, self.cases[case], number)

    def by_cell(self, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(self.seed, YARDSTICKS, results)

    def facts(self) -> list[Fact]:
        cases = [f"{c.name}: {_drawn(c)}" for c in self.cases]
        files = all(c.file is not None for c in self.cases)
        sets = [f"ε = {e} for m = {m}" for m, e in zip(self.sets, self.grid, strict=True)]
        return [
            ("Data", ["public files" + TABLE if files else "simulated doctorates" + TABLE + ", 27 cells", *cases]),
            ("Replicates", [f"R = {self.replicates}, each with {OWN_SAMPLE if files else OWN_POPULATION} in every case"]),
            (
                "ε",
                [f"{budget_text(self.epsilon_per_set)} per synthetic set, zero_out; noised tables have the total", *sets],
            ),
            ("Posterior draws", [f"S = {self.draws:,}, independent, one pooled fit"]),
            self.randomness,
        ]

    def target(self, case: str, epsilon: str, measure: str) -> float | None:
        if measure == "database_bound":
            return float(self.epsilon_per_set) / 2.0
        return super().target(case, epsilon, measure)

    def arms(self) -> list[tuple[str, ...]]:
        noised = [(name, text, "–", f"guarantee: {of}") for name, (text, of) in NOISED.items()]
        return [*noised, *map(_arm, self.mechanisms)]


def _drawn(case: TableCase) -> str:
    if case.file is not None:
        return (
            f"systematic PPS samples of {case.sample:,} from the records of {case.file.path}, with sizes that grow "
            "with the outcome"
        )
    size = f"{case.population:,}, {case.noise} noise in log π"
    return f"stratified systematic PPS samples of {case.sample:,} from {size}"


def _arm(arm: Synthetic) -> tuple[str, ...]:
    weights = {"inverse_inclusion": "1/E(π|x)", "proportional": "N/n"}[arm.population_weights]
    law = arm.synthesis.upper() + (f", weights {weights}" if arm.synthesis == "fbp" else "")
    estimated = {"records": "synthetic records", "expected_weights": "synthetic records, w* replaced by E(w|y*, x)"}
    return arm.label, law, arm.weights.rule, estimated.get(arm.estimator, "released parameters")


SAMPLE = "sample.parquet"
"""Name of the file with a sample of a public file."""


class TiltedDraws(NamedTuple):
    """Draws of every set, the database bound Δ, and the mechanism's record of each record's bounds and weights."""

    parameters: Sequence[Draws]
    bound: float
    columns: Columns


def tabulate(study: TablesStudy, case: TableCase, number: int) -> Replicate:
    key = study.key_of(case.name, number)
    survey = surveyed(study, case, key)
    results, records = list(_yardsticks(study, case, survey, key)), list[RecordRows]()
    if number == 1:
        records.append(
            RecordRows("direct", study.grid[0], {"outcome": survey.records.outcome, "weight": survey.records.weight})
        )
    fits: dict[str, TiltedDraws | None] = {}
    errors: dict[str, Spreads] = {}
    for arm in study.mechanisms:
        job = job_of(study, case, key, arm)
        rule = arm.weights.model_dump_json()
        if rule not in fits:
            fits[rule] = _fit(job, survey, key)
        results += _synthetic(study, arm, job, survey, fits[rule], key, errors)
        if number == 1 and (fit := fits[rule]) is not None:
            records.append(RecordRows(arm.label, study.grid[0], _pictured(job, survey, fit, key)))
    return Replicate(results, records)


def _pictured(job: Job, survey: SimulatedSurvey, fit: TiltedDraws, key: Key) -> dict[str, Floats]:
    """The first set's outcomes with weights E(w|y*, x), and record bounds before and after weighting."""
    model = Lognormal.build(job, survey.crosstab, slice(0, len(survey.crosstab)))
    rows, theta = survey.crosstab.expand(), fit.parameters[0]
    y, _ = model.simulate(theta, rows, key.generator("synthesis", set=1))
    bounds = ("unweighted_record_bound", "weighted_record_bound", "privacy_weight")
    bounded = {name: np.asarray(fit.columns[name], dtype=float) for name in bounds if name in fit.columns}
    return {"outcome": y, "weight": model.expected_weight(theta, rows, y[:, None]), **bounded}


def surveyed(study: TablesStudy, case: TableCase, key: Key) -> SimulatedSurvey:
    """A sample of a simulated population, or of a public file."""
    job = job_of(study, case, key, study.mechanisms[0])
    if case.file is None:
        return placed_survey(job)
    units = units_of(study, case.file, study.key_of(case.name))
    with scratch() as folder:
        path = folder / SAMPLE
        systematic_sample(units, case.sample, key.generator("survey")).to_parquet(path)
        read = job.model_copy(update={"input": job.input.model_copy(update={"path": path})})
        return placed_survey(read, truth_of(case.file, units))


def job_of(study: TablesStudy, case: TableCase, key: Key, arm: Synthetic) -> Job:
    """The simulated release: one pooled fit, with the largest number of sets."""
    simulate = {"kind": "doctorates", "population": case.population, "sample": case.sample, "noise": case.noise}
    simulation = {"simulate": simulate | {"seed": int(key.child("survey").hex()[:12], 16)}}
    fields, sexes = (FIELDS, SEXES) if case.file is None else (case.file.fields, case.file.sexes)
    design: dict[str, object] = {"design_strata": ["field"], "population": case.population} if case.file is None else {}
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": "simulated",
            "input": simulation if case.file is None else {"path": SAMPLE},
            "columns": {
                "field": {"levels": fields},
                "sex": {"levels": sexes},
                "salary": {"bounds": [0, 1e9]},
            },
            "survey": {"weight": "weight", **design},
            "outcome": "salary",
            "model": {
                "family": "lognormal",
                "predictors": ["field", "sex"],
                "synthesis": arm.synthesis,
                "population_weights": arm.population_weights,
                "synthetic_weights": "expected" if arm.estimator == "expected_weights" else "drawn",
            },
            "mechanism": {"name": "weighted", "weights": arm.weights.model_dump()},
            "budget": {"epsilon": budget_text(study.epsilon_per_set * max(study.sets))},
            "synthetic_sets": max(study.sets),
            "sampler": {"name": "exact", "draws": study.draws},
            "tables": [{"name": "salaries", "by": ["field", "sex"], "statistics": ["count", {"mean": "salary"}]}],
        }
    )


def _yardsticks(study: TablesStudy, case: TableCase, survey: SimulatedSurvey, key: Key) -> Iterator[Result]:
    """Errors of direct estimates, without noise and with Laplace noise at the total ε of m sets.

    With `laplace` every figure has all of ε; with `laplace_composed` a record's figures share ε.
    """
    estimates = dict(zip(ALL_STATISTICS, direct(survey.totals, survey.crosstab, survey.cells), strict=True))
    values = {name: estimates[name].value for name in STATISTICS}
    df = degrees_of_freedom(survey.totals, survey.crosstab, survey.cells, SamplingDesign())
    intervals = {name: t_interval(*estimates[name], np.where(df > 0, df, np.nan)) for name in STATISTICS}
    figures = survey.cells.per_record * len(STATISTICS)
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        yield from errors_of("direct", epsilon, values, survey)
        yield from _coverage("direct", epsilon, intervals, survey)
        for how in ("laplace", "laplace_composed"):
            total = float(study.epsilon_per_set * m)
            noisy = noised(values, survey.totals, survey.cells, total, how, key.child(epsilon), "salaries", figures)
            yield from errors_of(how, epsilon, noisy, survey)
        strict = _strict(case, survey, study.epsilon_per_set * m, key.child(epsilon))
        yield from errors_of("laplace_strict", epsilon, strict, survey)


def _strict(case: TableCase, survey: SimulatedSurvey, epsilon: Fraction, key: Key) -> dict[StatisticName, Floats]:
    """Noisy clipped sums of base cells, with margins as their sums, and means within bounds."""
    bounds = CellBounds(case.weight_bound, 0.0, case.outcome_bound)
    pairs = bounds.pairs(np.minimum(survey.records.weight, bounds.weight), survey.records.outcome)
    rows, rng = len(survey.crosstab), key.generator("strict")
    noise = rng.laplace(0.0, float(noise_scale(epsilon)), (2, rows))
    sums = np.array([group_sums(survey.records.row, column, rows) for column in pairs.T]) + noise
    count, total = (survey.cells.membership @ bounds.sums(sums.T)).T
    return {"count": count, "mean": np.clip(quotient(total, count), bounds.low, bounds.high)}


def _fit(job: Job, survey: SimulatedSurvey, key: Key) -> TiltedDraws | None:
    """None if no weights meet the bound."""
    noted, model = StudyRecorder(), Lognormal.build(job, survey.crosstab, slice(0, len(survey.crosstab)))
    with scratch() as folder:
        sampler = sampler_of(job, folder)
        rounds = MECHANISMS["weighted"].protect(job, model, noted)
        try:
            released = run_rounds(rounds, model, sampler, key, POOLED, [survey.records], [noted], noise_of(key))
        except (NotReached, Improper):
            return None
    return TiltedDraws(released.parameters, float(noted.figures["database_bound"]), noted.columns)


def _synthetic(
    study: TablesStudy,
    arm: Synthetic,
    job: Job,
    survey: SimulatedSurvey,
    fit: TiltedDraws | None,
    key: Key,
    errors: dict[str, Spreads],
) -> Iterator[Result]:
    """Errors of the published tables from m sets; `errors` keeps spreads that arms share."""
    if fit is None:
        yield from (Result(arm.label, epsilon, "refused", 1.0) for epsilon in study.grid)
        return
    crosstab, cells = survey.crosstab, survey.cells
    model = Lognormal.build(job, crosstab, slice(0, len(crosstab)))
    promise = promised(MECHANISMS["weighted"].promise(job), facts(job))
    described = tuple({POOLED: model.describe(theta)} for theta in fit.parameters)
    published_object = ReleasedObject(job, promise, crosstab, described, key)
    expected = [(weight[0], product[0]) for weight, product in map(model.expect, fit.parameters)]
    sums = [_sums(model, survey, theta, key, number) for number, theta in enumerate(fit.parameters, start=1)]
    shared = f"{arm.weights.model_dump_json()} {arm.population_weights}"
    if shared not in errors:
        spreads = simulate_errors(published_object, lambda _: None, by_row=True).spreads
        errors |= {shared: spreads[0]} if spreads is not None else {}
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        release = replace(published_object, sets=described[:m])
        grounds = Grounds(expected[:m], sums[:m], errors.get(shared))
        intervals = estimates(release, cells, grounds)["parameters" if arm.estimator == "parameters" else "records"]
        tables = dict(zip(ALL_STATISTICS, intervals, strict=True))
        yield from errors_of(arm.label, epsilon, {name: tables[name].value for name in STATISTICS}, survey)
        yield from _coverage(arm.label, epsilon, tables, survey)
        if arm.estimator != "parameters":
            alone = dict(zip(ALL_STATISTICS, combined_records(release, cells, sums[:m]), strict=True))
            yield from _coverage(arm.label, epsilon, alone, survey, "_sets")
        yield Result(arm.label, epsilon, "database_bound", fit.bound)


def _sums(model: Lognormal, survey: SimulatedSurvey, theta: Draws, key: Key, number: int) -> PsuSums:
    rows = survey.crosstab.expand()
    y, w = model.simulate(theta, rows, key.generator("synthesis", set=number))
    return record_sums(rows, w, y, len(survey.crosstab))


def _coverage(
    label: str, epsilon: str, tables: Mapping[StatisticName, Interval], survey: SimulatedSurvey, whose: str = ""
) -> Iterator[Result]:
    """Share of cells, and of margins, whose interval contains the truth, among those with an estimate.

    `whose` is "" for published intervals, "_sets" for those from synthetic sets alone.
    """
    margin = np.array([TOTAL in cell for cell in survey.cells.labels])
    for name in STATISTICS:
        intervals, truth = tables[name], survey.truth[name]
        covers = ((intervals.lower <= truth) & (truth <= intervals.upper)).astype(float)
        there = np.isfinite(intervals.value) & np.isfinite(intervals.standard_error)
        yield Result(label, epsilon, f"{name}_coverage{whose}", float(covers[there].mean()))
        if not whose:
            yield Result(label, epsilon, f"{name}_coverage_margins", float(covers[there & margin].mean()))


def units_of(study: TablesStudy, file: TableFile, key: Key) -> pd.DataFrame:
    """Records with a positive outcome: field, sex, salary, and a size that grows with salary.

    Raises `StudyError` without the file, or with other columns or levels.
    """
    path = study.path_of(file.path, "cases")
    columns = {name: getattr(file, name) for name in ("field", "sex", "salary")}
    names = pq.read_schema(path).names
    if lost := [name for name in columns.values() if name not in names]:
        raise StudyError.of(
            study.study, "cases", f"no column {lost[0]} in {file.path}", ", ".join(names), "name one of them"
        )
    rows = pd.read_parquet(path, columns=list(columns.values())).rename(columns={old: new for new, old in columns.items()})
    rows = rows[rows["salary"].notna() & (rows["salary"] > 0)].reset_index(drop=True)
    units = pd.DataFrame({"field": rows["field"].astype(str), "sex": rows["sex"].astype(str)})
    for name, levels in (("field", file.fields), ("sex", file.sexes)):
        if unknown := sorted(set(units[name]) - set(levels)):
            listed = ", ".join(levels)
            raise StudyError.of(study.study, "cases", f"level {unknown[0]} of {columns[name]}", listed, "add the level")
    salary = rows["salary"].to_numpy(float)
    return units.assign(salary=salary, **{SIZE: informative_size(salary, key.generator("sizes"))})


def truth_of(file: TableFile, units: pd.DataFrame) -> Truth:
    levels = {"field": file.fields, "sex": file.sexes}
    by = units.groupby(list(levels))["salary"].agg(["size", "sum"])
    sums = by.reindex(pd.MultiIndex.from_product([*levels.values()]), fill_value=0).to_numpy(float)
    count, total = sums.T.reshape(2, len(file.fields), len(file.sexes))
    return Truth(levels, count, {"salary": total})
