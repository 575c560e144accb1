"""Chooses the model of a job under MODIPS: counts of levels or moments, by the job's law."""

from __future__ import annotations

from dpdist.job import Job
from dpdist.mechanisms.modips.levels import LevelCounts
from dpdist.mechanisms.modips.moments import Moments
from dpdist.mechanisms.modips.spec import Modips


def model_of(job: Job) -> type[LevelCounts | Moments]:
    """The model whose sums are sufficient for the job's law."""
    assert isinstance(job.mechanism, Modips)
    return LevelCounts if job.mechanism.counted else Moments
