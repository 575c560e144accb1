"""Presets of the second and third form: noisy statistics and noisy tables, with what each promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dpdist.job import Job, budget_text
from dpdist.mechanisms import statistics
from dpdist.mechanisms.learned import Learned
from dpdist.mechanisms.promises import parallel, promise_of, referred
from dpdist.mechanisms.protocol import Rounds, StratumRecorder
from dpdist.mechanisms.wording import (
    CLIPPED,
    CLIPPED_SECRET,
    COMPOSED,
    COUNTS,
    FROM_REFERENCE,
    FULL,
    LOCAL,
    LOGNORMAL_SHAPE,
    MOVES_EXCHANGED,
    MOVES_TWICE,
    MOVES_UNKNOWN,
    ONE_BUDGET,
    SANITIZED,
    SANITIZED_GAUSSIAN,
    SETS_ARE_FREE,
    SEVERAL,
    SEVERAL_SECRET,
    SHARED,
    SPLIT,
    SUMS,
)
from dpdist.models.cell_sums import CellSums
from dpdist.models.histogram import Histogram
from dpdist.models.noisy_tables import NoisyTables
from dpdist.models.protocol import StratumModel
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.reference_histograms import Histograms
from dpdist.models.reference_refresh import Refresh
from dpdist.models.sanitized import SanitizedLognormal
from dpdist.privacy.guarantees import Concentrated, NoGuarantee, Promise, Strict
from dpdist.privacy.sanitized import EXCHANGE


@dataclass(frozen=True)
class PerturbedHistogram:
    """[G], Supplement 1: strict, with δ = 0 and no model; every set has noise of its own at ε/m."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COUNTS, MOVES_EXCHANGED)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, Histogram)
        return statistics.perturbed_histogram(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


@dataclass(frozen=True)
class LaplaceStrict:
    """Noisy sums of the finest cells under public bounds, margins added (METHODS §7): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        return promise_of(job, same_x, SUMS, MOVES_TWICE)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, CellSums)
        return statistics.cell_sums(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


@dataclass(frozen=True)
class LaplaceTables:
    """Noisy figures of whole tables, margins noised as cells are ([T]; METHODS §7).

    With the file's own sensitivities, as on the slides, nothing is promised; `laplace_composed` with public bounds is
    strict: the budget is split over the cells that a record enters.
    """

    scope: Literal["file"] = "file"

    def promise(self, job: Job) -> Promise:
        if job.local:
            how = FULL if job.mechanism.name == "laplace" else SHARED
            none = promise_of(job, NoGuarantee(), LOCAL.format(budget_text(job.budget.epsilon)), how)
            return replace(none, composition="none: nothing is promised that could compose")
        same_x = Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1))
        strict = promise_of(job, same_x, COMPOSED, MOVES_TWICE)
        return replace(strict, composition="sequential over the cells, of all tables and margins, that a record falls into")

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, NoisyTables)
        return statistics.noisy_tables(model, recorder)


@dataclass(frozen=True)
class ReferenceTables:
    """Sums of the finest cells, clipped where the reference tells (METHODS §7b): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        several = len(job.model.outcomes) > 1
        public = (CLIPPED, SEVERAL, MOVES_UNKNOWN) if several else (CLIPPED, MOVES_UNKNOWN)
        clipped = (SEVERAL_SECRET if several else CLIPPED_SECRET,) if job.sizes_secret else public
        tables = (ONE_BUDGET,) if len(job.tables) > 1 else ()
        guarantee = Strict(job.budget.adjacency, job.epsilon_per_set)
        promise = promise_of(job, guarantee, *clipped, *tables, FROM_REFERENCE, *referred(job))
        if job.reference is None or job.reference.histogram is None:
            return promise
        first, rest = (budget_text(each) for each in (job.budget.epsilon - job.epsilon_of_tables, job.epsilon_of_tables))
        return replace(promise, composition=promise.composition + SPLIT.format(first, rest))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, ReferenceCells)
        return statistics.reference_tables(model, _known(job, model, learned), float(job.epsilon_per_set), recorder)


def _known(job: Job, model: ReferenceCells, learned: Learned | None) -> Learned | Histograms | Refresh:
    """What fixes the table's limits: a reference, histograms, or an earlier release with histograms of its own bins."""
    if learned is None:
        return Histograms.build(job, model)
    if job.refreshes:
        assert learned.told is not None
        return Refresh.build(job, model, learned.told)
    return learned


@dataclass(frozen=True)
class SanitizedStatistics:
    """Sums of whitened, winsorised records and squares (METHODS §8): strict, with δ = 0; any number of sets at one cost.

    Under Gaussian noise strict zCDP, and ε with a δ.
    """

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        budget, gaussian = job.budget, job.mechanism.noise == "gaussian"
        once: Strict | Concentrated = Strict(budget.adjacency, budget.epsilon)
        if gaussian:
            assert budget.delta is not None
            once = Concentrated(budget.adjacency, budget.epsilon, budget.concentrated, budget.delta, EXCHANGE)
        shown = SANITIZED_GAUSSIAN if gaussian else SANITIZED
        said = promise_of(job, once, shown, MOVES_EXCHANGED, LOGNORMAL_SHAPE, *referred(job))
        return replace(said, total=once, composition=SETS_ARE_FREE.format(job.synthetic_sets) + parallel(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, SanitizedLognormal)
        assert learned is not None
        return statistics.sanitized_statistics(model, learned, float(job.budget.epsilon), job.synthetic_sets, recorder)
