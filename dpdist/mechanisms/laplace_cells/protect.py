"""Adds noise to bounded sums of base cells, and states the guarantee, in one pass over records (METHODS §7)."""

from __future__ import annotations

from fractions import Fraction

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.laplace_cells.statement import SUMS
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Promise, Strict
from dpdist.privacy.units import moves


class LaplaceStrict(NoisySums[MechanismSpec, CellSums]):
    """Noisy sums of base cells under public bounds, with margins as sums of cells (METHODS §7).

    The guarantee is strict, with δ = 0, and no law of the outcome is fitted.
    """

    sums = CellSums

    def promised(self, job: Job, settings: MechanismSpec) -> Promise:
        if job.sizes_secret:
            return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), SUMS.format(2 * moves(job)))
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        return promise_of(job, same_x, SUMS.format(2), MOVES_TWICE)

    def rounds(
        self, job: Job, settings: MechanismSpec, model: CellSums, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        return cell_sums(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def cell_sums(model: CellSums, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Computes bounded sums of every base cell once; each synthetic set releases them under its own noise (METHODS §7)."""
    sums = yield Pass(Count(model), "sum")
    own, drawn = Defined.by(model), list[Draws]()
    for number in range(1, sets + 1):
        noisy = yield own.sums(sums, model.scale, number)
        drawn.append(Draws({"sums": noisy[None]}))
    return released(recorder, drawn, epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"laplace_strict": LaplaceStrict()}
