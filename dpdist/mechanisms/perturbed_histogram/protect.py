"""Noisy counts of equal bins: what is promised, and the one pass over records ([G], Supplement 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.perturbed_histogram.release import Histogram
from dpdist.mechanisms.perturbed_histogram.statement import COUNTS
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.guarantees import Promise, Strict


@dataclass(frozen=True)
class PerturbedHistogram:
    """[G], Supplement 1: strict, with δ = 0 and no model; every set has noise of its own at ε/m."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COUNTS, *moves)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, Histogram)
        return perturbed_histogram(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def perturbed_histogram(model: Histogram, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """[G], Supplement 1: every set releases the counts under noise of its own. `epsilon`: a set's, for the summary."""
    counts = yield Pass(Count(model), "sum")
    released, query, exact = [], digest(model), digest(counts)
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, model.bins, number, "laplace", query, exact)
        released.append(Draws({"counts": counts + noise}))
    empty = [float((theta["counts"] <= 0).mean()) for theta in released]
    recorder.summary(
        Confidential(
            {
                "database_bound": None,
                "epsilon_local": epsilon,
                "epsilon_local_range": None,
                "diagnostics": {"bins": float(model.bins), "share_of_empty_bins": float(np.mean(empty))},
            }
        )
    )
    return Released(tuple(released))
