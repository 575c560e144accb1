"""Which model a job's mechanism fits or sums by: its family's likelihood, or the statistics that it adds noise to.

Publishing needs these models and nothing else of a mechanism. So this file loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Callable

from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts
from dpdist.models.protocol import Builder

MODELS: Parts[Callable[[Job], Builder]] = Parts("release", *REQUIRED["release"])


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its likelihood's, or that of the statistics that noise is added to."""
    return MODELS[job.mechanism.name](job)
