"""Confidential half of `perturbed_histogram`: noisy counts of equal bins, in one pass ([G])."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec
from dpdist.mechanisms.perturbed_histogram.post import Histogram
from dpdist.mechanisms.perturbed_histogram.sensitivity import bin_counts
from dpdist.mechanisms.promises import MOVES_EXCHANGED, Defined, NoisySums, Summing, per_set, promise_of, released_sets
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict

COUNTS = (
    "Bins depend on public bounds and sample counts only. Leaving out a record's values changes one bin's count by 1; "
    "changing them changes two counts by 1. All counts have discrete Laplace noise with scale 1/ε (2/ε under "
    "substitution), where ε is that of one set."
)


@dataclass(frozen=True)
class HistogramCounts(Summing):
    """Kernel: the number of records in every bin, (1, bin). An outcome beyond its bounds is in the nearest bin."""

    histogram: Histogram

    def sums(self, records: Records) -> Floats:
        counts = np.bincount(self.histogram.bin(records.outcome), minlength=self.histogram.bins)
        return counts.astype(np.float64)[None, :]


class PerturbedHistogramMechanism(NoisySums[MechanismSpec, Histogram]):
    """Perturbed histogram ([G], Supplement 1): strict, with δ = 0; each of m synthetic sets has independent noise at
    ε/m.

    No law of the outcome is fitted.
    """

    sums = Histogram

    def queries(self, job: Job, settings: MechanismSpec) -> tuple[NoisyQuery, ...]:
        return (bin_counts(job),)

    def promised(self, job: Job, settings: MechanismSpec, total: Strict | Concentrated) -> Promise:
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        return promise_of(job, per_set(total, job), COUNTS, *moves)

    def rounds(
        self, job: Job, settings: MechanismSpec, model: Histogram, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        counts = yield Pass(HistogramCounts(model), "sum")
        defined, query, draws = Defined.by_content(model), bin_counts(job), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            noisy = yield defined.sums(counts, query, number)
            draws.append(Draws({"counts": noisy}))
        empty = float(np.mean([(theta["counts"] <= 0).mean() for theta in draws]))
        epsilon = float(job.epsilon_per_set)
        return released_sets(recorder, draws, epsilon, bins=float(model.bins), share_of_empty_bins=empty)


MECHANISMS: dict[str, Mechanism] = {"perturbed_histogram": PerturbedHistogramMechanism()}
