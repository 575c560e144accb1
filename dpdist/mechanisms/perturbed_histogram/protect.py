"""Adds noise to counts of equal bins, and states the guarantee, in one pass over records ([G], Supplement 1)."""

from __future__ import annotations

import numpy as np

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.perturbed_histogram.release import Histogram, bin_counts, scale_of
from dpdist.mechanisms.perturbed_histogram.statement import COUNTS
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery


class PerturbedHistogram(NoisySums[MechanismSpec, Histogram]):
    """Perturbed histogram ([G], Supplement 1): strict, with δ = 0; every synthetic set has independent noise at ε/m.

    m is the number of sets. No law of the outcome is fitted.
    """

    sums = Histogram

    def queries(self, job: Job, settings: MechanismSpec) -> tuple[NoisyQuery, ...]:
        return (bin_counts(scale_of(job), job.synthetic_sets),)

    def promised(self, job: Job, settings: MechanismSpec, total: Strict | Concentrated) -> Promise:
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        return promise_of(job, per_set(total, job), COUNTS, *moves)

    def rounds(
        self, job: Job, settings: MechanismSpec, model: Histogram, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        return perturbed_histogram(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def perturbed_histogram(model: Histogram, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Counts records by bin, and releases the counts for every set under independent noise ([G], Supplement 1).

    `epsilon` is the ε of one set; only the summary uses it.
    """
    counts = yield Pass(Count(model), "sum")
    own, drawn = Defined.by(model), list[Draws]()
    for number in range(1, sets + 1):
        noisy = yield own.sums(counts, bin_counts(model.scale), number)
        drawn.append(Draws({"counts": noisy}))
    empty = [float((theta["counts"] <= 0).mean()) for theta in drawn]
    return released(recorder, drawn, epsilon, bins=float(model.bins), share_of_empty_bins=float(np.mean(empty)))


MECHANISMS: dict[str, Mechanism] = {"perturbed_histogram": PerturbedHistogram()}
