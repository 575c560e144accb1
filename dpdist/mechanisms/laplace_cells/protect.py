"""Bounded sums of base cells under noise: what is promised, and the one pass over records (METHODS §7)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_cells.statement import SUMS
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import Promise, Strict
from dpdist.privacy.units import moves


@dataclass(frozen=True)
class LaplaceStrict:
    """Noisy sums of the finest cells under public bounds, margins added (METHODS §7): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        if job.sizes_secret:
            return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), SUMS.format(2 * moves(job)))
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        return promise_of(job, same_x, SUMS.format(2), MOVES_TWICE)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, CellSums)
        return cell_sums(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def cell_sums(model: CellSums, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Bounded sums of every finest cell; every set releases them under noise of its own (METHODS §7)."""
    sums = yield Pass(Count(model), "sum")
    released, query, exact = [], digest(model), digest(sums)
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, sums.size, number, "laplace", query, exact)
        released.append(Draws({"sums": (sums + noise.reshape(sums.shape))[None]}))
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(sums))}}))
    return Released(tuple(released))
