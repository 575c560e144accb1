"""Runs the release of a file that is one stratum with one frame row, under keyed noise, for a replicate of a study."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.core.keys import Key
from dpdist.core.records import Frame, Records
from dpdist.engine.in_memory import Unwatched, noise_of, run_rounds
from dpdist.job import Job
from dpdist.mechanisms.models import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.sampling.exact import ExactSampler


def model_of(job: Job, records: int) -> Any:
    """The model of a file with `records` records, of the type that the job's mechanism has."""
    return builder_of(job).build(job, Frame({}, {}, np.array([records]), (), ()), slice(0, 1))


def released(job: Job, model: Any, file: Records, key: Key) -> tuple[Draws, ...]:
    """The released parameters of every set, under noise from the key."""
    rounds = mechanism_of(job).protect(job, model, Unwatched(), None)
    return run_rounds(rounds, model, ExactSampler(1), key, "all", [file], noise=noise_of(key)).parameters
