"""Checks what a job takes from earlier periods: its reference, its calibration, and limits on a family's fit."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import LEAST_BUDGET, TOO_LITTLE, Fit, Job, those
from dpdist.job.contradiction import Contradiction
from dpdist.job.families import parametric


def reference(job: Job) -> Iterator[Contradiction]:
    """A mechanism that needs a reference must have one, and one that would not use it must not."""
    mechanism, name, said = job.mechanism, job.mechanism.name, job.reference
    if mechanism.needs_reference and said is None:
        found = f"'{name}' {mechanism.needs_reference} of a public file"
        yield Contradiction(("reference",), found, "add reference: {path: …}")
    scored = job.family == "scores"
    if scored and said is None:
        why = "'scores' places values in the distributions of a public file"
        yield Contradiction(("reference",), why, "add reference: {path: …}, or take family: lognormal")
    if said is None and any(how in job.compare for how in ("laplace_finest", "reference_only")):
        yield Contradiction(
            ("compare",),
            "laplace_finest and reference_only need a reference",
            "add reference: {path: …}, or leave them out",
        )
    if said is not None and not mechanism.takes_reference and (mechanism.clamps or not scored):
        known = those(lambda each: each.takes_reference)
        yield Contradiction(
            ("reference",), f"'{name}' fixes nothing on a reference", f"leave it out, or take {' or '.join(known)}"
        )
    if said is not None and said.unnamed:
        yield Contradiction(("reference", "path"), "no file is named", "add path, an earlier period's file that is public")
    yield from release_or_histogram(job)
    if said is not None and said.period == job.period:
        yield Contradiction(
            ("reference", "period"), f"it is of period {said.period}, the job's own", "take an earlier period's file"
        )


def fit(job: Job) -> Iterator[Contradiction]:
    """Limits on a family's fit need a reference with records, on which the fit is measured."""
    if job.fit == Fit():
        return
    said = job.reference
    if said is None or not said.holds_records:
        found = "a family's fit is measured on the records of a reference, and the job names none"
        yield Contradiction(("fit",), found, "add reference: {path: …}, or leave fit out")
    elif not parametric(job.family):
        found = f"'{job.model_name}' is no parametric law that could be fitted to the reference without a Markov chain"
        yield Contradiction(("fit",), found, "leave fit out")


def release_or_histogram(job: Job) -> Iterator[Contradiction]:
    """An earlier release, or histograms of the current file, serve as a reference for some mechanisms and settings only."""
    said, name = job.reference, job.mechanism.name
    if said is None or said.holds_records:
        return
    if not job.mechanism.own_histograms:
        yield Contradiction(("reference",), f"'{name}' is fixed on records", "name a public file under reference.path")
    if said.earlier is not None and said.period is not None:
        yield Contradiction(("reference", "period"), "an earlier release tells its own period", "leave it out")
    if said.paid is None:
        return
    if said.paid.epsilon >= job.budget.epsilon:
        found = "the histograms take the release's whole budget, which budget.epsilon states"
        yield Contradiction(("reference", "histogram", "epsilon"), found, "spend a part of it, a third as a rule")
    elif 0 < job.epsilon_of_tables / job.most_records < LEAST_BUDGET:
        found = f"the histograms leave less than 1e-6 for the table, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), found, "give the histograms less, or raise epsilon")
    elif said.paid.epsilon / job.most_records < LEAST_BUDGET:
        found = f"{job.most_records} records of a unit leave less than 1e-6 for each, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), found, "give the histograms more")
    if not said.known_before:
        yield from _histogram_alone(job)
    elif job.survey.weight is None and all(column.two_valued for column in job.outcome_columns.values()):
        found = "without a weight, an outcome of two values has no shape that could be brought up to date"
        yield Contradiction(("reference", "histogram"), found, "leave it out")


def _histogram_alone(job: Job) -> Iterator[Contradiction]:
    """Histograms of the current file have no period, and cannot serve comparators that need an earlier file."""
    if job.reference is not None and job.reference.period is not None:
        yield Contradiction(("reference", "period"), "histograms are of the current file", "leave it out")
    if any(how in job.compare for how in ("laplace_finest", "reference_only")):
        yield Contradiction(
            ("compare",), "laplace_finest and reference_only need a file or an earlier release", "leave them out"
        )
    weight = job.survey.weight
    bounds = job.columns[weight].bounds if weight in job.columns else (0.0, 1.0)
    if weight is not None and (weight not in job.columns or bounds is None or bounds[0] < 0):
        found = "histograms, which stand in for a reference, need public bounds of the weight, from 0 or above"
        remedy = f"add {weight}: {{bounds: [1, …], outside: clip}} to columns, or add reference: {{path: …}}"
        yield Contradiction(("columns", weight), found, remedy)


def calibration(job: Job) -> Iterator[Contradiction]:
    """A calibration must be for this job's data, model, mechanism and budget, and from another period."""
    said = job.calibration
    if said is None:
        return
    for name in (
        "dataset",
        "columns",
        "universe",
        "survey",
        "strata",
        "outcome",
        "model",
        "budget",
        "synthetic_sets",
        "privacy_unit",
    ):
        if getattr(said, name) != getattr(job, name):
            yield Contradiction(
                ("calibration",), f"it was made for another {name}", "calibrate this job on a reference period"
            )
    if said.mechanism.name != job.mechanism.name or said.mechanism.weights.rule != job.mechanism.weights.rule:
        yield Contradiction(
            ("calibration",), "it was made for another mechanism or weight rule", "calibrate this job on a reference period"
        )
    if said.referring != (job.reference is not None):
        with_or_without = "with" if said.referring else "without"
        yield Contradiction(
            ("calibration",), f"it was made {with_or_without} a reference", "give the job the same, or calibrate it anew"
        )
    if said.period == job.period:
        yield Contradiction(
            ("calibration",), f"it was tuned on period {said.period}, the job's own", "tune on an earlier period"
        )
