"""Whitened, winsorised sums under noise: what is promised, and the one pass over records (METHODS §8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, Sample, StratumRecorder
from dpdist.job import Job, epsilon_of
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import of_frame, parallel, promise_of, referred, with_frame
from dpdist.mechanisms.sanitized_lognormal.release import SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.sensitivity import EXCHANGE
from dpdist.mechanisms.sanitized_lognormal.statement import LOGNORMAL_SHAPE, SANITIZED, SANITIZED_GAUSSIAN, SETS_ARE_FREE
from dpdist.mechanisms.sanitized_lognormal.winsorising_inversion import Whitened
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Concentrated, Promise, Strict


@dataclass(frozen=True)
class SanitizedStatistics:
    """Sums of whitened, winsorised records and squares (METHODS §8): strict, with δ = 0; any number of sets at one cost.

    Under Gaussian noise strict zCDP, and ε with a δ.
    """

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        budget, gaussian = job.budget, job.mechanism.gaussian
        once: Strict | Concentrated = Strict(budget.adjacency, job.epsilon_of_tables)
        if gaussian:
            assert budget.delta is not None
            epsilon = budget.epsilon if job.predictors is None else epsilon_of(job.rho_of_tables, budget.delta)
            once = Concentrated(budget.adjacency, epsilon, job.rho_of_tables, budget.delta, EXCHANGE)
        shown = SANITIZED_GAUSSIAN if gaussian else SANITIZED
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        said = promise_of(job, once, shown, *moves, LOGNORMAL_SHAPE, *referred(job))
        composition = SETS_ARE_FREE.format(job.synthetic_sets) + parallel(job) + of_frame(job)
        return replace(said, total=with_frame(job, once), composition=composition)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Whitened | None = None) -> Rounds:
        assert isinstance(model, SanitizedLognormal)
        assert learned is not None
        return sanitized_statistics(model, learned, float(job.epsilon_of_tables), job.synthetic_sets, recorder)


def sanitized_statistics(
    model: SanitizedLognormal, whitened: Whitened, epsilon: float, sets: int, recorder: StratumRecorder
) -> Rounds:
    """Whitened, winsorised sums under noise; fit and synthetic sets are post-processing (METHODS §8)."""
    model = model.within(whitened)
    statistics = yield Pass(Count(model), "sum")
    sums = model.released(statistics)
    noise = yield Noise(model.scale, sums.size, 1, model.noise, digest(model), digest(sums))
    released = []
    for number in range(1, sets + 1):
        theta = yield Sample(sums + noise, "release", number, model)
        released.append(theta)
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(statistics))}}))
    return Released(tuple(released))
