"""Confidential half of the partition mechanisms: noisy counts, and selection of the attributes that split ([S], eq. 4)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats, Ints
from dpdist.engine.protocol import Choice, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.partitions.post import PartitionCounts, codes_of, grown
from dpdist.mechanisms.partitions.sensitivity import layer_counts, selection
from dpdist.mechanisms.partitions.spec import Partitioned
from dpdist.mechanisms.promises import Defined, NoisySums, Summing, per_set, promise_of, released_sets
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict

COUNTED = (
    "Levels and public bounds of the outcomes define the cells of a partition. Let v be a record's weight divided by its "
    "public bound, at most 1 (1 without weights). Each record adds v to one node in every layer of a tree over the cells, "
    "and 1 − v to one sum. The L1 sensitivity of a layer is 1 when a record's values are left out, and 2 when they "
    "change. All counts, including those of empty cells, have discrete Laplace noise with scale sensitivity/ε of their "
    "layer."
)
LAYERS = "The tree has {layers} layers. Each gets {share} of the ε of one synthetic set."
SELECTED = (
    "Attributes that split the tree are selected node by node, by the smallest AIC with discrete Laplace noise. "
    "This takes {share} of the ε of one synthetic set, in equal parts for {selections} on every branch. The AIC of a node "
    "has sensitivity 2, as the number of levels is public."
)
MOVES = (
    "The guarantee does not cover a record that moves to another stratum. The move would be visible in the public "
    "counts, and there is no bound on what the noisy counts could reveal about it."
)


@dataclass(frozen=True)
class CellCounts(Summing):
    """Kernel: the sum of 1 − v where there are weights, then Σv of every cell, (sum,), in whole units of 1/UNIT."""

    model: PartitionCounts

    def sums(self, records: Records) -> Floats:
        model, units = self.model, np.full(len(records), float(UNIT))
        v = units if model.weights is None else np.rint(units * (records.weight / model.weights[1]))
        levels = [attribute.level(y) for attribute, y in zip(model.attributes, records.outcomes.T, strict=True)]
        cell = np.ravel_multi_index(levels, model.shape)
        counts = np.bincount(cell, weights=v, minlength=model.cells).astype(np.float64)
        return counts if model.weights is None else np.concatenate([[(units - v).sum()], counts])


def aic(counts: Floats) -> Floats:
    """AIC of every row of K counts c (…, level): 2K − 2 log L, with log L = g(n) − Σ g(c) and g(c) = log Γ(c + 1) − c
    log c.

    n is the sum of the counts.
    """

    def g(value: Floats) -> Floats:
        return np.asarray(scipy.special.gammaln(value + 1.0) - scipy.special.xlogy(value, value))

    return np.asarray(2.0 * counts.shape[-1] - 2.0 * (g(counts.sum(axis=-1)) - g(counts).sum(axis=-1)))


def scores(cells: Floats, selected: Sequence[Ints], levels: Sequence[int]) -> Floats:
    """The AIC of every attribute in every node of the present tree, (node, attribute), in whole units of 1/UNIT.

    It is infinite for attributes that already split the node. `cells` are the cells' counts in whole units of 1/UNIT.
    """
    layers, is_used = grown(selected, levels)
    nodes, codes = layers[-1], codes_of(levels)
    values = np.empty(is_used.shape)
    for attribute, number in enumerate(levels):
        counts = np.bincount(nodes * number + codes[attribute], weights=cells, minlength=len(is_used) * number)
        values[:, attribute] = np.rint(aic(counts.reshape(-1, number) / UNIT) * UNIT)
    return np.where(is_used, np.inf, values)


class Partitions(NoisySums[Partitioned, PartitionCounts]):
    """Noisy counts over a partition: strict, with δ = 0; each of m synthetic sets has separate noise at ε/m.

    No law of the outcomes is fitted.
    """

    spec, sums = Partitioned, PartitionCounts

    def queries(self, job: Job, settings: Partitioned) -> tuple[NoisyQuery, ...]:
        scores = selection(job, settings)
        return layer_counts(job, settings), *(() if scores is None else (scores,))

    def promised(self, job: Job, settings: Partitioned, total: Strict | Concentrated) -> Promise:
        layers, selections = settings.layers_of(job), settings.selections(job)
        shared = (LAYERS.format(layers=layers, share=(1 - settings.selecting) / layers),) if layers > 1 else ()
        numbered = f"{selections} selection{'s' * (selections > 1)}"
        selection_texts = (SELECTED.format(selections=numbered, share=settings.selecting),) if selections else ()
        return promise_of(job, per_set(total, job), COUNTED, *shared, *selection_texts, MOVES)

    def rounds(
        self, job: Job, settings: Partitioned, model: PartitionCounts, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        """Algorithm 1 of [S]."""
        counted, *selecting = self.queries(job, settings)
        sums = yield Pass(CellCounts(model), "sum")
        numbers, draws = count(1), []
        for _ in range(job.synthetic_sets):
            selected = (yield from _select(model, sums, selecting[0], numbers)) if selecting else ()
            layered = model.layered(model.tree(selected), sums)
            noisy = yield Defined.by_content((model, selected)).sums(layered, counted, next(numbers))
            draws.append(model.released(selected, noisy))
        return released_sets(recorder, draws, float(job.epsilon_per_set), cells=float(model.cells))


def _select(
    model: PartitionCounts, sums: Floats, query: NoisyQuery, numbers: count[int]
) -> Generator[Choice, Any, tuple[Ints, ...]]:
    """The attributes, selected under noise, that split the nodes of every layer but the last."""
    attributes: tuple[Ints, ...] = ()
    for _ in range(model.selections):
        aics = scores(sums[-model.cells :], attributes, model.shape)
        defined = Defined.by_content((model, attributes, "scores"))
        best = yield defined.scores(-aics, query, next(numbers))  # the smallest AIC
        attributes = (*attributes, best)
    return attributes


MECHANISMS: dict[str, Mechanism] = dict.fromkeys(("flat_laplace", "universal_histogram", "steps"), Partitions())
