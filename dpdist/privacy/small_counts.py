"""Sample counts so small that publishing them singles people out: what is said of them, and the refusal of a run."""

from __future__ import annotations

from typing import Any

from dpdist.core.errors import JobError, Problem
from dpdist.core.records import Frame
from dpdist.job import Job

REMEDIES = (
    "take coarser levels or fewer columns; protect the counts (budget.adjacency: add_remove, with predictors: {protect: "
    '{epsilon: "…"}} or reference_tables); or state public_frame: {accepted: "why they may be published"}'
)


def small_counts(job: Job, frame: Frame) -> str:
    """How many published counts are below the job's minimum; empty where there are none, or none is published."""
    if _secret(job):
        return ""
    few, single, every = frame.below(job.frame_minimum, _by(job))
    if not few:
        return ""
    return f"{few:,} of {every:,} published sample counts are below {job.frame_minimum}, {single:,} of them of one record"


def caution(job: Job, frame: Frame) -> str:
    """What `validate` and `plan` say of them; empty where there is nothing to say."""
    if not (found := small_counts(job, frame)):
        return ""
    shown = f"{found}: who knows that person reads off its columns"
    if job.public_frame is not None:
        return f"{shown}; the job accepts them: {job.public_frame.accepted}"
    return f"{shown}, and a run refuses; {REMEDIES}"


def refuse_small_counts(job: Job, frame: Frame) -> None:
    """Raises `JobError` where small counts would be published and the job does not accept them with a reason."""
    found = small_counts(job, frame)
    if found and job.public_frame is None:
        allowed = f"counts of {job.frame_minimum} or more, or a stated reason"
        raise JobError(job.dataset, [Problem("public_frame", found, allowed, REMEDIES)])


def accepted(job: Job, frame: Frame) -> dict[str, Any]:
    """The statement's entry, where the job accepts small counts; `frame` is the published one."""
    if job.public_frame is None or _secret(job):
        return {}
    few, single, every = frame.below(job.frame_minimum, _by(job))
    reason = job.public_frame.accepted
    shown = small_counts(job, frame) or f"none of {every:,} published sample counts is below {job.frame_minimum}"
    figures = {"frame_minimum": job.frame_minimum, "counts": every, "below": few, "of_one_record": single}
    return {"public_frame": {"in_words": f"{shown}; accepted, as the job states: {reason}", **figures, "accepted": reason}}


def _secret(job: Job) -> bool:
    """True if no exact count is published by any column."""
    return job.sizes_secret and not _by(job)


def _by(job: Job) -> tuple[str, ...] | None:
    """Columns by which counts are exact where the others are protected; None: by all."""
    return job.counted_columns if job.predictors is not None else None
