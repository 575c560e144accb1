"""The model of a pseudo posterior: the likelihood of the job's family."""

from __future__ import annotations

from dpdist.job import Job
from dpdist.models import LIKELIHOODS
from dpdist.models.protocol import Builder


def model_of(job: Job) -> Builder:
    """The likelihood that a job states."""
    return LIKELIHOODS[job.likelihood.family]
