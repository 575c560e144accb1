"""Lists the mechanisms that a job may name; a mechanism's `protect.py` is loaded on first use."""

from __future__ import annotations

from dpdist.engine.protocol import Mechanism
from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts, check

MECHANISMS: Parts[Mechanism] = Parts("protect", *REQUIRED["protect"])


def mechanism_of(job: Job) -> Mechanism:
    """The mechanism that a job names; raises `Incomplete` if one of its parts is missing."""
    check(job.mechanism.name)
    return MECHANISMS[job.mechanism.name]
