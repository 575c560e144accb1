"""Bounded sufficient statistics under noise: what is promised, and the one pass over records ([M]; METHODS §8)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from typing import Any, Literal

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.job import Modips as Settings
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.modips.release import Sanitized
from dpdist.mechanisms.modips.sensitivity import together
from dpdist.mechanisms.modips.statement import (
    LEVELS_SANITIZED,
    LOCATION_SANITIZED,
    MOMENTS_SANITIZED,
    MOVES_UNCLAIMED,
    NESTED,
    SANITIZATION,
    TRUNCATION,
)
from dpdist.mechanisms.modips.truncation import CANDIDATES, clamped, truncated
from dpdist.mechanisms.promises import of_frame, parallel, promise_of, with_frame
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Promise, Strict


@dataclass(frozen=True)
class Modips:
    """[M]: strict, with δ = 0. Every sanitization has noise of its own and an equal part of ε."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        said = job.mechanism
        assert isinstance(said, Settings)
        entered = LEVELS_SANITIZED if said.counted else MOMENTS_SANITIZED
        entered = LOCATION_SANITIZED if said.variance is not None else entered
        nested = (NESTED.format(said.nested),) if said.nested > 1 else ()
        total = Strict(job.budget.adjacency, job.epsilon_of_tables, exchange=_exchange(job))
        per_set = replace(total, epsilon=job.epsilon_per_set)
        moves = () if job.sizes_secret else (MOVES_UNCLAIMED,)
        found = promise_of(
            job, per_set, entered, SANITIZATION[said.sanitization], TRUNCATION[said.truncation], *nested, *moves
        )
        if said.nested == 1:
            return found
        once = replace(total, epsilon=said.epsilon(job))
        composition = (
            f"sequential over {said.noises(job)} sanitizations{parallel(job)}; their sets follow by post-processing"
        )
        return replace(found, total=with_frame(job, total), per_set=once, composition=composition + of_frame(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, Sanitized)
        assert isinstance(job.mechanism, Settings)
        return modips(model, job.synthetic_sets, job.mechanism.nested, float(job.epsilon_of_tables), recorder)


def _exchange(job: Job) -> Fraction:
    """ε against an exchange at the same x, over ε; two zero-outs but where one L1 sensitivity is all that counts."""
    said = job.mechanism
    assert isinstance(said, Settings)
    if job.sizes_secret or said.sanitization == "individual" or said.truncation == "bounded":
        return Fraction(2)
    known, weighted = said.variance is not None, job.survey.weight is not None
    off, exchanged = (together(said.law, weighted, known, each) for each in ("zero_out", "substitution"))
    return exchanged / off


def modips(model: Sanitized, sets: int, nested: int, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Algorithms 1 and 2 of [M]: `nested` sets of every sanitization; posterior and records are post-processing."""
    sums = yield Pass(Count(model), "sum")
    bound, numbers, released = (digest(model), digest(sums)), count(1), []
    for number in range(0, sets, nested):
        noisy = yield from _sanitized(model, sums, numbers, bound)
        for inner in range(nested):
            theta = yield Sample(noisy, "release", number + inner + 1, model)
            released.append(theta)
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"statistics": float(len(sums))}}))
    return Released(tuple(released))


def _sanitized(
    model: Sanitized, sums: Floats, numbers: count[int], bound: tuple[str, str]
) -> Generator[Noise, Any, Floats]:
    """All sums under noise, within their public domains."""
    found = np.empty_like(sums)
    for (start, stop), scale in zip(model.parts, model.scales, strict=True):
        own = slice(start, stop)
        low, high = (ends[own] for ends in model.domain)
        size = stop - start
        if model.truncation == "clamped":
            noise = yield Noise(scale, size, next(numbers), "laplace", *bound)
            found[own] = clamped(sums[own], noise, low, high)
            continue
        found[own] = np.nan
        while np.isnan(found[own]).any():
            noise = yield Noise(scale, size * CANDIDATES, next(numbers), "laplace", *bound)
            drawn = truncated(sums[own], noise.reshape(size, CANDIDATES), low, high)
            found[own] = np.where(np.isnan(found[own]), drawn, found[own])
    return found
