"""Confidential half of `modips`: bounded sufficient statistics in one pass, under noise that stays in range ([M])."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Mechanism, Noise, Pass, Query, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.modips.post import LevelCounts, Moments, Sanitized
from dpdist.mechanisms.modips.sensitivity import queries_of
from dpdist.mechanisms.modips.spec import Modips as Settings
from dpdist.mechanisms.promises import Defined, NoisySums, Repetition, Summing, promise_of, released_sets
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict

CANDIDATES = 64
"""Noise candidates for a sum. All of them are refused with a probability of at most 2^−64. Then more are drawn."""


class OutsideDomain(ValueError):
    """Raised for sums that no file within the public bounds has. It names no sum and no value."""


class TruncatedNoise(NamedTuple):
    """Query for draws of the law truncated to [low, high], (sum,); NaN if all candidates were refused."""

    sums: Floats
    """Whole numbers; confidential."""
    noise: Noise
    """CANDIDATES for every sum."""
    low: Floats
    high: Floats
    stated: NoisyQuery
    """What the draws lose, at this scale."""

    @property
    def ends(self) -> tuple[Floats, Floats]:
        return self.low, self.high

    def under(self, noise: Floats) -> Floats:
        return draw_truncated(self.sums, noise.reshape(len(self.sums), CANDIDATES), self.low, self.high)


def clamp_sums(noisy: Floats, low: Floats, high: Floats) -> Floats:
    """Noisy sums, (sum,), set to the nearest end of their range where they lie outside."""
    return np.clip(noisy, low, high)


def draw_truncated(sums: Floats, noise: Floats, low: Floats, high: Floats) -> Floats:
    """Draws of the law truncated to [low, high], (sum,), from candidates (sum, candidate); NaN if all were refused.

    Raises `OutsideDomain` for a sum outside its range, because the support of the draws would then reveal it.
    """
    if ((sums < low) | (sums > high)).any():
        raise OutsideDomain("a sum is not within the range that public bounds give it")
    exact, start, end = (values.astype(np.int64)[:, None] for values in (sums, low, high))
    noise = noise.astype(np.int64)
    up, size = noise >= 0, np.where(noise >= 0, noise, -1 - noise)
    above, below = end - exact + 1, exact - start
    remainder = size % np.maximum(above, below)
    accepted = remainder < np.where(up, above, below)
    candidates = np.where(up, exact + remainder, exact - 1 - remainder)
    first = np.argmax(accepted, axis=1)
    rows = np.arange(len(sums))
    return np.where(accepted[rows, first], candidates[rows, first].astype(np.float64), np.nan)


MOMENTS_SANITIZED = (
    "Each record adds 1 − v and vu to its cell, and v(u² − 1/2) to one sum over all cells. Here v is its weight divided "
    "by the public bound, and u its centred outcome (or log outcome) in half widths of the public bounds. Without "
    "weights, it adds u and u² − 1/2. The L1 sensitivity of these sums is 3/2 when a record's values are left out, and "
    "5/2 when they change. All have discrete Laplace noise."
)
LOCATION_SANITIZED = (
    "Each record adds 1 − v and vu to its cell, where v is its weight divided by the public bound, and u its centred "
    "outcome in half widths of the public bounds. Without weights, it adds u. The L1 sensitivity of these sums is 1 when "
    "a record's values are left out, and 2 when they change. Both have discrete Laplace noise. The variance comes from "
    "the job, which declares it public."
)
LEVELS_SANITIZED = (
    "Each record adds 1 − v to its cell and v to its level in that cell, where v is its weight divided by the public "
    "bound (1 without weights). The L1 sensitivity of these sums is 1 when a record's values are left out, and 2 when "
    "they change. All have discrete Laplace noise."
)
SANITIZATION = {
    "conjoint": (
        "The noise on all sums has the same scale: their joint L1 sensitivity divided by the ε of one sanitization."
    ),
    "individual": "Each kind of sum gets an equal share of a sanitization's ε, and noise scaled to its own sensitivity.",
}
TRUNCATION = {
    "clamped": "A noisy sum outside its public domain is set to the nearest end, which is post-processing.",
    "bounded": (
        "Noisy sums are drawn from Laplace distributions truncated to their public domains, with scale "
        "sensitivity/(C log((1 + e^(ε/C))/2)) for C sums that one record can change. This scale accounts for the "
        "truncation."
    ),
    "renormalised": "",
}
NESTED = "Every sanitization yields {} synthetic sets, by post-processing."
MOVES_UNCLAIMED = (
    "The guarantee does not cover a record that moves to another cell. The move would be visible in the public counts, "
    "and there is no bound on what the noisy sums could reveal about it."
)


@dataclass(frozen=True)
class BoundedSums(Summing):
    """Kernel: sums over the cells of a model, (sum,), in whole units of 1/UNIT.

    They are sums of 1 − v by cell where there are weights; then sums of vu by cell, and of v(u² − 1/2), with u the outcome
    clipped to [−1, 1]; or of v by cell and level, with the outcome clipped to the levels.
    """

    model: Moments | LevelCounts

    def sums(self, records: Records) -> Floats:
        model, weights, cells = self.model, self.model.weights, len(self.model.labels)
        v = np.full(len(records), float(UNIT)) if weights is None else np.rint(UNIT * (records.weight / weights[1]))
        cell = model.pattern(records.row)
        first = [] if weights is None else [np.bincount(cell, weights=UNIT - v, minlength=cells).astype(np.float64)]
        if isinstance(model, LevelCounts):
            levels = len(model.levels)
            level = np.clip(np.rint(records.outcome - model.levels[0]), 0, levels - 1).astype(np.int64)
            return np.concatenate([*first, np.bincount(cell * levels + level, weights=v, minlength=levels * cells)])
        centre, half = model.middle
        values = np.clip(records.outcome, *model.outcome_bounds)
        u = np.clip(((np.log(values) if model.law == "lognormal" else values) - centre) / half, -1.0, 1.0)
        location = np.bincount(cell, weights=np.rint(v * u), minlength=cells)
        second = [] if model.variance is not None else [[np.rint(v * (u**2 - 0.5)).sum()]]
        return np.concatenate([*first, location, *second])


class ModipsMechanism(NoisySums[Settings, Moments | LevelCounts]):
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

    def rounds(
        self, job: Job, settings: Settings, model: Moments | LevelCounts, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        """Algorithms 1 and 2 of [M]; each sanitization gives `nested` sets by post-processing."""
        sums = yield Pass(BoundedSums(model), "sum")
        defined, numbers, draws = Defined.by_content(model), count(1), list[Draws]()
        for number in range(0, job.synthetic_sets, settings.nested):
            noisy = yield from _sanitize(model, sums, defined, numbers)
            for inner in range(settings.nested):
                theta = yield Sample(noisy, "release", number + inner + 1, model)
                draws.append(theta)
        return released_sets(recorder, draws, float(job.epsilon.tables), statistics=float(len(sums)))


def _repeated(job: Job, settings: Settings) -> Repetition | None:
    """The sanitizations, if several synthetic sets follow from each."""
    if settings.nested == 1:
        return None
    return Repetition(settings.noises(job), "sanitizations", ", whose sets follow by post-processing")


def _sanitize(model: Sanitized, sums: Floats, defined: Defined, numbers: count[int]) -> Generator[Query, Any, Floats]:
    """All sums under noise, within the public ranges of the sums, (sum,)."""
    answers = np.empty_like(sums)
    for (start, stop), query in zip(model.parts, model.queries, strict=True):
        part = slice(start, stop)
        low, high = (ends[part] for ends in model.domain)
        if model.truncation == "clamped":
            noisy = yield defined.sums(sums[part], query, next(numbers))
            answers[part] = clamp_sums(noisy, low, high)
            continue
        answers[part], single = np.nan, query.once
        while np.isnan(answers[part]).any():
            noise = defined.noise(sums[part], query.scale, next(numbers), (stop - start) * CANDIDATES)
            candidate = yield TruncatedNoise(sums[part], noise, low, high, single)
            single = query.further()  # candidates that follow refused ones belong to the same draw
            answers[part] = np.where(np.isnan(answers[part]), candidate, answers[part])
    return answers


MECHANISMS: dict[str, Mechanism] = {"modips": ModipsMechanism()}
