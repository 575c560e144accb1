"""For `kinds.coded_files` and `partitions`: releases a file that is one stratum and one frame row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Frame
from dpdist.engine.rounds import Unwatched, noise_of, run_rounds
from dpdist.job import Job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.quality.microdata import Coded, propensity, total_variation
from dpdist.sampling.samplers import ExactSampler
from dpdist.studies.kinds.protocol import Caption


def model_of(job: Job, records: int) -> Any:
    return builder_of(job).build(job, Frame({}, {}, np.array([records]), (), ()), slice(0, 1))


def released(job: Job, model: Any, file: Records, key: Key) -> tuple[Draws, ...]:
    rounds = mechanism_of(job).protect(job, model, Unwatched(), None)
    return run_rounds(rounds, model, ExactSampler(1), key, "all", [file], noise=noise_of(key)).parameters


def described(mechanism: Mapping[str, Any], job: Job, *further: str) -> tuple[str, str, str]:
    """A mechanism's name, constants as text, and class of guarantee."""
    constants = [*(f"{name} {_text(value)}" for name, value in mechanism.items() if name != "name"), *further]
    return job.mechanism.name, "; ".join(constants) or "–", mechanism_of(job).promise(job).per_set.name


def _text(value: Any) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else str(value)


_APART = "Half the L1 distance between shares of synthetic records and of the file's, mean over marginals and sets."


def total_variation_of(what: str) -> Caption:
    """A caption."""
    return Caption(f"total variation of {what}", _APART)


CAPTIONS = {"one_way": total_variation_of("single columns"), "two_way": total_variation_of("pairs of columns")}
"""Captions of the measures of `similarity`, except SPECKS, for which a study names the predictors."""


def over_sets(measure: Callable[[Coded], float], sets: Sequence[Coded]) -> float:
    return float(np.mean([measure(records) for records in sets]))


def similarity(file: Coded, sets: Sequence[Coded]) -> Mapping[str, float]:
    """Total variation of single columns and of pairs, and SPECKS, as means over sets."""
    return {
        "one_way": float(np.mean([total_variation(file, records, 1) for records in sets])),
        "two_way": float(np.mean([total_variation(file, records, 2) for records in sets])),
        "specks": over_sets(lambda records: propensity(file, records).specks, sets),
    }
