"""Adds noise to bounded sums of base cells, and states the guarantee, in one pass over records (METHODS §7)."""

from __future__ import annotations

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_cells.statement import SUMS
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import SENSITIVITY, cell_sums, scale_of
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, moves


class LaplaceStrict(NoisySums[MechanismSpec, CellSums]):
    """Noisy sums of base cells under public bounds, with margins as sums of cells (METHODS §7).

    The guarantee is strict, with δ = 0, and no law of the outcome is fitted.
    """

    sums = CellSums

    def queries(self, job: Job, settings: MechanismSpec) -> tuple[NoisyQuery, ...]:
        return (cell_sums(scale_of(job), job.synthetic_sets),)

    def promised(self, job: Job, settings: MechanismSpec, total: Strict | Concentrated) -> Promise:
        moved = () if job.sizes_secret else (MOVES_TWICE,)
        return promise_of(job, per_set(total, job), SUMS.format(SENSITIVITY * moves(job)), *moved)

    def rounds(
        self, job: Job, settings: MechanismSpec, model: CellSums, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        return laplace_strict(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def laplace_strict(model: CellSums, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Computes bounded sums of every base cell once; each synthetic set releases them under its own noise (METHODS §7)."""
    sums = yield Pass(Count(model), "sum")
    own, drawn = Defined.by(model), list[Draws]()
    for number in range(1, sets + 1):
        noisy = yield own.sums(sums, cell_sums(model.scale), number)
        drawn.append(Draws({"sums": noisy[None]}))
    return released(recorder, drawn, epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"laplace_strict": LaplaceStrict()}
