"""The model of a job under MODIPS: counts of levels, or moments, by the job's law."""

from __future__ import annotations

from dpdist.job import Job, Modips
from dpdist.mechanisms.modips.levels import LevelCounts
from dpdist.mechanisms.modips.moments import Moments


def model_of(job: Job) -> type[LevelCounts | Moments]:
    """The sums that are sufficient for the job's law."""
    assert isinstance(job.mechanism, Modips)
    return LevelCounts if job.mechanism.counted else Moments
