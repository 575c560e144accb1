"""Finds the model of a job's mechanism: the likelihood of its family, or the statistics that get noise.

Publishing needs only these models from a mechanism. So this file loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Callable

from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts, missing
from dpdist.models.protocol import Builder

MODELS: Parts[Callable[[Job], Builder]] = Parts("model_of", *REQUIRED["model_of"])
"""By mechanism, a function of the job that returns the class of the model."""


NOISY = {
    "expect": "expected weight and weighted outcome, from which tables are made",
    "simulate": "synthetic weight and outcome",
    "resampled": "parameters of other samples; without them standard errors leave sampling out",
    "noised_again": "parameters under other noise; without them standard errors leave noise out",
}
"""Methods that a model of noisy sums must have, each with what it gives.

A model of whole tables does not need them, because such tables have standard errors of their own.
"""


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its likelihood, or the statistics that get noise.

    Raises `Incomplete` if a model of noisy sums lacks a method that publishing needs.
    """
    name, found = job.mechanism.name, MODELS[job.mechanism.name](job)
    if job.mechanism.adds_noise and not job.mechanism.whole_tables:
        for method, what in NOISY.items():
            if not hasattr(found, method):
                raise missing(name, "post", f"{getattr(found, '__name__', 'model')}.{method}", what)
    return found
