"""Confidential half of `laplace_strict`, for `engine`: noisy sums of base cells (sensitivity in `privacy.cell_sums`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats
from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec
from dpdist.mechanisms.laplace_cells.post import CellSums
from dpdist.mechanisms.promises import MOVES_TWICE, per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, Summing, released_sets
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import SENSITIVITY, cell_sums, scale_of
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, moves

SUMS = (
    "Weights and outcomes are clipped to public bounds. A record enters one base cell, by a weight and a centred "
    "product. Their L1 distance from any other values' in the same cell, or from none, is at most 2 units of the bounds. "
    "Both sums have discrete Laplace noise of scale {}/ε of a set's ε in these units. Margins are sums of cells."
)


@dataclass(frozen=True)
class BaseCells(Summing):
    """Kernel: the sums of every base cell's pairs, (cell, 2), in whole units; `CellBounds.pairs` clips each record."""

    cells: CellSums

    def sums(self, records: Records) -> Floats:
        pairs = self.cells.bounds.pairs(records.weight, records.outcome)
        cell, cells = self.cells.pattern(records.frame), len(self.cells.labels)
        return np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in pairs.T])


class LaplaceStrict(NoisySums[MechanismSpec, CellSums]):
    """Noisy sums of base cells under public bounds, with margins as sums of cells (METHODS §7).

    The guarantee is strict, with δ = 0. The cells are summed once, and each synthetic set has noise of its own.
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
        sums = yield Pass(BaseCells(model), "sum")
        defined, query, drawn = Defined.by_content(model), cell_sums(scale_of(job)), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            noisy = yield defined.sums(sums, query, number)
            drawn.append(Draws({"sums": noisy[None]}))
        return released_sets(recorder, drawn, float(job.epsilon_per_set), cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"laplace_strict": LaplaceStrict()}
