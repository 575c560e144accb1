"""Warnings for plan and report, from public facts: likely failure of a run, weak guarantee, levels without records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

import numpy as np

from dpdist.approval.acceptance import cautions as of_gates
from dpdist.cli.table_text import PUBLISHED_TOO
from dpdist.core.records import TOTAL, Frame
from dpdist.core.table_cells import cross, first_named
from dpdist.estimation.estimators import STATISTICS
from dpdist.estimation.raking import margins_of
from dpdist.job import Job
from dpdist.job.families import family_facts
from dpdist.models.copula.model import Scores
from dpdist.models.copula.shapes import FEWEST_UNMIXED
from dpdist.models.protocol import StratumModel
from dpdist.planning.plan import Plan, doubts_of
from dpdist.privacy import small_counts
from dpdist.publish.accuracy import design_left_out
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


def cautions(plan: Plan) -> Iterator[str]:
    """Yields warnings as sentences. None of them refuses a job."""
    job = plan.job
    yield from _small_cells(plan)
    yield from (f"{caution}. State survey.design_effect: {_effect(job)}" for caution in design_left_out(job))
    yield from _of_reference(job)
    yield from doubts_of(plan.reference)
    yield from _left_blank(job)
    yield from _priorities(job)
    yield from _small_totals(job, plan.frame)
    yield from of_gates(job)
    if plan.promise.total.name != "none" and job.budget.epsilon > LARGE_EPSILON:
        yield f"ε = {float(job.budget.epsilon):g} is a weak guarantee: odds may change by a factor of e^ε"
    if plan.goodness is not None:
        remedy = "" if plan.goodness.score is None else ". Take reference_tables, or a family that fits"
        yield from (f"{caution}{remedy}" for caution in plan.goodness.cautions(job))
    if not job.sizes_secret:
        yield from _psus_of_no_stratum(plan)
        yield from _small_strata(job, plan.frame, plan.model, plan.promise.target)
        yield from filter(None, [small_counts.caution(job, plan.small_counts)])
        yield from _empty_levels(job, plan.frame)


def _priorities(job: Job) -> Iterator[str]:
    """Priorities of tables have no effect if a mechanism measures all tables alike."""
    weighted = [table.name for table in job.tables if table.weighted]
    if weighted and not job.mechanism.prioritises:
        tables = f"{first_named(weighted)} {'has' if len(weighted) == 1 else 'have'} no effect"
        yield f"'{job.mechanism.name}' measures all tables alike: the priority, or error, of {tables}"


def advice(job: Job, workspace: str = "WORKSPACE") -> Iterator[str]:
    """Names the commands that measure, before publication, the problems that the statement warns of."""
    if family_facts(job).law:
        shown = f"`dpdist report {workspace} --confidential`"
        yield f"how well the law fits stands in the evaluation: look at {shown} before publishing"
    if job.mechanism.tunes_weights and job.mechanism.weights.rule != "none" and not job.frozen:
        yield f"`dpdist audit {workspace}` measures the exact losses of records on this file"


def _effect(job: Job) -> str:
    reference = job.reference
    of_reference = reference is not None and reference.file is not None
    return "`reference`, which estimates it from the reference's records" if of_reference else "a public figure of it"


def _psus_of_no_stratum(plan: Plan) -> Iterator[str]:
    job, psus = plan.job, plan.census.psus
    if job.survey.psu is None or job.survey.design_strata or len(psus) != 1 or psus[0] >= FEWEST_PSUS:
        return
    yield (
        f"'{job.survey.psu}' has fewer than {FEWEST_PSUS} codes, and no design stratum is named. If codes begin again in "
        "every stratum, as 1 and 2 do in many files, they are taken for the same PSU: name survey.design_strata"
    )


def _of_reference(job: Job) -> Iterator[str]:
    reference = job.reference
    if reference is None or not reference.holds_records:
        return
    if reference.period is None:
        yield (
            f"the reference states no period, so nothing checks that it is of another one than {job.period}: add period "
            "and provenance to reference"
        )
    elif (years := _years_between(reference.period, job.period)) >= OLD_REFERENCE:
        yield (
            f"the reference is of {reference.period}, {years} years from {job.period}: weights and outcomes may have "
            "changed their shape, which dpdist rehearse cannot see. Noisy histograms cost epsilon and do not rely on that "
            "shape"
        )
    if job.mechanism.donates:
        yield PUBLISHED_TOO


def _left_blank(job: Job) -> Iterator[str]:
    named = {
        table.name: [statistic.text for statistic in table.statistics if statistic.name not in STATISTICS]
        for table in job.tables
    }
    shown = "; ".join(f"{name}: {', '.join(statistics)}" for name, statistics in named.items() if statistics)
    if job.on_histograms and shown:
        yield (
            "without a reference, these statistics have no estimate in each cell that its noisy sums do not identify. In "
            f"margins over it, quantiles have wider intervals, and others are left blank, too ({shown}). Which cells these "
            "are shows only in the run. An earlier public file as reference avoids it; so may strata in which weights are "
            "alike"
        )


def _small_totals(job: Job, frame: Frame) -> Iterator[str]:
    """Warns of public totals below a cell's number of records, because the mean weight would be below 1."""
    for rake, margin in zip(job.rake, margins_of(job, frame), strict=True):
        n = margin.membership @ frame.count
        labels = [" / ".join(label) or TOTAL for label in cross(frame, rake.by, False).labels]
        small = [label for label, below in zip(labels, margin.totals < n, strict=True) if below]
        if small:
            yield (
                f"rake, {', '.join(rake.by) or 'all records'}: public totals are below the number of records in the sample "
                f"({first_named(small)}). Weights would be below 1 in the mean: check the totals' unit and population"
            )


def _years_between(one: str, other: str) -> int:
    """Returns the smallest number of years between the years that two periods name; 0 if one period names no year."""
    first, second = ([int(year) for year in re.findall(r"(?:19|20)[0-9]{2}", period)] for period in (one, other))
    return min((abs(a - b) for a in first for b in second), default=0)


def _small_strata(job: Job, frame: Frame, model: StratumModel, target: float | None) -> Iterator[str]:
    if (
        not (job.mechanism.tunes_weights or job.mechanism.cuts_weights)
        or not model.improper
        or job.mechanism.weights.rule == "none"
        or target is None
    ):
        return
    first, per_predictor = WEIGHTED_BOUND
    times = 2.0 if job.mechanism.weights.facts.uniform else 1.0  # one weight for all records, that of the worst record
    least = ceil(times * (first + per_predictor * model.identified) / target)
    small = [label for label, n in zip(frame.stratum_labels, frame.stratum_count, strict=True) if n < least]
    if small:
        smallest = int(frame.stratum_count.min())
        which = f"{len(small):,} strata ('{small[0]}' first)" if len(small) > 1 else f"stratum '{small[0]}'"
        ways = "pool strata, drop predictors, take model.prior: {name: proper}, or raise the budget"
        yield (
            f"{which}: {smallest:,} records probably cannot reach Δ* = {target:g}, and the run would be refused; "
            f"about {least:,} are needed: {ways}"
        )


def _small_cells(plan: Plan) -> Iterator[str]:
    job, frame, reference = plan.job, plan.frame, plan.reference
    if not family_facts(job).on_reference or not isinstance(reference, ReferenceFile):
        return
    small, counts = [], reference.counts(frame)
    for stratum, label in enumerate(frame.stratum_labels):
        rows = frame.rows_of(stratum)
        cells = Scores.build(job, frame, rows).cells
        records = np.bincount(cells.pattern, weights=counts[rows], minlength=len(cells)).astype(int)
        few = [(cell, n) for cell, n in zip(cells.names, records.tolist(), strict=True) if n < FEWEST_UNMIXED]
        small += [f"{label} / {cell} ({n:,})" for cell, n in few]
    if small:
        more = f", and {len(small) - NAMED:,} more, which the statement names" if len(small) > NAMED else ""
        yield (
            f"cells with fewer than {FEWEST_UNMIXED:,} reference records take part of their distributions from cells like "
            f"them: {', '.join(small[:NAMED])}{more}"
        )


def _empty_levels(job: Job, frame: Frame) -> Iterator[str]:
    """Lists the declared levels without a record in the sample, by column.

    A column used only for design strata is left out: its numbers have gaps, and an empty stratum adds to no figure.
    """
    used = {*job.strata, *job.cell_columns, *job.likelihood_predictors, *(name for rake in job.rake for name in rake.by)}
    for name, codes in frame.codes.items():
        if name not in used:
            continue
        met = set(codes[frame.count > 0].tolist())
        empty = [str(level) for code, level in enumerate(frame.levels[name]) if code not in met]
        if empty:
            shown = ", ".join(empty[:5]) + (", …" if len(empty) > 5 else "")
            yield f"'{name}' has {len(empty):,} of {len(frame.levels[name]):,} levels without a record: {shown}"
