"""Adds noise to clipped sums of base cells, and states the guarantee (METHODS §7b)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpdist.engine.protocol import Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec, budget_text
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.promises import per_set, promise_of, referred
from dpdist.mechanisms.reference_tables.clipped_cells import ReferenceSummary
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.release import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import (
    clipped_sums,
    count_scale_of,
    histogram_counts,
    histograms_of,
    noise_scales,
)
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
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, released
from dpdist.mechanisms.wording import MOVES_UNKNOWN
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, record_epsilon


class ReferenceTables(NoisySums[MechanismSpec, ReferenceCells]):
    """Sums of base cells, clipped at limits from a reference (METHODS §7b): strict, with δ = 0.

    No law of the outcome is fitted.
    """

    sums = ReferenceCells

    def queries(self, job: Job, settings: MechanismSpec) -> tuple[NoisyQuery, ...]:
        scales = noise_scales(record_epsilon(job, job.epsilon_of_tables), job.budget.adjacency, len(job.outcomes))
        tables = clipped_sums(scales[0])
        if job.reference is None or job.reference.paid is None:
            return (tables,)
        number = histograms_of(job)
        epsilon = record_epsilon(job, job.reference.paid.epsilon)
        return histogram_counts(number, count_scale_of(number, epsilon, job.budget.adjacency)), tables

    def promised(self, job: Job, settings: MechanismSpec, total: Strict | Concentrated) -> Promise:
        several = len(job.outcomes) > 1
        moves = () if job.sizes_secret else (MOVES_UNKNOWN,)
        public = (_clipped(job), *((SEVERAL,) if several else ()), *moves)
        clipped = (SEVERAL_SECRET if several else CLIPPED_SECRET,) if job.sizes_in_sums else public
        tables = (ONE_BUDGET,) if len(job.tables) > 1 else ()
        source = FROM_HISTOGRAMS if job.on_histograms else FROM_REFERENCE
        promise = promise_of(job, per_set(total, job), *clipped, *tables, source, *referred(job))
        if job.reference is None or job.reference.paid is None:
            return promise
        first, rest = (budget_text(each) for each in (job.reference.paid.epsilon, job.epsilon_of_tables))
        return replace(promise, composition=promise.composition + SPLIT.format(first, rest))

    def rounds(
        self,
        job: Job,
        settings: MechanismSpec,
        model: ReferenceCells,
        recorder: StratumRecorder,
        learned: ReferenceSummary | None,
    ) -> Rounds:
        return reference_tables(model, _known(job, model, learned), float(job.epsilon_per_set), recorder)


def _clipped(job: Job) -> str:
    """The assumptions that bound a record's contribution under public sizes, and the noise."""
    if job.on_histograms:
        return CLIPPED_BY_HISTOGRAMS
    return CLIPPED_IN_STAGES if job.refreshes else CLIPPED


def _known(job: Job, model: ReferenceCells, learned: ReferenceSummary | None) -> ReferenceSummary | Histograms | Refresh:
    """The source of the table's limits: a reference, histograms, or an earlier release updated by histograms."""
    if learned is None:
        return Histograms.build(job, model)
    if job.refreshes:
        return Refresh.build(job, model, learned.told)
    return learned


def reference_tables(
    model: ReferenceCells, known: ReferenceSummary | Histograms | Refresh, epsilon: float, recorder: StratumRecorder
) -> Rounds:
    """Releases sums of base cells under noise, clipped at limits from a reference; the rest is post-processing (§7b).

    Histograms may replace a reference, or update one. They are released first, under independent noise.
    """
    if isinstance(known, Histograms | Refresh):
        counts = yield Pass(Count(known), "sum")
        noisy_counts = yield Defined.by(known).sums(counts, known.query, 0)
        told = known.summarise(noisy_counts)
        limits = model.limited(told)
    else:
        told, limits = known.told, known.limits
    model = model.within(limits, model.units(told))
    sums = yield Pass(Count(model), "sum")
    (first, other), own = model.scales, Defined.by(model)
    stated = clipped_sums(first)
    if first == other:
        noisy = yield own.sums(sums, stated, 1)
    else:
        of_weight = yield own.sums(sums[:, 0], stated, 1)
        others = yield own.sums(sums[:, 1:], stated.further(other), 2)
        noisy = np.column_stack([of_weight, others])
    return released(recorder, [model.clipping_inverted(noisy, told)], epsilon, cells=float(len(sums)))


MECHANISMS: dict[str, Mechanism] = {"reference_tables": ReferenceTables()}
