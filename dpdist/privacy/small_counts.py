"""For plan, `release`, statement: warns of small sample counts that single people out; refuses or states them."""

from __future__ import annotations

from typing import Any

from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError, Problem
from dpdist.core.records import Crosstab, SmallCounts
from dpdist.job import Job

REMEDIES = (
    "take coarser levels or fewer columns; protect the counts (budget.adjacency: add_remove{}); or state public_frame: "
    '{{accepted: "why they may be published"}}'
)
CROSSED = (
    "published, because the job states no frame_minimum: this adjacency makes the number of records in every combination "
    "of all table columns public"
)
"""Why small counts are published without a stated reason."""
FORBIDDEN = "coarser levels or fewer columns avoid them; frame_minimum: {} refuses them; public_frame states a reason"
BY_NOISY_COUNTS = ', with predictors: {protect: {epsilon: "…"}} or tables'
BY_A_REFERENCE = ", with a file or an earlier release as reference"
"""Remedy for a mechanism that can hide counts, except with histograms of the current file as reference."""


def count_small(job: Job, crosstab: Crosstab, units: SmallCounts | None = None) -> SmallCounts | None:
    """Published sample counts below the job's minimum; None if no counts are published.

    `units` holds counts by privacy units with several records, which no crosstab shows.
    """
    if job.public_counts is None:
        return None
    return units if units is not None else crosstab.below(job.least_count, job.public_counts)


def small_counts(job: Job, counts: SmallCounts | None) -> str:
    """A text on how many published counts are below the job's minimum; "" if there are none."""
    if counts is None or not counts.few:
        return ""
    if job.privacy_unit is None:
        below, of = f"below {job.least_count}", "one record"
    else:
        below, of = f"of fewer than {job.least_count} units ({job.privacy_unit.column})", "one"
    return f"{counts.few:,} of {counts.every:,} published sample counts are {below}, {counts.single:,} of them of {of}"


def cautions(job: Job, counts: SmallCounts | None) -> list[Caution]:
    """The caution of `validate` and `plan` about small counts, if there are any."""
    if not (text := small_counts(job, counts)):
        return []
    consequence, remedies = "A run refuses them.", _remedies(job)
    if job.public_frame is not None:
        consequence, remedies = f"The job accepts them: {job.public_frame.accepted}", ""
    elif _published_unasked(job):
        consequence, remedies = f"They are {CROSSED}.", FORBIDDEN.format(job.least_count)
    advice = f"{remedies[:1].upper()}{remedies[1:]}." if remedies else ""
    return [Caution.of("small_counts", counts=text, consequence=consequence, remedies=advice)]


def refuse_small_counts(job: Job, counts: SmallCounts | None) -> None:
    """Raises `JobError` for small counts, unless the job accepts them, or crosses its tables and states no minimum."""
    text = small_counts(job, counts)
    if text and job.public_frame is None and not _published_unasked(job):
        allowed = f"counts of {job.least_count} or more, or a stated reason"
        raise JobError(job.dataset, [Problem("public_frame", text, allowed, _remedies(job))])


def _published_unasked(job: Job) -> bool:
    return job.mechanism.plans_tables and job.frame_minimum is None


def _remedies(job: Job) -> str:
    paid = job.reference is not None and job.reference.histograms is not None
    return REMEDIES.format(("", BY_A_REFERENCE)[paid] if job.mechanism.own_histograms else BY_NOISY_COUNTS)


def accepted(job: Job, crosstab: Crosstab) -> dict[str, Any]:
    """The statement's entry on small counts that are published all the same. `crosstab` is the published one.

    It has no counts by privacy units, because no crosstab shows which records belong to one unit.
    """
    if job.public_counts is None or (job.public_frame is None and not _published_unasked(job)):
        return {}
    least, small = job.least_count, crosstab.below(job.least_count, job.public_counts)
    stated: dict[str, Any] = {"frame_minimum": least}
    why = CROSSED
    if job.public_frame is not None:
        stated |= {"accepted": job.public_frame.accepted}
        why = f"accepted, as the job states: {job.public_frame.accepted}"
    elif not small.few and job.privacy_unit is None:
        return {}
    if job.privacy_unit is not None:
        may = f"Published sample counts may be below {least} units ({job.privacy_unit.column})"
        return {"public_frame": {"in_words": f"{may}. They are {why}.", **stated}}
    shown = small_counts(job, small) or f"none of {small.every:,} published sample counts is below {least}"
    figures = {"counts": small.every, "below": small.few, "of_one_record": small.single}
    return {"public_frame": {"in_words": f"{shown}; {why}", **stated, **figures}}
