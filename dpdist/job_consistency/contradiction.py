"""A contradiction, and what several checks ask of a job."""

from __future__ import annotations

from dpdist.job import LAPLACE, Job

Path = tuple[str | int, ...]
Contradiction = tuple[Path, str]
"""Path in the job, and "what is wrong: how to mend it"."""


def declared(job: Job) -> tuple[str, ...]:
    """Outcomes that stand in columns."""
    return tuple(name for name in job.model.outcomes if name in job.columns)


def clips(job: Job) -> bool:
    """True if the mechanism clips weights and outcomes to public bounds, before it adds them up."""
    return job.mechanism.name == "laplace_strict" or (job.mechanism.name in LAPLACE and not job.local)


def limits(job: Job) -> bool:
    """True if the mechanism clips weights at limits of its reference, whatever bounds the job declares."""
    return job.mechanism.name in ("reference_tables", "sanitized_statistics")
