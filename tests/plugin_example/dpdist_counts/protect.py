"""Counts records by cell and value, and adds noise. The only code that sees records is dpdist's own kernel `Count`."""

from __future__ import annotations

from typing import Any

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, neighbour_of
from dpdist_counts.release import Counts
from dpdist_counts.sensitivity import MOVED, counts, scale_of
from dpdist_counts.spec import YesNoCounts
from dpdist_counts.statement import COUNTS


class NoisyCounts(NoisySums[YesNoCounts, Counts]):
    """Every synthetic set has the same counts under noise of its own."""

    spec = YesNoCounts
    sums = Counts

    def queries(self, job: Job, settings: YesNoCounts) -> tuple[NoisyQuery, ...]:
        return (counts(scale_of(job), job.synthetic_sets),)

    def promised(self, job: Job, settings: YesNoCounts, total: Strict | Concentrated) -> Promise:
        return promise_of(job, per_set(total, job), COUNTS.format(MOVED.by(neighbour_of(job))))

    def rounds(self, job: Job, settings: YesNoCounts, model: Counts, recorder: StratumRecorder, learned: Any) -> Rounds:
        exact, asked, drawn = (yield Pass(Count(model), "sum")), Defined.by(model), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            noisy = yield asked.sums(exact, counts(model.scale), number)
            drawn.append(Draws({"counts": noisy[None]}))
        return released(recorder, drawn, float(job.epsilon_per_set), cells=float(len(exact)))


MECHANISMS: dict[str, Mechanism] = {"yes_no_counts": NoisyCounts()}
