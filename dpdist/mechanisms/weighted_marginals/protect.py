"""Adds noise to weighted tables, chooses pairs of columns, and states the guarantee."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from dpdist.engine.protocol import Choice, Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.coded_tables.beyond_bound import ReferenceWeights
from dpdist.mechanisms.coded_tables.rounds import measured, under_noise
from dpdist.mechanisms.coded_tables.sensitivity import table_scale, tables
from dpdist.mechanisms.coded_tables.statement import ENTERED
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import promise_of, referred
from dpdist.mechanisms.stratum_sums import NoisySums, released
from dpdist.mechanisms.weighted_marginals.adaptive import in_rounds
from dpdist.mechanisms.weighted_marginals.release import Marginals
from dpdist.mechanisms.weighted_marginals.selection import chosen
from dpdist.mechanisms.weighted_marginals.sensitivity import OUTRIGHT as NONE_CHOSEN
from dpdist.mechanisms.weighted_marginals.sensitivity import (
    PAIRS,
    ROUNDS_OF_PAIRS,
    SELECTION,
    SINGLES,
    best_pair,
    choice_scale,
    scales_of_round,
)
from dpdist.mechanisms.weighted_marginals.spec import WeightedMarginals as Settings
from dpdist.mechanisms.weighted_marginals.spec import candidates, forest
from dpdist.mechanisms.weighted_marginals.statement import ADAPTIVE, CHOSEN, LISTED, OUTRIGHT, REFERRED, of_sums
from dpdist.mechanisms.wording import MOVES_EXCHANGED
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, record_epsilon


class WeightedMarginals(NoisySums[Settings, Marginals]):
    """Noisy weighted tables, chosen under noise where the job lists none: strict, with δ = 0.

    No law of the outcomes is fitted.
    """

    spec, sums = Settings, Marginals

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        """All tables of the first pass with the sums of values; then those of pairs, chosen one by one or in rounds."""
        epsilon, adjacency = record_epsilon(job, job.epsilon_per_set), job.budget.adjacency

        def measured_with(part: Fraction, number: int) -> NoisyQuery:
            return tables(number, table_scale(epsilon * part, number, adjacency))

        values, listed = len(settings.sums or ()), settings.marginals
        if listed is not None or len(job.outcomes) == 1:
            return (measured_with(Fraction(1), len(listed or (0,)) + values),)
        first, pairs = len(job.outcomes) + values, forest(candidates(settings.sizes(job)))
        if not settings.chooses(job):
            return measured_with(NONE_CHOSEN, first), measured_with(NONE_CHOSEN, pairs)
        singles = measured_with(SINGLES, first)
        if settings.adapts:
            rounds = ROUNDS_OF_PAIRS * pairs
            choice, table = scales_of_round(epsilon / rounds, adjacency)
            return singles, best_pair(choice, rounds), replace(tables(1, table), times=rounds)
        choice = choice_scale(epsilon * SELECTION, pairs, adjacency)
        return singles, best_pair(choice, pairs), measured_with(PAIRS, pairs)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        alone = settings.marginals is not None or len(job.outcomes) == 1
        chosen_by = ADAPTIVE if settings.adapts else CHOSEN
        how = LISTED if alone else chosen_by if settings.chooses(job) else OUTRIGHT
        moves = () if job.sizes_secret else (MOVES_EXCHANGED,)
        referring = () if job.reference is None else (REFERRED, *referred(job))
        return promise_of(job, total, ENTERED, how, *of_sums(job), *referring, *moves)

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
