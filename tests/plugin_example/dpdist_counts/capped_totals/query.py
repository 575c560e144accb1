"""Sums capped weights by cell and value under noise: the only code that sees records."""

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
from dpdist_counts.capped_totals.post import Totals
from dpdist_counts.capped_totals.sensitivity import OF_ONE, UNIT, scale_of, totals
from dpdist_counts.capped_totals.spec import CappedTotals

SUMS = (
    "A record's weight, cut at {}, is in one sum of its cell. Every sum has discrete Laplace noise of scale {}/ε of a "
    "set's ε, in units of that weight."
)


@dataclass(frozen=True)
class ValueTotals(Summing):
    """Kernel: sums of capped weights of zeros and of ones, (cell, 2), in whole units."""

    cells: Totals

    def sums(self, records: Records) -> Floats:
        one = (records.outcome >= 0.5).astype(int)
        weight = np.rint(UNIT * np.minimum(records.weight, self.cells.cap) / self.cells.cap)
        place, places = 2 * self.cells.pattern(records.row) + one, 2 * len(self.cells.number)
        return np.bincount(place, weights=weight, minlength=places).reshape(-1, 2)


class NoisyTotals(NoisySums[CappedTotals, Totals]):
    """Every synthetic set has the same sums under noise of its own."""

    spec = CappedTotals
    sums = Totals

    def queries(self, job: Job, settings: CappedTotals) -> tuple[NoisyQuery, ...]:
        return (totals(scale_of(job), job.synthetic_sets),)

    def promised(self, job: Job, settings: CappedTotals, total: Strict | Concentrated) -> Promise:
        return promise_of(job, per_set(total, job), SUMS.format(settings.cap, OF_ONE.by(neighbour_of(job))))

    def rounds(self, job: Job, settings: CappedTotals, model: Totals, recorder: StratumRecorder, learned: Any) -> Rounds:
        exact = yield Pass(ValueTotals(model), "sum")
        defined, query, drawn = Defined.by_content(model), totals(scale_of(job)), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            noisy = yield defined.sums(exact, query, number)
            drawn.append(Draws({"sums": noisy[None]}))
        return released_sets(recorder, drawn, float(job.epsilon_per_set), cells=float(len(exact)))


MECHANISMS: dict[str, Mechanism] = {"capped_totals": NoisyTotals()}
