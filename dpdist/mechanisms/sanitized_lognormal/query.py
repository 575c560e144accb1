"""Confidential half of `sanitized_statistics`: noisy sums of whitened, winsorised logarithms (METHODS §8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Rounds, Sample, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.promises import (
    MOVES_EXCHANGED,
    Defined,
    NoisySums,
    Summing,
    of_frame,
    parallel,
    promise_of,
    referred,
    released_sets,
    with_frame,
)
from dpdist.mechanisms.sanitized_lognormal.post import ReferenceMoments, SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.sensitivity import EXCHANGE, whitened_sums
from dpdist.mechanisms.sanitized_lognormal.spec import SanitizedStatistics as Settings
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict

SANITIZED = (
    "Let d be the vector of a record's log values minus the reference mean of its cell, whitened and winsorised using "
    "the reference. The record adds d to the sum of its base cell, and the squares and the product of the components of "
    "d to pooled second moments. With each part scaled by its share of the budget, their combined L1 norm is at most 1. "
    "So the L1 sensitivity is 1 when a record's values are left out, and 2 when they change. All have discrete Laplace "
    "noise with scale sensitivity/ε."
)
SANITIZED_GAUSSIAN = (
    "Let d be the vector of a record's log values minus the reference mean of its cell, whitened and winsorised using "
    "the reference. The record adds d to the sum of its base cell, and the squares and the product of the components of "
    "d to pooled second moments. With each part scaled by its share of ρ, their combined L2 norm is at most 1. So the L2 "
    "sensitivity is 1 when a record's values are left out, and 7/4 when they change. All have discrete Gaussian noise "
    "with σ = sensitivity/√(2ρ)."
)
LOGNORMAL_SHAPE = (
    "Whitening, and the correction for winsorising, come from the reference. Log values are assumed to be normally "
    "distributed within cells; standard errors do not include the bias that arises if they are not."
)
SETS_ARE_FREE = "one noisy statistic, from which every synthetic set follows by post-processing"


@dataclass(frozen=True)
class WhitenedSums(Summing):
    """Kernel: sums of location and scatter by cell, (cell, 5), in whole units of 1/UNIT (see `sensitivity`).

    `Whitening.units` winsorises each record. The model knows its reference.
    """

    model: SanitizedLognormal

    def sums(self, records: Records) -> Floats:
        model, reference = self.model, self.model.whitened
        assert reference is not None
        cell, cells = model.pattern(records.row), len(model.labels)
        units = reference.whitening.units(cell, records.outcome, records.weight, noise=model.noise)
        return np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in units.T])


class SanitizedStatisticsMechanism(NoisySums[Settings, SanitizedLognormal]):
    """Noisy sums of whitened, winsorised records and of their squares (METHODS §8): strict, with δ = 0.

    All synthetic sets follow from the same noisy sums, and share one cost. Under Gaussian noise the guarantee is strict
    zCDP, from which an ε with a δ follows.
    """

    spec, sums = Settings, SanitizedLognormal

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        return (whitened_sums(job, settings.noise),)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        once = replace(total, exchange=EXCHANGE) if settings.gaussian else total
        conditions = SANITIZED_GAUSSIAN if settings.gaussian else SANITIZED
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        promise = promise_of(job, once, conditions, *moves, LOGNORMAL_SHAPE, *referred(job))
        composition = SETS_ARE_FREE + parallel(job) + of_frame(job)
        return replace(promise, total=with_frame(job, once), composition=composition)

    def rounds(
        self,
        job: Job,
        settings: Settings,
        model: SanitizedLognormal,
        recorder: StratumRecorder,
        learned: ReferenceMoments | None,
    ) -> Rounds:
        assert learned is not None
        model = model.with_moments(learned)
        exact = yield Pass(WhitenedSums(model), "sum")
        # One location for each cell, and one scatter for all.
        sums = np.concatenate([exact[:, :2].reshape(-1), exact[:, 2:].sum(axis=0)])
        noisy = yield Defined.by_content(model).sums(sums, whitened_sums(job, settings.noise), 1)
        draws = []
        for number in range(1, job.synthetic_sets + 1):
            theta = yield Sample(noisy, "release", number, model)
            draws.append(theta)
        return released_sets(recorder, draws, float(job.epsilon.tables), cells=float(len(exact)))


MECHANISMS: dict[str, Mechanism] = {"sanitized_statistics": SanitizedStatisticsMechanism()}
