"""Cautions of a plan, from public facts: likely failure of a run, weak guarantee, levels without records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.records import Crosstab, first_named
from dpdist.estimation.donors import DONORS
from dpdist.estimation.estimators import margins_of
from dpdist.job import Job, budget_text, family_facts
from dpdist.job.rules import listed
from dpdist.models.copula.model import Scores
from dpdist.models.copula.shapes import FEWEST_UNMIXED
from dpdist.models.protocol import StratumModel
from dpdist.planning.plan import Plan, hidden, shown_records
from dpdist.privacy import noisy_counts
from dpdist.privacy.guarantees import large_delta
from dpdist.publish.accuracy import design_left_out
from dpdist.quality.predicted.prediction import ErrorPrediction
from dpdist.quality.predicted.words import alarms, alarms_before, proposals
from dpdist.survey.reference_file import ReferenceFile

LARGE_EPSILON = 20
OLD_REFERENCE = 10
"""A plan warns of a reference that is at least this number of years away from the job's period.

Over twenty years the distributions of weights and wages changed their shape.
"""
FEWEST_PSUS = 10
"""Without declared design strata, fewer PSU codes than this number are probably reused in every stratum."""
NAMED = 20
"""Largest number of small cells that a plan lists by name."""
WEIGHTED_BOUND = (20.0, 10.0)
"""Terms a, b: a weighted fit of p predictors needs about (a + b p) / Δ* records in a stratum."""


def cautions(plan: Plan, prediction: ErrorPrediction | None = None, workspace: str = "WORKSPACE") -> list[Caution]:
    """Every caution of a plan but those of its gates.

    Without a prediction, alarms are those of an earlier one. `workspace` is what remedies call the run's folder.
    """
    job = plan.job
    cautions_found = [
        *job.of_alias,
        *map(Caution.stated, plan.promise.cautions),
        *large_delta(job, shown_records(job, plan.crosstab)),
    ]
    cautions_found += [
        *_small_cells(plan),
        *design_left_out(job),
        *_of_reference(job),
        *(plan.reference.doubts if plan.reference is not None else ()),
    ]
    cautions_found += [*_priorities(job), *_small_totals(job, plan.crosstab)]
    if plan.promise.total.name != "none" and job.budget.epsilon > LARGE_EPSILON:
        cautions_found.append(Caution.of("weak_guarantee", epsilon=f"{float(job.budget.epsilon):g}"))
    cautions_found += plan.goodness.cautions(job) if plan.goodness is not None else []
    if not job.sizes_secret:
        cautions_found += [*_psus_of_no_stratum(plan), *_small_strata(job, plan.crosstab, plan.model, plan.promise.target)]
        cautions_found += [
            *noisy_counts.cautions(job, plan.crosstab, plan.small_counts),
            *_empty_levels(job, plan.crosstab),
        ]
    cautions_found += hidden(plan)
    cautions_found += alarms_before(plan) if prediction is None else [*alarms(prediction), *proposals(prediction)]
    return [*cautions_found, *advice(job, workspace)]


def _priorities(job: Job) -> Iterator[Caution]:
    """Priorities of tables have no effect if a mechanism measures all tables alike."""
    weighted = [table.name for table in job.tables if table.weighted]
    if weighted and not job.mechanism.uses("hierarchies"):
        yield Caution.of("priority_without_effect", mechanism=job.mechanism.name, tables=first_named(weighted))


def advice(job: Job, workspace: str = "WORKSPACE") -> Iterator[Caution]:
    """Names the commands that measure, before publication, the problems that the statement warns of."""
    if family_facts(job).law:
        yield Caution.of("fit_unseen", command=f"`dpdist report {workspace} --confidential`")
    if job.mechanism.weighting == "tuned" and job.mechanism.weights.rule != "none" and not job.frozen:
        yield Caution.of("exact_losses", command=f"`dpdist audit {workspace}`")


def _psus_of_no_stratum(plan: Plan) -> Iterator[Caution]:
    job, psus = plan.job, plan.census.psus
    if job.survey.psu is None or job.survey.design_strata or len(psus) != 1 or psus[0] >= FEWEST_PSUS:
        return
    yield Caution.of("reused_psu_codes", psu=job.survey.psu, least=FEWEST_PSUS)


def _of_reference(job: Job) -> Iterator[Caution]:
    reference = job.reference
    if reference is None or not reference.holds_records:
        if job.epsilon.histograms and "reference" not in job.model_fields_set:
            cost, epsilon = map(budget_text, (job.epsilon.histograms, job.budget.epsilon))
            yield Caution.of("no_reference", cost=cost, epsilon=epsilon)
        return
    if reference.period is None:
        yield Caution.of("reference_without_period", period=job.period)
        return
    if doubt := _doubt_of_periods(reference.period, job.period):
        yield Caution.of("periods", period=job.period, earlier=reference.period, doubt=doubt)
    if (years := _years_between(reference.period, job.period)) >= OLD_REFERENCE:
        yield Caution.of("old_reference", earlier=reference.period, years=years, period=job.period)
    if job.mechanism.sets == "copied":
        yield Caution.of("reference_published", file=f"public/released/{DONORS}")


def _small_totals(job: Job, crosstab: Crosstab) -> Iterator[Caution]:
    """Warns of public totals below a cell's number of records, because the mean weight would be below 1."""
    for margin in margins_of(job, crosstab):
        n = margin.membership @ crosstab.count
        small = [label for label, below in zip(margin.labels, margin.totals < n, strict=True) if below]
        if small:
            yield Caution.of("low_public_totals", margin=margin.by, cells=first_named(small))


def _years(period: str) -> list[int]:
    return [int(year) for year in re.findall(r"(?:19|20)[0-9]{2}", period)]


def _years_between(left: str, right: str) -> int:
    """Returns the smallest number of years between the years that two periods name; 0 if one period names no year."""
    return min((abs(a - b) for a in _years(left) for b in _years(right)), default=0)


def _doubt_of_periods(reference: str, job: str) -> str:
    """What is doubtful about the periods of a reference and of a job; empty if nothing is."""
    if reference.isdigit() and job.isdigit() and len(reference) != len(job):
        return "one of them may be misspelled"
    if re.sub("[0-9]+", "", reference) == re.sub("[0-9]+", "", job):
        numbers = (list(map(int, re.findall("[0-9]+", period))) for period in (reference, job))
        is_later = next(numbers) > next(numbers)
    else:
        is_later = min(_years(reference), default=0) > max(_years(job), default=9999)
    return "the reference is the later of the two" if is_later else ""


def _small_strata(job: Job, crosstab: Crosstab, model: StratumModel, target: float | None) -> Iterator[Caution]:
    if (
        not job.mechanism.bounded_by_weights()
        or not model.improper
        or job.mechanism.weights.rule == "none"
        or target is None
    ):
        return
    first, per_predictor = WEIGHTED_BOUND
    times = 2.0 if job.mechanism.weights.facts.uniform else 1.0  # one weight for all records, that of the worst record
    least = ceil(times * (first + per_predictor * model.identified) / target)
    small = [label for label, n in zip(crosstab.stratum_labels, crosstab.stratum_count, strict=True) if n < least]
    if small:
        smallest = int(crosstab.stratum_count.min())
        which = f"{len(small):,} strata ('{small[0]}' first)" if len(small) > 1 else f"stratum '{small[0]}'"
        numbers = {"records": f"{smallest:,}", "least": f"{least:,}"}
        yield Caution.of("small_strata", strata=which, target=f"{target:g}", **numbers)


def _small_cells(plan: Plan) -> Iterator[Caution]:
    job, crosstab, reference = plan.job, plan.crosstab, plan.reference
    if not family_facts(job).on_reference or not isinstance(reference, ReferenceFile):
        return
    small, counts = [], reference.counts(crosstab)
    for stratum, label in enumerate(crosstab.stratum_labels):
        rows = crosstab.rows_of(stratum)
        cells = Scores.build(job, crosstab, rows).cells
        records = np.bincount(cells.pattern, weights=counts[rows], minlength=len(cells)).astype(int)
        cells_below = [(cell, n) for cell, n in zip(cells.names, records.tolist(), strict=True) if n < FEWEST_UNMIXED]
        small += [f"{label} / {cell} ({n:,})" for cell, n in cells_below]
    if small:
        more = f", and {len(small) - NAMED:,} more, which the statement names" if len(small) > NAMED else ""
        names = f"{', '.join(small[:NAMED])}{more}"
        yield Caution.of("small_reference_cells", least=f"{FEWEST_UNMIXED:,}", cells=names)


def _empty_levels(job: Job, crosstab: Crosstab) -> Iterator[Caution]:
    """Lists the declared levels without a record in the sample, by column.

    A column used only for design strata is left out: its numbers have gaps, and an empty stratum adds to no figure.
    """
    columns_in_use = {
        *job.strata,
        *job.cell_columns,
        *job.likelihood_predictors,
        *(name for rake in job.rake for name in rake.by),
    }
    for name, codes in crosstab.codes.items():
        if name not in columns_in_use:
            continue
        present = set(codes[crosstab.count > 0].tolist())
        empty = [str(level) for code, level in enumerate(crosstab.levels[name]) if code not in present]
        if empty:
            numbers = {"empty": f"{len(empty):,}", "levels": f"{len(crosstab.levels[name]):,}"}
            yield Caution.of("empty_levels", column=name, names=listed(empty, 5), **numbers)
