"""Adds noise to bounded sufficient statistics from one pass over records, and states the guarantee ([M]; METHODS §8)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Query, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.modips.sanitized_sums import Sanitized, queries_of
from dpdist.mechanisms.modips.spec import Modips as Settings
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
from dpdist.mechanisms.promises import Repeated, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery


class Modips(NoisySums[Settings, Sanitized]):
    """MODIPS [M]: strict, with δ = 0; every sanitization has independent noise and an equal part of ε.

    A sanitization is one draw of noise for all sums. One or several synthetic sets follow from it.
    """

    spec, sums = Settings, Sanitized

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        return tuple(replace(query, times=settings.noises(job)) for query in queries_of(job, settings))

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        entered = LEVELS_SANITIZED if settings.counted else MOMENTS_SANITIZED
        entered = LOCATION_SANITIZED if settings.variance is not None else entered
        nested = (NESTED.format(settings.nested),) if settings.nested > 1 else ()
        moves = () if job.sizes_secret else (MOVES_UNCLAIMED,)
        public = (entered, SANITIZATION[settings.sanitization], TRUNCATION[settings.truncation], *nested, *moves)
        once = replace(total, epsilon=total.epsilon / settings.noises(job))
        return promise_of(job, once, *public, repeated=_repeated(job, settings))

    def rounds(self, job: Job, settings: Settings, model: Sanitized, recorder: StratumRecorder, learned: None) -> Rounds:
        return modips(model, job.synthetic_sets, settings.nested, float(job.epsilon_of_tables), recorder)


def _repeated(job: Job, settings: Settings) -> Repeated | None:
    """The sanitizations, where several synthetic sets follow from each."""
    if settings.nested == 1:
        return None
    return Repeated(settings.noises(job), "sanitizations", "; their sets follow by post-processing")


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
    for (start, stop), query in zip(model.parts, model.queries, strict=True):
        own = slice(start, stop)
        low, high = (ends[own] for ends in model.domain)
        if model.truncation == "clamped":
            noisy = yield defined.sums(sums[own], query, next(numbers))
            found[own] = clamped(noisy, low, high)
            continue
        found[own], stated = np.nan, query.once
        while np.isnan(found[own]).any():
            noise = defined.noise(sums[own], query.scale, next(numbers), (stop - start) * CANDIDATES)
            drawn = yield Truncated(sums[own], noise, low, high, stated)
            stated = query.further()  # candidates that follow refused ones belong to the same draw
            found[own] = np.where(np.isnan(found[own]), drawn, found[own])
    return found


MECHANISMS: dict[str, Mechanism] = {"modips": Modips()}
