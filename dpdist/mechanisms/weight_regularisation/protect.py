"""Moves weights towards a common one, adds noise to sums, and states the guarantee, with the passes over records."""

from __future__ import annotations

import numpy as np

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.noisy_mechanisms import WeightRegularisation as Settings
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.weight_regularisation.release import Distances, RegularisedCells, WeightSum, scales_of
from dpdist.mechanisms.weight_regularisation.sensitivity import MOVED_BY, left, stage
from dpdist.mechanisms.weight_regularisation.statement import CHOICE_ASKED, MEAN_ASKED, MOVED_WEIGHTS, SUMS
from dpdist.mechanisms.wording import MOVES_TWICE
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import SENSITIVITY
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, moves


class WeightRegularisation(NoisySums[Settings, RegularisedCells]):
    """Noisy sums of base cells under moved weights: strict, with δ = 0; no law of the outcome is fitted."""

    spec, sums = Settings, RegularisedCells

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        scales = scales_of(job, settings)
        return tuple(stage(number, scale) for number, scale in enumerate(scales, 1) if scale is not None)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        mean, choice = settings.towards is None, settings.regularisation is None
        by_mean, by_choice, _ = (each * moves(job) for each in MOVED_BY)
        stages = [MEAN_ASKED.format(by_mean)] * mean + [CHOICE_ASKED.format(by_choice)] * choice
        said = SUMS.format(SENSITIVITY * moves(job), left(mean, choice))
        moved = () if job.sizes_secret else (MOVES_TWICE,)
        return promise_of(job, per_set(total, job), MOVED_WEIGHTS, *stages, said, *moved)

    def rounds(
        self, job: Job, settings: Settings, model: RegularisedCells, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        return weight_regularisation(model, float(job.epsilon_per_set), recorder)


def weight_regularisation(model: RegularisedCells, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Releases the common weight, the degree of regularisation, and the cells' sums under moved weights, all with noise.

    The common weight or the degree has no noise if the job states it.
    """
    asked, common, regularisation = np.full(3, np.nan), model.towards, model.fixed
    if common is None:
        mean = WeightSum(model.plain.bounds.weight)
        exact = yield Pass(Count(mean), "sum")
        asked[:1] = yield Defined.by(mean).sums(exact[0], stage(1, model.mean_scale), 1)
        common = model.common(float(asked[0]))
    if regularisation is None:
        distances = Distances(model.plain, common)
        exact = yield Pass(Count(distances), "sum")
        stated = stage(2, model.choice_scale)
        asked[1:] = yield Defined.by(distances).sums(np.abs(exact).sum(axis=0), stated, 2)
        regularisation = model.chosen(asked[1:], common)
    under = model.moved_sums(common, regularisation)
    sums = yield Pass(Count(under), "sum")
    noisy = yield Defined.by(under).sums(sums, stage(3, model.scale), 3)
    used = np.array([[common, regularisation]])
    theta = Draws({"sums": noisy[None], "asked": asked[None], "used": used})
    return released(recorder, [theta], epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"weight_regularisation": WeightRegularisation()}
