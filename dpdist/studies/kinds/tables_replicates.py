"""Runs one replicate of a study of tables: simulates a survey, fits models, makes every arm's table, measures errors.

The rounds, models and estimators are the same as in a release; noise comes from NumPy generators with keys. All arms (a
mechanism with its settings) share the sample. Arms with the same weight rule also share the released draws. So ratios
compare errors on the same data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import POOLED, TOTAL, Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.engine.in_memory import noise_of, run_rounds
from dpdist.engine.protocol import Columns
from dpdist.estimation.direct import Design, Totals, degrees_of_freedom, direct, totals
from dpdist.estimation.estimators import STATISTICS as ALL_STATISTICS
from dpdist.estimation.estimators import Interval, Sums, group_sums, record_sums, t_interval
from dpdist.evaluation.compare import truth_in_cells
from dpdist.evaluation.laplace import noised
from dpdist.job import Job, StatisticName, budget_text
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import Draws, Improper
from dpdist.privacy.cell_sums import CellBounds, noise_scale
from dpdist.privacy.claims import promised
from dpdist.privacy.weights import NotReached
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import Spreads, spreads
from dpdist.publish.tables import Grounds, combined_records, estimates
from dpdist.sampling import facts, sampler_of
from dpdist.studies.kinds.protocol import RecordRows, Replicate, Result
from dpdist.studies.kinds.simulation_replicates import Noted
from dpdist.studies.kinds.tables_files import truth_of, units_of, write_sample
from dpdist.studies.kinds.tables_settings import STATISTICS, Synthetic, TableCase, TablesStudy
from dpdist.survey.census import take_census
from dpdist.survey.placement import place
from dpdist.survey.simulate import FIELDS, SEXES
from dpdist.survey.source import Source, open_source

SAMPLE = "sample.parquet"
"""A sample of a public file, in a folder of its own."""


@dataclass(frozen=True)
class Survey:
    """A simulated sample, the cells of the table, the truth in them, and direct totals."""

    frame: Frame
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    found: Totals


class Fit(NamedTuple):
    """Released draws for every set, the database bound Δ, and what the mechanism noted of every record."""

    parameters: Sequence[Draws]
    bound: float
    columns: Columns


def tabulate(study: TablesStudy, case: TableCase, number: int) -> Replicate:
    """Relative errors of counts and means in every cell, and coverage, by arm and by number of sets."""
    key = study.key_of(case.name, number)
    survey = surveyed(study, case, key)
    results, records = list(_yardsticks(study, case, survey, key)), list[RecordRows]()
    if number == 1:
        records.append(
            RecordRows("direct", study.grid[0], {"outcome": survey.records.outcome, "weight": survey.records.weight})
        )
    fits: dict[str, Fit | None] = {}
    known: dict[str, Spreads] = {}
    for arm in study.mechanisms:
        job = job_of(study, case, key, arm)
        rule = arm.weights.model_dump_json()
        if rule not in fits:
            fits[rule] = _fit(job, survey, key)
        results += _synthetic(study, arm, job, survey, fits[rule], key, known)
        if number == 1 and (fit := fits[rule]) is not None:
            records.append(RecordRows(arm.label, study.grid[0], _pictured(job, survey, fit, key)))
    return Replicate(results, records)


def _pictured(job: Job, survey: Survey, fit: Fit, key: Key) -> dict[str, Floats]:
    """The first set's outcomes with their smoothed weights E(w|y*, x), and the record bounds before and after."""
    model = Lognormal.build(job, survey.frame, slice(0, len(survey.frame)))
    rows, theta = survey.frame.expand(), fit.parameters[0]
    y, _ = model.simulate(theta, rows, key.generator("synthesis", set=1))
    bounds = ("unweighted_record_bound", "weighted_record_bound", "privacy_weight")
    kept = {name: np.asarray(fit.columns[name], dtype=float) for name in bounds if name in fit.columns}
    return {"outcome": y, "weight": model.expected_weight(theta, rows, y[:, None]), **kept}


def surveyed(study: TablesStudy, case: TableCase, key: Key) -> Survey:
    """The sample of a replicate: of a simulated population, or of a public file."""
    job = job_of(study, case, key, study.mechanisms[0])
    if case.file is None:
        return simulated(job)
    units = units_of(study.study, case.file, study.data, study.key_of(case.name))
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        path = Path(folder) / SAMPLE
        write_sample(path, units, case.sample, key.generator("survey"))
        read = job.model_copy(update={"input": job.input.model_copy(update={"path": path})})
        return _placed(read, open_source(read), lambda frame, cells: truth_of(units, frame, cells))


def job_of(study: TablesStudy, case: TableCase, key: Key, arm: Synthetic) -> Job:
    """Job for the release that an arm simulates: one pooled fit, with the largest number of sets."""
    simulate = {"kind": "doctorates", "population": case.population, "sample": case.sample, "noise": case.noise}
    drawn = {"simulate": simulate | {"seed": int(key.child("survey").hex()[:12], 16)}}
    fields, sexes = (FIELDS, SEXES) if case.file is None else (case.file.fields, case.file.sexes)
    design: dict[str, object] = {"design_strata": ["field"], "population": case.population} if case.file is None else {}
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": "simulated",
            "input": drawn if case.file is None else {"path": SAMPLE},
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


def simulated(job: Job) -> Survey:
    source = open_source(job)
    truth = source.truth
    assert truth is not None
    return _placed(job, source, lambda frame, _: truth_in_cells(truth, job, job.tables[0], frame))


def _placed(job: Job, source: Source, truth: Callable[[Frame, Cells], dict[str, Floats]]) -> Survey:
    """A sample's records in their frame; `truth` gives the population's figures in the table's cells."""
    census = take_census(job, source)
    frame = census.frame
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place(job, source, census, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        records = Records(*fields)
    said = job.tables[0]
    cells = cross(frame, said.by, said.margins)
    return Survey(frame, records, cells, truth(frame, cells), totals([records], frame, clustered=False))


def _yardsticks(study: TablesStudy, case: TableCase, survey: Survey, key: Key) -> Iterator[Result]:
    """Errors of direct estimates, without noise and with Laplace noise at the total ε of m sets.

    With `laplace` every figure has all of ε; with `laplace_composed` a record's figures share it.
    """
    found = dict(zip(ALL_STATISTICS, direct(survey.found, survey.frame, survey.cells), strict=True))
    values = {name: found[name].value for name in STATISTICS}
    df = degrees_of_freedom(survey.found, survey.frame, survey.cells, Design())
    intervals = {name: t_interval(*found[name], np.where(df > 0, df, np.nan)) for name in STATISTICS}
    figures = survey.cells.per_record * len(STATISTICS)
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        yield from errors_of("direct", epsilon, values, survey)
        yield from _coverage("direct", epsilon, intervals, survey)
        for how in ("laplace", "laplace_composed"):
            total = float(study.epsilon_per_set * m)
            noisy = noised(values, survey.found, survey.cells, total, how, key.child(epsilon), "salaries", figures)
            yield from errors_of(how, epsilon, noisy, survey)
        strict = _strict(case, survey, study.epsilon_per_set * m, key.child(epsilon))
        yield from errors_of("laplace_strict", epsilon, strict, survey)


def _strict(case: TableCase, survey: Survey, epsilon: Fraction, key: Key) -> dict[StatisticName, Floats]:
    """Noisy clipped sums of base cells, with margins as sums of these.

    A mean beyond its bounds is set to the nearest bound.
    """
    bounds = CellBounds(case.weight_bound, 0.0, case.outcome_bound)
    pairs = bounds.pairs(np.minimum(survey.records.weight, bounds.weight), survey.records.outcome)
    rows, rng = len(survey.frame), key.generator("strict")
    noise = rng.laplace(0.0, float(noise_scale(epsilon)), (2, rows))
    sums = np.array([group_sums(survey.records.frame, column, rows) for column in pairs.T]) + noise
    count, total = (survey.cells.membership @ bounds.sums(sums.T)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"count": count, "mean": np.clip(total / count, bounds.low, bounds.high)}


def _fit(job: Job, survey: Survey, key: Key) -> Fit | None:
    """Fits the model under the arm's weights; None where no weights meet the bound."""
    noted, model = Noted(), Lognormal.build(job, survey.frame, slice(0, len(survey.frame)))
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        sampler = sampler_of(job, Path(folder))
        rounds = MECHANISMS["weighted"].protect(job, model, noted)
        try:
            released = run_rounds(rounds, model, sampler, key, POOLED, [survey.records], [noted], noise_of(key))
        except (NotReached, Improper):
            return None
    return Fit(released.parameters, float(noted.found["database_bound"]), noted.columns)


def _synthetic(
    study: TablesStudy,
    arm: Synthetic,
    job: Job,
    survey: Survey,
    fit: Fit | None,
    key: Key,
    known: dict[str, Spreads],
) -> Iterator[Result]:
    """Errors of the tables from m sets, as a release publishes them.

    `known` keeps the spreads that arms share, by weight rule and population weights.
    """
    if fit is None:
        yield from (Result(arm.label, epsilon, "refused", 1.0) for epsilon in study.grid)
        return
    frame, cells = survey.frame, survey.cells
    model = Lognormal.build(job, frame, slice(0, len(frame)))
    promise = promised(MECHANISMS["weighted"].promise(job), facts(job))
    described = tuple({POOLED: model.describe(theta)} for theta in fit.parameters)
    whole = ReleasedObject(job, promise, frame, described, key)
    expected = [(weight[0], product[0]) for weight, product in map(model.expect, fit.parameters)]
    sums = [_sums(model, survey, theta, key, number) for number, theta in enumerate(fit.parameters, start=1)]
    shared = f"{arm.weights.model_dump_json()} {arm.population_weights}"
    if shared not in known and (found := spreads(whole, lambda _: None)) is not None:
        known[shared] = found[0]
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        release = replace(whole, sets=described[:m])
        grounds = Grounds(expected[:m], sums[:m], known.get(shared))
        intervals = estimates(release, cells, grounds)["parameters" if arm.estimator == "parameters" else "records"]
        tables = dict(zip(ALL_STATISTICS, intervals, strict=True))
        yield from errors_of(arm.label, epsilon, {name: tables[name].value for name in STATISTICS}, survey)
        yield from _coverage(arm.label, epsilon, tables, survey)
        if arm.estimator != "parameters":
            alone = dict(zip(ALL_STATISTICS, combined_records(release, cells, sums[:m]), strict=True))
            yield from _coverage(arm.label, epsilon, alone, survey, "_sets")
        yield Result(arm.label, epsilon, "database_bound", fit.bound)


def _sums(model: Lognormal, survey: Survey, theta: Draws, key: Key, number: int) -> Sums:
    """Sums of one synthetic set's records."""
    rows = survey.frame.expand()
    y, w = model.simulate(theta, rows, key.generator("synthesis", set=number))
    return record_sums(rows, w, y, len(survey.frame))


def _coverage(
    label: str, epsilon: str, tables: Mapping[StatisticName, Interval], survey: Survey, whose: str = ""
) -> Iterator[Result]:
    """The share of cells, and of margins, whose interval contains the truth. Cells without an estimate are left out.

    `whose` is "" for published intervals, and "_sets" for those that a user computes from the synthetic sets alone.
    """
    margin = np.array([TOTAL in cell for cell in survey.cells.labels])
    for name in STATISTICS:
        found, truth = tables[name], survey.truth[name]
        held = ((found.lower <= truth) & (truth <= found.upper)).astype(float)
        there = np.isfinite(found.value) & np.isfinite(found.standard_error)
        yield Result(label, epsilon, f"{name}_coverage{whose}", float(held[there].mean()))
        if not whose:
            yield Result(label, epsilon, f"{name}_coverage_margins", float(held[there & margin].mean()))


def errors_of(label: str, epsilon: str, values: Mapping[StatisticName, Floats], survey: Survey) -> Iterator[Result]:
    """(estimate − truth)/truth in each cell. A cell without a record in the sample has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
