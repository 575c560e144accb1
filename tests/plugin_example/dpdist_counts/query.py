"""Counts records by cell and value under noise: the only code that sees records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.promises import Defined, NoisySums, Summing, per_set, promise_of, released_sets
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict, neighbour_of
from dpdist_counts.post import Counts
from dpdist_counts.sensitivity import MOVED, counts, scale_of
from dpdist_counts.spec import YesNoCounts

COUNTS = "A record is in one count of its cell. Every count has discrete Laplace noise of scale {}/ε of a set's ε."


@dataclass(frozen=True)
class ValueCounts(Summing):
    """Kernel: counts of zeros and of ones, (cell, 2)."""

    cells: Counts

    def sums(self, records: Records) -> Floats:
        one = (records.outcome >= 0.5).astype(int)
        place, places = 2 * self.cells.pattern(records.row) + one, 2 * len(self.cells.number)
        return np.bincount(place, minlength=places).astype(float).reshape(-1, 2)


class NoisyCounts(NoisySums[YesNoCounts, Counts]):
    """Every synthetic set has the same counts under noise of its own."""

    spec = YesNoCounts
    sums = Counts

    def queries(self, job: Job, settings: YesNoCounts) -> tuple[NoisyQuery, ...]:
        return (counts(scale_of(job), job.synthetic_sets),)

    def promised(self, job: Job, settings: YesNoCounts, total: Strict | Concentrated) -> Promise:
        return promise_of(job, per_set(total, job), COUNTS.format(MOVED.by(neighbour_of(job))))

    def rounds(self, job: Job, settings: YesNoCounts, model: Counts, recorder: StratumRecorder, learned: Any) -> Rounds:
        exact = yield Pass(ValueCounts(model), "sum")
        defined, query, drawn = Defined.by_content(model), counts(scale_of(job)), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            noisy = yield defined.sums(exact, query, number)
            drawn.append(Draws({"counts": noisy[None]}))
        return released_sets(recorder, drawn, float(job.epsilon_per_set), cells=float(len(exact)))


MECHANISMS: dict[str, Mechanism] = {"yes_no_counts": NoisyCounts()}
