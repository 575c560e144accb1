"""One replicate of a study of tables: simulate a survey, fit once under every weight rule, tabulate every way.

The rounds, models and estimators are those of a release; noise is keyed NumPy. Arms of one rule share the released draws,
and all share the sample: ratios are of paired errors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpdist.cells import Cells, cross
from dpdist.estimates import Estimate, Figures, combine_sets, counts_and_means, group_sums, record_sums
from dpdist.evaluation.compare import truth_in_cells
from dpdist.evaluation.laplace import noised
from dpdist.job import Job, budget_text
from dpdist.keys import Key
from dpdist.mechanisms.presets import MECHANISMS
from dpdist.models.lognormal import Lognormal
from dpdist.models.protocol import Draws, Improper
from dpdist.privacy.cell_sums import CellBounds, noise_scale
from dpdist.privacy.weights import NotReached
from dpdist.publish.precision import cell_estimates
from dpdist.records import POOLED, Floats, Frame, Records
from dpdist.runtime.rounds import run_rounds
from dpdist.sampling import sampler_of
from dpdist.studies.replicate import Noted, Replicate, Result, noise_of
from dpdist.studies.tabulated import STATISTICS, Synthetic, TableCase, Tabulated
from dpdist.survey.direct import Totals, direct, totals
from dpdist.survey.prepare import place, take_census
from dpdist.survey.simulate import FIELDS, SEXES
from dpdist.survey.source import open_source


@dataclass(frozen=True)
class Survey:
    """A simulated sample, the table's cells and the truth in them."""

    frame: Frame
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    found: Totals


def tabulate(study: Tabulated, case: TableCase, number: int) -> Replicate:
    """Relative errors of counts and means of every cell, and coverage, by arm and number of sets."""
    key = Key(study.seed.to_bytes(32, "big")).child(case.name).child(str(number))
    survey = simulated(job_of(study, case, key, study.mechanisms[0]))
    results = list(_yardsticks(study, case, survey, key))
    fits: dict[str, tuple[Sequence[Draws], float] | None] = {}
    for arm in study.mechanisms:
        job = job_of(study, case, key, arm)
        model = Lognormal.build(job, survey.frame, slice(0, len(survey.frame)))
        rule = arm.weights.model_dump_json()
        if rule not in fits:
            fits[rule] = _fit(job, model, survey, key)
        results += _synthetic(study, arm, model, survey, fits[rule], key)
    return Replicate(results, [])


def job_of(study: Tabulated, case: TableCase, key: Key, arm: Synthetic) -> Job:
    """The release that an arm is of: one pooled fit with the largest number of sets."""
    simulate = {"kind": "doctorates", "population": case.population, "sample": case.sample, "noise": case.noise}
    return Job.model_validate(
        {
            "dataset": study.study,
            "period": "simulated",
            "input": {"simulate": simulate | {"seed": int(key.child("survey").hex()[:12], 16)}},
            "columns": {
                "field": {"levels": FIELDS},
                "sex": {"levels": SEXES},
                "salary": {"bounds": [0, 1e9]},
            },
            "survey": {"weight": "weight", "design_strata": ["field"], "population": case.population},
            "model": {
                "family": "lognormal",
                "outcome": "salary",
                "predictors": ["field", "sex"],
                "synthesis": arm.synthesis,
                "population_weights": arm.population_weights,
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
    frame = take_census(job, source).frame
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place(job, source, take_census(job, source), Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcome", "weight", "psu"))
        records = Records(*fields)
    said = job.tables[0]
    cells = cross(frame, said.by, said.margins)
    assert source.truth is not None
    truth = truth_in_cells(source.truth, job, said, frame)
    return Survey(frame, records, cells, truth, totals([records], frame, clustered=False))


def _yardsticks(study: Tabulated, case: TableCase, survey: Survey, key: Key) -> Iterator[Result]:
    """Direct estimates, and with Laplace noise at the total ε of m sets: all of it in every figure, or shared."""
    values = {name: e.value for name, e in zip(STATISTICS, direct(survey.found, survey.frame, survey.cells), strict=False)}
    figures = survey.cells.per_record * len(STATISTICS)
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        yield from _errors("direct", epsilon, values, survey)
        for how in ("laplace", "laplace_composed"):
            total = float(study.epsilon_per_set * m)
            noisy = noised(values, survey.found, survey.cells, total, how, key.child(epsilon), "salaries", figures)
            yield from _errors(how, epsilon, noisy, survey)
        strict = _strict(case, survey, study.epsilon_per_set * m, key.child(epsilon))
        yield from _errors("laplace_strict", epsilon, strict, survey)


def _strict(case: TableCase, survey: Survey, epsilon: Fraction, key: Key) -> dict[str, Floats]:
    """Clipped sums of the finest cells with noise, margins added; a mean outside its bounds is set to the nearest."""
    bounds = CellBounds(case.weight_bound, 0.0, case.outcome_bound)
    pairs = bounds.pairs(survey.records.weight, survey.records.outcome)
    rows, rng = len(survey.frame), key.generator("strict")
    noise = rng.laplace(0.0, float(noise_scale(epsilon)), (2, rows))
    sums = np.array([group_sums(survey.records.frame, column, rows) for column in pairs.T]) + noise
    count, total = (survey.cells.membership @ bounds.sums(sums.T)).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"count": count, "mean": np.clip(total / count, bounds.low, bounds.high)}


def _fit(job: Job, model: Lognormal, survey: Survey, key: Key) -> tuple[Sequence[Draws], float] | None:
    """Released draws of every set and Δ; None where no weights reach the bound."""
    noted = Noted()
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        sampler = sampler_of(job, Path(folder))
        rounds = MECHANISMS["weighted"].protect(job, model, noted)
        try:
            released = run_rounds(rounds, model, sampler, key, POOLED, [survey.records], [noted], noise_of(key))
        except (NotReached, Improper):
            return None
    return released.parameters, float(noted.found["database_bound"])


def _synthetic(
    study: Tabulated, arm: Synthetic, model: Lognormal, survey: Survey, fit: tuple[Sequence[Draws], float] | None, key: Key
) -> Iterator[Result]:
    if fit is None:
        yield from (Result(arm.label, epsilon, "refused", 1.0) for epsilon in study.grid)
        return
    per_set = [_estimates(arm, model, survey, theta, key, k) for k, theta in enumerate(fit[0], start=1)]
    df = float(len(survey.records) - len(FIELDS))
    for m, epsilon in zip(study.sets, study.grid, strict=True):
        values, covered = {}, {}
        for i, statistic in enumerate(STATISTICS):
            points = np.array([estimates[i].value for estimates in per_set[:m]])
            combined = combine_sets(points, np.array([estimates[i].variance for estimates in per_set[:m]]), df)
            values[statistic] = combined.value
            truth = survey.truth[statistic]
            covered[statistic] = (combined.lower <= truth) & (truth <= combined.upper)
        yield from _errors(arm.label, epsilon, values, survey)
        if arm.estimator != "parameters":
            yield from (Result(arm.label, epsilon, f"{name}_coverage", float(in_.mean())) for name, in_ in covered.items())
        yield Result(arm.label, epsilon, "database_bound", fit[1])


def _estimates(arm: Synthetic, model: Lognormal, survey: Survey, theta: Draws, key: Key, number: int) -> Figures:
    """Counts and means of one set."""
    frame = survey.frame
    if arm.estimator == "parameters":
        weight, product = model.expect(theta)
        points = cell_estimates(survey.cells, frame.count.astype(float), weight, product)
        count, mean, total = (Estimate(values[0], np.full(len(survey.cells), np.nan)) for values in points)
        return count, mean, total
    rows = frame.expand()
    y, w = model.simulate(theta, rows, key.generator("synthesis", set=number))
    if arm.estimator == "expected_weights":
        w = model.expected_weight(theta, rows, y)
    return counts_and_means(record_sums(rows, w, y, len(frame)), frame, survey.cells)


def _errors(label: str, epsilon: str, values: dict[str, Floats], survey: Survey) -> Iterator[Result]:
    """(estimate − truth)/truth per cell; a cell without a record in the sample has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
