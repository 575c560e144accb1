"""Protects by noisy counts over a partition: the promise, the pass over records, and the selection of attributes.

See [S] and METHODS §9.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import Choice, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.partitions.release import PartitionCounts, scales_of
from dpdist.mechanisms.partitions.selection import scores
from dpdist.mechanisms.partitions.sensitivity import layer_counts, selection
from dpdist.mechanisms.partitions.spec import Partitioned
from dpdist.mechanisms.partitions.statement import COUNTED, LAYERS, MOVES, SELECTED
from dpdist.mechanisms.promises import per_set, promise_of
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery


class Partitions(NoisySums[Partitioned, PartitionCounts]):
    """Noisy counts over a partition: strict, with δ = 0; every synthetic set has separate noise at ε/m.

    m is the number of sets. No law of the outcomes is fitted.
    """

    spec, sums = Partitioned, PartitionCounts

    def queries(self, job: Job, settings: Partitioned) -> tuple[NoisyQuery, ...]:
        (counts, scores), sets = scales_of(job, settings), job.synthetic_sets
        chosen = () if scores is None else (selection(scores, sets * settings.selections(job)),)
        return (layer_counts(counts, settings.layers_of(job), sets), *chosen)

    def promised(self, job: Job, settings: Partitioned, total: Strict | Concentrated) -> Promise:
        layers, selections = settings.layers_of(job), settings.selections(job)
        shared = (LAYERS.format(layers=layers, share=1 - settings.selecting),) if layers > 1 else ()
        chosen = (SELECTED.format(selections=selections, share=settings.selecting),) if selections else ()
        return promise_of(job, per_set(total, job), COUNTED, *shared, *chosen, MOVES)

    def rounds(
        self, job: Job, settings: Partitioned, model: PartitionCounts, recorder: StratumRecorder, learned: None
    ) -> Rounds:
        return partition_counts(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def partition_counts(model: PartitionCounts, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Runs algorithm 1 of [S]; `epsilon` is the ε of one set; only the summary uses it."""
    sums = yield Pass(Count(model), "sum")
    numbers, drawn = count(1), []
    for _ in range(sets):
        selected = yield from _selected(model, sums, numbers)
        tree = model.tree(selected)
        stated = layer_counts(model.scale, len(tree.sizes))
        noisy = yield Defined.by((model, selected)).sums(model.layered(tree, sums), stated, next(numbers))
        drawn.append(model.released(selected, noisy))
    return released(recorder, drawn, epsilon, cells=float(model.cells))


def _selected(model: PartitionCounts, sums: Floats, numbers: count[int]) -> Generator[Choice, Any, tuple[Ints, ...]]:
    """The attributes that split the nodes of every layer but the last, selected under noise; none if the job names them."""
    found: tuple[Ints, ...] = ()
    for _ in range(model.selections):
        assert model.score_scale is not None
        known = scores(sums[-model.cells :], found, model.shape)
        own = Defined.by((model, found, "scores"))
        best = yield own.scores(-known, selection(model.score_scale), next(numbers))  # the smallest AIC
        found = (*found, best)
    return found


MECHANISMS: dict[str, Mechanism] = dict.fromkeys(("flat_laplace", "universal_histogram", "steps"), Partitions())
