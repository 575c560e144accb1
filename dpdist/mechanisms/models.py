"""Finds the model of a job's mechanism: its family's likelihood, or the statistics that get noise.

Publishing needs only these models from a mechanism. So this file loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Callable

from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts
from dpdist.models.protocol import Builder

MODELS: Parts[Callable[[Job], Builder]] = Parts("release", *REQUIRED["release"])


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its likelihood, or the statistics that get noise."""
    return MODELS[job.mechanism.name](job)
