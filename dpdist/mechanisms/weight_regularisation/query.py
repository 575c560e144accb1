"""Confidential half of `weight_regularisation`, for `engine`: common weight, degree λ, moved sums, all under noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.laplace_cells.post import CellSums
from dpdist.mechanisms.laplace_cells.query import BaseCells
from dpdist.mechanisms.promises import MOVES_TWICE, per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, Summing, released_sets
from dpdist.mechanisms.weight_regularisation.post import RegularisedCells, moved
from dpdist.mechanisms.weight_regularisation.sensitivity import MOVED_BY, left, scales_of, stage
from dpdist.mechanisms.weight_regularisation.spec import WeightRegularisation as Settings
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import SENSITIVITY
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, moves

MOVED_WEIGHTS = (
    "Weights are moved towards a common weight: a record counts with (1 - r) of its weight and r of the common one. The "
    "larger r, the less noise the sums need. Tables then have a bias where weights differ between cells or go with the "
    "outcome. At r = 1 they are unweighted tables, scaled."
)
SUMS = (
    "Weights and outcomes are clipped to public bounds. A record enters one base cell, by its moved weight and a centred "
    "product. Their L1 distance from any other values' in the same cell, or from none, is at most 2 units of the moved "
    "weight's bound. Both sums have discrete Laplace noise of scale {}/({} ε) in these units. Margins are sums of cells."
)
MEAN_ASKED = (
    "The common weight is the mean weight, under noise: the sum of weights over their bound moves by at most {0}. It has "
    "discrete Laplace noise of scale {0} over 1/20 of ε. It is divided by the number of sample records."
)
CHOICE_ASKED = (
    "How far weights are moved is chosen under noise. Two sums over cells say how far the weights' and the products' sums "
    "are from those under the common weight. A record moves both together by at most {0}. Both have discrete Laplace "
    "noise of scale {0} over 1/10 of ε. The choice has the least squared error that they and the noise predict."
)


@dataclass(frozen=True)
class WeightSum(Summing):
    """Kernel: Σ w/U in units of 1/UNIT, (1, 1), with U the weight's public bound."""

    cap: float

    def sums(self, records: Records) -> Floats:
        return np.array([[units_of(records.weight, self.cap).sum()]])


@dataclass(frozen=True)
class Distances(Summing):
    """Kernel: Σ (w − t)/U and Σ (w − t)u/U of every cell in units of 1/UNIT, (cell, 2).

    t is the common weight, U the weight's public bound, and u the outcome relative to its public bounds, in [−1, 1].
    """

    cells: CellSums
    common: float

    def sums(self, records: Records) -> Floats:
        bounds, cells = self.cells.bounds, len(self.cells.labels)
        a = units_of(records.weight, bounds.weight) - units_of(np.array(self.common), bounds.weight)
        u = (np.clip(records.outcome, bounds.low, bounds.high) - bounds.centre) / bounds.half_width
        pairs, cell = (a, np.rint(a * np.clip(u, -1.0, 1.0))), self.cells.pattern(records.frame)
        return np.column_stack([np.bincount(cell, weights=values, minlength=cells) for values in pairs])


@dataclass(frozen=True)
class MovedSums(Summing):
    """Kernel: the sums of base cells under moved weights, in units of the moved weight's bound, (cell, 2)."""

    cells: CellSums
    cap: float
    common: float
    regularisation: float

    @classmethod
    def of(cls, model: RegularisedCells, common: float, regularisation: float) -> MovedSums:
        return cls(model.cells(common, regularisation), model.plain.bounds.weight, common, regularisation)

    def sums(self, records: Records) -> Floats:
        weight = moved(records.weight, self.common, self.regularisation)
        return BaseCells(self.cells).sums(replace(records, weight=weight))


def units_of(weight: Floats, cap: float) -> Floats:
    """w/U of every record in whole units of 1/UNIT, with U = `cap`, the weight's public bound."""
    return np.rint(UNIT * (weight / cap))


class WeightRegularisation(NoisySums[Settings, RegularisedCells]):
    """Noisy sums of base cells under moved weights: strict, with δ = 0; no law of the outcome is fitted."""

    spec, sums = Settings, RegularisedCells

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        scales = scales_of(job, settings)
        return tuple(stage(number, scale) for number, scale in enumerate(scales, 1) if scale is not None)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        mean, choice = settings.towards is None, settings.regularisation is None
        by_mean, by_choice, _ = (distance * moves(job) for distance in MOVED_BY)
        stages = [MEAN_ASKED.format(by_mean)] * mean + [CHOICE_ASKED.format(by_choice)] * choice
        sums = SUMS.format(SENSITIVITY * moves(job), left(mean, choice))
        another_cell = () if job.sizes_secret else (MOVES_TWICE,)
        return promise_of(job, per_set(total, job), MOVED_WEIGHTS, *stages, sums, *another_cell)

    def rounds(
        self, job: Job, settings: Settings, model: RegularisedCells, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        """The common weight, the degree, then the cells' sums. A stage is left out if the job states its figure."""
        measured, common, regularisation = np.full(3, np.nan), model.towards, model.fixed
        mean_scale, choice_scale, scale = scales_of(job, settings)
        if mean_scale is not None:
            mean = WeightSum(model.plain.bounds.weight)
            exact = yield Pass(mean, "sum")
            measured[:1] = yield Defined.by_content(mean).sums(exact[0], stage(1, mean_scale), 1)
            common = model.common(float(measured[0]))
        assert common is not None
        if choice_scale is not None:
            distances = Distances(model.plain, common)
            exact = yield Pass(distances, "sum")
            measured[1:] = yield Defined.by_content(distances).sums(np.abs(exact).sum(axis=0), stage(2, choice_scale), 2)
            regularisation = model.chosen(measured[1:], common)
        assert regularisation is not None
        under = MovedSums.of(model, common, regularisation)
        sums = yield Pass(under, "sum")
        noisy = yield Defined.by_content(under).sums(sums, stage(3, scale), 3)
        used = np.array([[common, regularisation]])
        theta = Draws({"sums": noisy[None], "asked": measured[None], "used": used})
        return released_sets(recorder, [theta], float(job.epsilon_per_set), cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"weight_regularisation": WeightRegularisation()}
