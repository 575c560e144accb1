"""Named mechanisms: what a job may name. A mechanism's `protect.py` is loaded when the mechanism is asked for."""

from __future__ import annotations

from dpdist.engine.protocol import Mechanism
from dpdist.job import Job
from dpdist.mechanisms.parts import REQUIRED, Parts, check

MECHANISMS: Parts[Mechanism] = Parts("protect", *REQUIRED["protect"])


def mechanism_of(job: Job) -> Mechanism:
    """The mechanism that a job names; raises `Incomplete` where one of its parts is missing."""
    check(job.mechanism.name)
    return MECHANISMS[job.mechanism.name]
