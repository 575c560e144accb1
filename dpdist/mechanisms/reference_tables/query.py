"""Confidential half of `reference_tables`, for `engine`: clipped sums of base cells and histogram counts, under noise.

`sensitivity` has the sensitivity of both.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats
from dpdist.engine.protocol import Choice, Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, MechanismSpec, budget_text
from dpdist.mechanisms.promises import MOVES_UNKNOWN, per_set, promise_of, referred
from dpdist.mechanisms.reference_tables.cells import ReferenceSummary
from dpdist.mechanisms.reference_tables.histograms import Histograms, Refresh
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import (
    clipped_sums,
    cone,
    first_stage,
    noise_scales,
    simplex,
)
from dpdist.mechanisms.reference_tables.typical_weights import TypicalWeights
from dpdist.mechanisms.stratum_sums import Defined, NoisySums, Summing, released_sets
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.queries import NoisyQuery, record_epsilon

CLIPPED = (
    "A record enters one base cell by 1 − v and vc, v its weight and c its centred outcome, clipped at limits that the "
    "reference and public sizes fixed. Their L1 norm is at most 1. So switching a record off moves both sums by at most "
    "1, and other values at the same x by at most 2. Both have discrete Laplace noise of that scale over ε. Margins are "
    "sums of cells."
)
CLIPPED_IN_STAGES = CLIPPED.replace("over ε.", "over ε₁, what histograms leave of ε.")
CLIPPED_BY_HISTOGRAMS = CLIPPED_IN_STAGES.replace("the reference and", "noisy histograms and")
CLIPPED_SECRET = (
    "A record enters one base cell by 1 − v, v(1 + c)/2 and v(1 − c)/2, v its weight and c its centred outcome, clipped "
    "at limits that the reference alone fixed. They are at least 0 and sum to 1. So adding or removing a record moves the "
    "three sums by 1, and exchanging it for any other by at most 2. All have discrete Laplace noise of scale 1/ε (2/ε "
    "under substitution). Margins are sums of cells."
)
SEVERAL = (
    "With K outcomes a record enters by 1 − v and vc of each. Their L1 norm, with the latter over K, is at most 1: noise "
    "on them has K times that scale."
)
SEVERAL_SECRET = (
    "With K outcomes a record enters one base cell by 1 − v and, for each of them, v(1 + c)/2 and v(1 − c)/2. Here v is "
    "its weight and c its centred outcome, clipped at limits that the reference alone fixed. They are at least 0, and 1 − "
    "v and the others over K sum to 1. So adding or removing a record moves the sums by 1 in this norm, and exchanging it "
    "for any other by at most 2. All have discrete Laplace noise, of scale 1/ε on the sum of 1 − v and K/ε on every other "
    "(twice that under substitution). Margins are sums of cells."
)
ONE_BUDGET = "All tables are sums of the same base cells, so that one budget serves them all and none is split."
FROM_REFERENCE = (
    "Limits, units, clipping's inverse and the tails beyond the limits come from the reference alone. Where the current "
    "file's shape is another, beyond a scale of weights and of outcomes, the estimates' bias is in no standard error."
)
FROM_HISTOGRAMS = (
    "Limits, and what estimates hold beyond them, come from the noisy histograms alone. Errors hold their noise and, as a "
    "bias, half of what a group's histogram has beyond the limits. They hold as many records as noise may hide there, too, "
    "if these fall as the histogram does. "
    "A cell's own tail may be farther from its group's. Weights and outcomes may depend on each other there in another way "
    "than below the limits. That part of the bias is in no standard error. Where noise is as large as the counts of a long "
    "tail, means lean upwards, because no count is below 0."
)
Source: TypeAlias = ReferenceSummary | TypicalWeights | Histograms | Refresh
"""What fixes the limits of the table."""
SPLIT = "; sequential within a set: ε₀ = {} for the histograms that fix the limits, ε₁ = {} for the table"
SPLIT_RHO = "; sequential within a set: ρ₀ = {:.6g}, that of ε₀ = {}, for the histograms, ρ₁ = {:.6g} for the table"


@dataclass(frozen=True)
class ClippedSums(Summing):
    """Kernel: sums of clipped statistics by unit of the table, (unit, sum), as whole multiples of 1/UNIT."""

    model: ReferenceCells

    def sums(self, records: Records) -> Floats:
        limits, unit = self.model.limits, self.model.unit
        assert limits is not None
        assert unit is not None
        cell, units = self.model.pattern(records.frame), int(unit.max()) + 1
        # Public weights are not read: whatever a file has there, its sums are those of weights of 1.
        weight = records.weight if self.model.design_weight is None else np.ones(len(cell))
        clipped = (simplex if self.model.simplex else cone)(limits, cell, weight, records.outcomes)
        return np.column_stack([np.bincount(unit[cell], weights=column, minlength=units) for column in clipped.T])


@dataclass(frozen=True)
class HistogramCounts(Summing):
    """Kernel: counts (group, bin) of all histograms side by side; a record is in one bin of each, in its cell's group."""

    histograms: Histograms | Refresh

    def sums(self, records: Records) -> Floats:
        histograms, model = self.histograms, self.histograms.model
        columns = [*([records.weight] if model.weighted else []), *(records.outcomes[:, k] for k in histograms.shaped)]
        cell, groups = model.pattern(records.frame), int(histograms.group.max()) + 1
        counts = []
        for size, number in histograms.binned(cell, columns):
            key = (histograms.group[cell] * np.int64(size) + number)[number >= 0]
            counts.append(np.bincount(key, minlength=groups * size).reshape(groups, size))
        return np.concatenate(counts, axis=1).astype(np.float64)


@dataclass(frozen=True)
class PositionSums(Summing):
    """Kernel: by cell, sums of where weights lie between their public bounds, (cell,), as whole multiples of 1/UNIT."""

    typical: TypicalWeights

    def sums(self, records: Records) -> Floats:
        model = self.typical.model
        cell, position = model.pattern(records.frame), self.typical.positions(records.weight)
        return np.asarray(np.bincount(cell, weights=position, minlength=len(model.labels)), dtype=np.float64)


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
        return *first_stage(job), tables

    def promised(self, job: Job, settings: MechanismSpec, total: Strict | Concentrated) -> Promise:
        several = len(job.outcomes) > 1
        moves = () if job.sizes_secret else (MOVES_UNKNOWN,)
        public = (_clipped(job), *((SEVERAL,) if several else ()), *moves)
        clipped = (SEVERAL_SECRET if several else CLIPPED_SECRET,) if job.sizes_in_sums else public
        tables = (ONE_BUDGET,) if len(job.tables) > 1 else ()
        source = FROM_HISTOGRAMS if job.on_histograms else FROM_REFERENCE
        return in_stages(job, promise_of(job, per_set(total, job), *clipped, *tables, source, *referred(job)))

    def rounds(
        self,
        job: Job,
        settings: MechanismSpec,
        model: ReferenceCells,
        recorder: StratumRecorder,
        learned: ReferenceSummary | None,
    ) -> Rounds:
        return reference_tables(model, _known(job, model, learned), float(job.epsilon_per_set), recorder)

    def shape_groups(self, job: Job, model: StratumModel) -> Codes | None:
        """For every frame row, (row,), the group of cells with which it shares histograms; None if a reference gives
        shapes."""
        if not job.on_histograms or not isinstance(model, ReferenceCells):
            return None
        source = TypicalWeights.build(job, model)
        histograms = source if isinstance(source, Histograms) else source.histograms
        return histograms.group[model.design.pattern]


def in_stages(job: Job, promise: Promise) -> Promise:
    """The promise with the parts of ε that histograms and the table take, where the job pays for histograms."""
    if job.reference is None or job.reference.paid is None:
        return promise
    first, rest = (budget_text(part) for part in (job.reference.paid.epsilon, job.epsilon_of_tables))
    split = SPLIT.format(first, rest)
    if job.mechanism.gaussian:
        split = SPLIT_RHO.format(float(job.rho_of_histograms), first, float(job.rho_of_tables))
    return replace(promise, composition=promise.composition + split)


def _clipped(job: Job) -> str:
    """The assumptions on the noise and on bounds of a record's contribution, under public sizes."""
    if job.on_histograms:
        return CLIPPED_BY_HISTOGRAMS
    return CLIPPED_IN_STAGES if job.refreshes else CLIPPED


def _known(job: Job, model: ReferenceCells, learned: ReferenceSummary | None) -> Source:
    """The source of the table's limits: a reference, histograms, or an earlier release updated by histograms."""
    if learned is None:
        return TypicalWeights.build(job, model)
    if job.refreshes:
        return Refresh.build(job, model, learned.cells)
    return learned


def reference_tables(model: ReferenceCells, source: Source, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Releases sums of base cells under noise, clipped at limits from a reference; the rest is post-processing (§7b).

    If histograms replace or update a reference, they are released first, under independent noise. If histograms replace the
    reference and count relative weights, typical weights are learned first.
    """
    if not isinstance(source, ReferenceSummary):
        histograms, noisy_counts = yield from noisy_histograms(source)
        cells = histograms.summarise(noisy_counts)
        limits = model.limited(cells)
    else:
        cells, limits = source.cells, source.limits
    model = model.within(limits, model.units(cells))
    sums = yield Pass(ClippedSums(model), "sum")
    (first, other), bound = model.scales, Defined.by_content(model)
    stated = clipped_sums(first)
    if first == other:
        noisy = yield bound.sums(sums, stated, 1)
    else:
        of_weight = yield bound.sums(sums[:, 0], stated, 1)
        others = yield bound.sums(sums[:, 1:], stated.further(other), 2)
        noisy = np.column_stack([of_weight, others])
    return released_sets(recorder, [model.clipping_inverted(noisy, cells)], epsilon, cells=float(len(sums)))


FirstStage: TypeAlias = Generator[Pass | Measurement | Choice, Any, tuple[Histograms | Refresh, Floats]]


def noisy_histograms(source: TypicalWeights | Histograms | Refresh) -> FirstStage:
    """The histograms with their noisy counts; where they are to be of relative weights, typical ones are learned first."""
    histograms = (yield from _relative(source)) if isinstance(source, TypicalWeights) else source
    counts = yield Pass(HistogramCounts(histograms), "sum")
    noisy = yield Defined.by_content(histograms).sums(counts, histograms.query, 0)
    return histograms, noisy


def _relative(source: TypicalWeights) -> Generator[Pass | Measurement | Choice, Any, Histograms]:
    """Learns typical weights; returns histograms of weights relative to these."""
    sums, bound = (yield Pass(PositionSums(source), "sum")), Defined.by_content(source)
    (noisy_total,) = yield bound.sums(sums.sum(keepdims=True), source.total, 3)
    of_choice = Defined.by_content((source, float(noisy_total)))
    (chosen,) = yield of_choice.scores(source.scores(sums, float(noisy_total))[None], source.choice, 4)
    by_level = Defined.by_content((source, int(chosen)))
    noisy = yield by_level.sums(source.level_sums(sums, int(chosen)), source.by_level, 5)
    return source.relative(noisy, int(chosen))


MECHANISMS: dict[str, Mechanism] = {"reference_tables": ReferenceTables()}
