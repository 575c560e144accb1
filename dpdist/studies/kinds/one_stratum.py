"""Runs the release of a file that is one stratum with one frame row, under keyed noise, for a replicate of a study.

It also describes the mechanism of such a release for the study's page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Frame
from dpdist.engine.in_memory import Unwatched, noise_of, run_rounds
from dpdist.job import Job
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.sampling.samplers import ExactSampler


def model_of(job: Job, records: int) -> Any:
    """The model of a file with `records` records, of the type that the job's mechanism has."""
    return builder_of(job).build(job, Frame({}, {}, np.array([records]), (), ()), slice(0, 1))


def released(job: Job, model: Any, file: Records, key: Key) -> tuple[Draws, ...]:
    """The released parameters of every set, under noise from the key."""
    rounds = mechanism_of(job).protect(job, model, Unwatched(), None)
    return run_rounds(rounds, model, ExactSampler(1), key, "all", [file], noise=noise_of(key)).parameters


def described(mechanism: Mapping[str, Any], job: Job, *further: str) -> tuple[str, str, str]:
    """A mechanism's name, its constants as text, and the class of guarantee of a job with it."""
    constants = [*(f"{name} {_text(value)}" for name, value in mechanism.items() if name != "name"), *further]
    return job.mechanism.name, "; ".join(constants) or "–", mechanism_of(job).promise(job).per_set.name


def _text(value: Any) -> str:
    """A constant as a job file has it, without quotes."""
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else str(value)
