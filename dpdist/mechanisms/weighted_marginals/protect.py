"""Adds noise to weighted tables, chooses pairs of columns, and states the guarantee."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

import numpy as np

from dpdist.engine.protocol import Choice, Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.marginals import WeightedMarginals as Settings
from dpdist.mechanisms.coded_tables.beyond_bound import ReferenceWeights
from dpdist.mechanisms.coded_tables.rounds import measured, under_noise
from dpdist.mechanisms.coded_tables.statement import ENTERED
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import promise_of, referred
from dpdist.mechanisms.stratum_sums import NoisySums, released
from dpdist.mechanisms.weighted_marginals.adaptive import in_rounds
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.selection import chosen
from dpdist.mechanisms.weighted_marginals.statement import ADAPTIVE, CHOSEN, LISTED, OUTRIGHT, REFERRED, of_sums
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Promise, Strict


class WeightedMarginals(NoisySums[Settings, Marginals]):
    """Noisy weighted tables, chosen under noise where the job lists none: strict, with δ = 0.

    No law of the outcomes is fitted.
    """

    spec, sums = Settings, Marginals

    def promised(self, job: Job, settings: Settings) -> Promise:
        alone = settings.marginals is not None or len(job.outcomes) == 1
        chosen_by = ADAPTIVE if settings.adapts else CHOSEN
        how = LISTED if alone else chosen_by if settings.chooses(job) else OUTRIGHT
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        referring = () if job.reference is None else (REFERRED, *referred(job))
        return promise_of(
            job, Strict(job.budget.adjacency, job.epsilon_per_set), ENTERED, how, *of_sums(job), *referring, *moves
        )

    def rounds(
        self, job: Job, settings: Settings, model: Marginals, recorder: StratumRecorder, learned: ReferenceWeights | None
    ) -> Rounds:
        theta = yield from weighted_marginals(model)
        if learned is not None:
            theta = model.with_weights_beyond(theta, learned)
        return released(recorder, [theta], float(job.epsilon_per_set), cells=float(theta["sums"].size))


def weighted_marginals(model: Marginals) -> Generator[Pass | Choice | Measurement, Any, Draws]:
    """Measures the job's tables with all of ε; if it lists none, each column's table and then tables of pairs of columns.

    The chosen pairs are those that the columns' tables explain least. If the candidate pairs make no loop, all of them
    are measured, and no budget is spent on a choice. An adaptive choice alternates with measuring. Sums of values that the
    job names share the ε of the tables that are measured first.
    """
    numbers, keys, first = count(1), model.listed, model.listed or model.singles
    noisy = yield from under_noise(model.with_values(first) if model.values else model.measuring(first), numbers)
    sums, values = np.split(noisy, [model.cells(first)])
    if keys is None:
        if model.adaptive:
            return model.with_noisy_values((yield from in_rounds(model, sums, numbers)), values)
        fitted = model.fitted(model.released(first, sums))
        pairs = model.candidates
        if model.chooses:
            exact = yield Pass(Count(model.measuring(pairs)), "sum")
            pairs = yield from chosen(model, list(fitted.margins), exact, numbers)
        of_pairs = yield from measured(model, pairs, numbers)
        sums, keys = np.concatenate([sums, of_pairs]), (*first, *pairs)
    return model.with_noisy_values(model.released(keys, sums), values)


MECHANISMS: dict[str, Mechanism] = {"weighted_marginals": WeightedMarginals()}
