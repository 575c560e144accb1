"""Clipped sums of base cells under noise: what is promised, and the passes over records (METHODS §7b)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.digests import digest
from dpdist.engine.protocol import Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.job import Job, budget_text
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import promise_of, referred
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.reference_summary import ReferenceSummary
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.reference_tables.statement import (
    CLIPPED,
    CLIPPED_BY_HISTOGRAMS,
    CLIPPED_IN_STAGES,
    CLIPPED_SECRET,
    FROM_HISTOGRAMS,
    FROM_REFERENCE,
    ONE_BUDGET,
    SEVERAL,
    SEVERAL_SECRET,
    SPLIT,
)
from dpdist.mechanisms.reference_tables.update import Refresh
from dpdist.mechanisms.wording import MOVES_UNKNOWN
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Promise, Strict


@dataclass(frozen=True)
class ReferenceTables:
    """Sums of the finest cells, clipped where the reference tells (METHODS §7b): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        several = len(job.outcomes) > 1
        moves = () if job.sizes_secret else (MOVES_UNKNOWN,)
        public = (_clipped(job), *((SEVERAL,) if several else ()), *moves)
        clipped = (SEVERAL_SECRET if several else CLIPPED_SECRET,) if job.sizes_in_sums else public
        tables = (ONE_BUDGET,) if len(job.tables) > 1 else ()
        guarantee = Strict(job.budget.adjacency, job.epsilon_per_set)
        source = FROM_HISTOGRAMS if job.on_histograms else FROM_REFERENCE
        promise = promise_of(job, guarantee, *clipped, *tables, source, *referred(job))
        if job.reference is None or job.reference.histogram is None:
            return promise
        first, rest = (budget_text(each) for each in (job.reference.histogram.epsilon, job.epsilon_of_tables))
        return replace(promise, composition=promise.composition + SPLIT.format(first, rest))

    def protect(
        self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: ReferenceSummary | None = None
    ) -> Rounds:
        assert isinstance(model, ReferenceCells)
        return reference_tables(model, _known(job, model, learned), float(job.epsilon_per_set), recorder)


def _clipped(job: Job) -> str:
    """What bounds a record's part under public sizes, and the noise on it."""
    if job.on_histograms:
        return CLIPPED_BY_HISTOGRAMS
    return CLIPPED_IN_STAGES if job.refreshes else CLIPPED


def _known(job: Job, model: ReferenceCells, learned: ReferenceSummary | None) -> ReferenceSummary | Histograms | Refresh:
    """What fixes the table's limits: a reference, histograms, or an earlier release with histograms of its own bins."""
    if learned is None:
        return Histograms.build(job, model)
    if job.refreshes:
        return Refresh.build(job, model, learned.told)
    return learned


def reference_tables(
    model: ReferenceCells, known: ReferenceSummary | Histograms | Refresh, epsilon: float, recorder: StratumRecorder
) -> Rounds:
    """Sums of every finest cell, clipped where the reference tells, under noise; the rest is post-processing (§7b).

    Histograms, in place of what a reference fixed or to bring it up to date, are released first, under noise of their own.
    """
    if isinstance(known, Histograms | Refresh):
        counts = yield Pass(Count(known), "sum")
        noise = yield Noise(known.scale, counts.size, 0, "laplace", digest(known), digest(counts))
        told = known.summarise(counts + noise.reshape(counts.shape))
        limits = model.limited(told)
    else:
        told, limits = known.told, known.limits
    model = model.within(limits, model.units(told))
    sums = yield Pass(Count(model), "sum")
    (cells, columns), (first, other) = sums.shape, model.scales
    query, exact = digest(model), digest(sums)
    if first == other:
        noise = yield Noise(first, sums.size, 1, "laplace", query, exact)
        noise = noise.reshape(sums.shape)
    else:
        of_weight = yield Noise(first, cells, 1, "laplace", query, exact)
        others = yield Noise(other, cells * (columns - 1), 2, "laplace", query, exact)
        noise = np.column_stack([of_weight, others.reshape(cells, columns - 1)])
    summary = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**summary, "diagnostics": {"cells": float(cells)}}))
    noisy = sums + noise
    return Released((model.clipping_inverted(noisy, told),))
