"""Adds noise to bounded sufficient statistics from one pass over records, and states the guarantee ([M]; METHODS §8)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Query, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.job import Modips as Settings
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.modips.sanitized_sums import Sanitized
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
from dpdist.mechanisms.modips.truncation import CANDIDATES, Truncated, clamped
from dpdist.mechanisms.promises import of_frame, parallel, promise_of, with_frame
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Promise, Strict


class Modips(NoisySums[Settings, Sanitized]):
    """MODIPS [M]: strict, with δ = 0; every sanitization has independent noise and an equal part of ε.

    A sanitization is one draw of noise for all sums. One or several synthetic sets follow from it.
    """

    spec, sums = Settings, Sanitized

    def promised(self, job: Job, settings: Settings) -> Promise:
        entered = LEVELS_SANITIZED if settings.counted else MOMENTS_SANITIZED
        entered = LOCATION_SANITIZED if settings.variance is not None else entered
        nested = (NESTED.format(settings.nested),) if settings.nested > 1 else ()
        total = Strict(job.budget.adjacency, job.epsilon_of_tables, exchange=_exchange(job, settings))
        per_set = replace(total, epsilon=job.epsilon_per_set)
        moves = () if job.sizes_secret else (MOVES_UNCLAIMED,)
        found = promise_of(
            job, per_set, entered, SANITIZATION[settings.sanitization], TRUNCATION[settings.truncation], *nested, *moves
        )
        if settings.nested == 1:
            return found
        once = replace(total, epsilon=settings.epsilon(job))
        composition = (
            f"sequential over {settings.noises(job)} sanitizations{parallel(job)}; their sets follow by post-processing"
        )
        return replace(found, total=with_frame(job, total), per_set=once, composition=composition + of_frame(job))

    def rounds(self, job: Job, settings: Settings, model: Sanitized, recorder: StratumRecorder, learned: None) -> Rounds:
        return modips(model, job.synthetic_sets, settings.nested, float(job.epsilon_of_tables), recorder)


def _exchange(job: Job, settings: Settings) -> Fraction:
    """The ε of exchanging a record's values at the same x, over the ε of switching it off: at most 2.

    It may be less than 2 if the noise follows from one L1 sensitivity of all sums together.
    """
    if job.sizes_secret or settings.sanitization == "individual" or settings.truncation == "bounded":
        return Fraction(2)
    known, weighted = settings.variance is not None, job.survey.weight is not None
    off, exchanged = (together(settings.law, weighted, known, each) for each in ("zero_out", "substitution"))
    return exchanged / off


def modips(model: Sanitized, sets: int, nested: int, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Algorithms 1 and 2 of [M], with `nested` sets for every sanitization; posterior and records are post-processing."""
    sums = yield Pass(Count(model), "sum")
    own, numbers, drawn = Defined.by(model), count(1), list[Draws]()
    for number in range(0, sets, nested):
        noisy = yield from _sanitized(model, sums, own, numbers)
        for inner in range(nested):
            theta = yield Sample(noisy, "release", number + inner + 1, model)
            drawn.append(theta)
    return released(recorder, drawn, epsilon, statistics=float(len(sums)))


def _sanitized(model: Sanitized, sums: Floats, defined: Defined, numbers: count[int]) -> Generator[Query, Any, Floats]:
    """All sums under noise, within the public ranges of the sums, (sum,)."""
    found = np.empty_like(sums)
    for (start, stop), scale in zip(model.parts, model.scales, strict=True):
        own = slice(start, stop)
        low, high = (ends[own] for ends in model.domain)
        if model.truncation == "clamped":
            noisy = yield defined.sums(sums[own], scale, next(numbers))
            found[own] = clamped(noisy, low, high)
            continue
        found[own] = np.nan
        while np.isnan(found[own]).any():
            noise = defined.noise(sums[own], scale, next(numbers), (stop - start) * CANDIDATES)
            drawn = yield Truncated(sums[own], noise, low, high)
            found[own] = np.where(np.isnan(found[own]), drawn, found[own])
    return found


MECHANISMS: dict[str, Mechanism] = {"modips": Modips()}
