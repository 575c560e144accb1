"""Noisy counts over a partition: what is promised, the one pass over records, and what is selected ([S]; METHODS §9)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.job.partitions import Partitioned
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.partitions.release import PartitionCounts
from dpdist.mechanisms.partitions.selection import least, scores
from dpdist.mechanisms.partitions.statement import COUNTED, LAYERS, MOVES, SELECTED
from dpdist.mechanisms.promises import promise_of
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Promise, Strict


@dataclass(frozen=True)
class Partitions:
    """Strict, with δ = 0 and no model; every set has noise of its own at ε/m."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        said = job.mechanism
        assert isinstance(said, Partitioned)
        layers, selections = said.layers_of(job), said.selections(job)
        shared = (LAYERS.format(layers=layers, share=1 - said.selecting),) if layers > 1 else ()
        chosen = (SELECTED.format(selections=selections, share=said.selecting),) if selections else ()
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COUNTED, *shared, *chosen, MOVES)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        assert isinstance(model, PartitionCounts)
        return partition_counts(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


def partition_counts(model: PartitionCounts, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Algorithm 1 of [S]; `epsilon`: a set's, for the summary."""
    sums = yield Pass(Count(model), "sum")
    numbers, released = count(1), []
    for _ in range(sets):
        selected = yield from _selected(model, sums, numbers)
        nodes = model.layered(model.tree(selected), sums)
        noise = yield Noise(model.scale, len(nodes), next(numbers), "laplace", digest((model, selected)), digest(sums))
        released.append(model.released(selected, nodes + noise))
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(model.cells)}}))
    return Released(tuple(released))


def _selected(model: PartitionCounts, sums: Floats, numbers: count[int]) -> Generator[Noise, Any, tuple[Ints, ...]]:
    """Attributes that split the nodes of every layer but the last, selected under noise; none where the job names them."""
    found: tuple[Ints, ...] = ()
    for _ in range(model.selections):
        assert model.score_scale is not None
        known = scores(sums[-model.cells :], found, model.shape)
        query, exact = digest((model, found, "scores")), digest(sums)
        noise = yield Noise(model.score_scale, known.size, next(numbers), "laplace", query, exact)
        found = (*found, least(known, noise.reshape(known.shape)))
    return found
