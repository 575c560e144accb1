"""Confidential half of `table_package`, for `engine`: noisy sums over groups of base cells, clipped at limits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.engine.protocol import Choice, Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job
from dpdist.mechanisms.promises import (
    BINNED_COUNTS,
    GAUSSIAN_COUNTS,
    MOVES_UNKNOWN,
    per_set,
    promise_of,
    provenance,
    referred,
)
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.query import in_stages, noisy_histograms
from dpdist.mechanisms.reference_tables.sensitivity import first_stage
from dpdist.mechanisms.stratum_sums import Defined, LossExceeded, NoisySums, Summing, released_sets
from dpdist.mechanisms.table_package.post import FromReference, PackageCells
from dpdist.mechanisms.table_package.sensitivity import joint_query
from dpdist.mechanisms.table_package.spec import TablePackage as Settings
from dpdist.models.protocol import Improper
from dpdist.packages.limits import CellLimits
from dpdist.packages.package import Package
from dpdist.packages.strategy import FACTOR_STEPS, Measured
from dpdist.privacy.guarantees import Concentrated, Promise, Strict
from dpdist.privacy.noise import LARGEST_SCORE
from dpdist.privacy.queries import NoisyQuery

CLIPPED = (
    "Each record adds its clipped weight and its clipped, centred outcome to one sum of every measurement; together at "
    "most 1. Job, reference and public sizes fixed the limits. So switching a record off moves a measurement by at most 1, "
    "and other values at the same x by at most 2."
)
CLIPPED_KNOWN = (
    "Each record adds its clipped, centred outcome to one sum of every measurement; at most 1. Job, reference and public "
    "sizes fixed the limits. So switching a record off moves a "
    "measurement by at most 1, and other values at the same x by at most 2. Counts follow from public weights and numbers."
)
CLIPPED_SECRET = (
    "Each record adds its clipped weight and its clipped, centred outcome to one sum of every measurement; together at "
    "most 1. Job and reference fixed the limits. So adding or removing a record moves a measurement by at most 1, and "
    "exchanging it for any other by at most 2."
)
SHARED_SECRET = (
    "The groups, the expected numbers of records and the parts of the budget follow from the job and the reference alone. "
    "The parts sum to 1, so that all measurements together cost the budget. Numbers of records are estimated from the "
    "noisy sums, and all tables follow from these by post-processing."
)
LAPLACE = "A measurement with the part s of ε has discrete Laplace noise of that scale over sε."
GAUSSIAN = "A measurement with the part s of ρ has discrete Gaussian noise of σ = that over √(2sρ)."
SEVERAL = (
    "With several outcomes a measurement takes each of them times a public part of its own. These parts sum to 1. So the "
    "L1 norm of all its sums is still at most 1, and all figures have one budget."
)
SHARED = (
    "The groups and the parts of the budget follow from the job, the reference and public sizes alone. The parts "
    "sum to 1, so that all measurements together cost the budget. All tables follow from them by post-processing."
)
SHAPE = (
    "Limits, levels of base cells, and what lies beyond the limits come from the reference. How far it is trusted follows "
    "from the noisy measurements and from constants. Of a change of shape that no measurement shows, standard errors have "
    "a tenth of what lies beyond the limits."
)

AFTER_HISTOGRAMS = 6
"""Number of a stratum's first query after those of histograms."""

BY_HISTOGRAMS = {
    **{
        text: text.replace("Job, reference and public sizes", "Job, noisy histograms and public sizes")
        for text in (CLIPPED, CLIPPED_KNOWN)
    },
    LAPLACE: LAPLACE.replace("with the part s of ε", "with the part s of ε₁, what histograms leave of ε,").replace(
        "sε", "sε₁"
    ),
    GAUSSIAN: GAUSSIAN.replace("with the part s of ρ", "with the part s of ρ₁, what histograms leave of ρ,").replace(
        "2sρ", "2sρ₁"
    ),
    SHARED: SHARED.replace("the reference", "noisy histograms").replace("cost the budget", "cost ε₁"),
}
"""Texts where noisy histograms of the current file stand in for a reference."""
SHAPE_OF_HISTOGRAMS = (
    "Limits, and what lies beyond them, follow from the noisy histograms of a base cell's group. Weights and outcomes are "
    "taken to be independent within a group. Levels of base cells follow from the noisy sums and from constants. Standard "
    "errors have half of what lies beyond the limits, in every term that cells share. A cell's own tail may differ more."
)


def contributions(limits: CellLimits, cell: Ints, weight: Floats, outcomes: Floats) -> Floats:
    """a, v and q of every outcome, of every record in whole units of 1/UNIT, (record, 2 + outcomes).

    `outcomes` are (record, outcome), or (record,) for one. Weights and outcomes are clipped here, so any values are
    allowed, except NaN and negative weights.
    """
    cap = limits.cap[cell]
    v = (np.clip(weight, 0.0, cap) / cap)[:, None]
    # A warning for some values only would reveal them; values that overflow are clipped.
    with np.errstate(over="ignore"):
        c = np.clip((outcomes.reshape(len(cell), -1) - limits.centre[cell]) / limits.half[cell], -1.0, 1.0)
    left = np.rint(UNIT * (1.0 - v))
    return np.column_stack([left, UNIT - left, np.clip(np.rint(UNIT * v * c), left - UNIT, UNIT - left)])


def base_sums(limits: CellLimits, cell: Ints, weight: Floats, outcomes: Floats) -> Floats:
    """Sums of a, v and q of every outcome by base cell, (cell, 2 + outcomes), whole."""
    parts = contributions(limits, cell, weight, outcomes)
    return np.column_stack([np.bincount(cell, weights=part, minlength=len(limits.cap)) for part in parts.T])


def hold(measurements: Sequence[Measured], parts: Sequence[Fraction], outcomes: int) -> None:
    """Raises `LossExceeded` for factors or parts of the budget under which the stated loss would not hold."""
    if min(parts) <= 0 or sum(parts) > 1:
        raise LossExceeded(f"parts of the budget that are not above 0, or sum to {float(sum(parts))}")
    for one in measurements:
        # A record moves rows by f a, and by at most so much times v. Since a + v = 1, that is at most 1 in L1.
        factors = (one.of_weight, *one.of_outcome, *one.of_level)
        whole = all(bool((factor.data == np.rint(factor.data)).all()) for factor in factors)
        if not (whole and all(bool((norm <= FACTOR_STEPS).all()) for norm in one.moves(outcomes))):
            raise LossExceeded(f"factors of '{one.name}' that are not whole, or move it by more than is stated")


@dataclass(frozen=True)
class BaseSums(Summing):
    """Kernel: the sums of every base cell, (cell, 2 + outcomes), in whole units of 1/UNIT, clipped at the limits."""

    pattern: Codes
    """The base cell of every frame row."""
    limits: CellLimits
    weighted: bool
    """False if weights are public: no record's weight is read, and v is 1 whatever the file has there."""

    def sums(self, records: Records) -> Floats:
        cell = self.pattern[records.frame].astype(np.int64)
        return base_sums(self.limits, cell, records.weight if self.weighted else self.limits.cap[cell], records.outcomes)


class TablePackage(NoisySums[Settings, PackageCells]):
    """A package of tables: strict, pure with δ = 0 or zCDP (docs/methods.md, §9c).

    No law of the outcome is fitted.
    """

    spec, sums = Settings, PackageCells

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        joint = joint_query(job, settings.noise)
        return (*first_stage(job), joint) if job.on_histograms else (joint,)

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        law = GAUSSIAN if settings.gaussian else LAPLACE
        several = (SEVERAL,) if len(job.outcomes) > 1 else ()
        clipped = CLIPPED if job.survey.measured_weight is not None else CLIPPED_KNOWN
        if job.on_histograms:
            counts = GAUSSIAN_COUNTS if settings.gaussian else BINNED_COUNTS
            clipped, law, shared = (BY_HISTOGRAMS[text] for text in (clipped, law, SHARED))
            rest = (
                *several,
                shared.replace("ε₁", "ρ₁") if settings.gaussian else shared,
                MOVES_UNKNOWN,
                SHAPE_OF_HISTOGRAMS,
                counts,
                *provenance(job),
            )
            return in_stages(job, promise_of(job, per_set(total, job), f"{clipped} {law}", *rest))
        public = (f"{clipped} {law}", *several, SHARED, MOVES_UNKNOWN)
        secret = (f"{CLIPPED_SECRET} {law}", *several, SHARED_SECRET)
        texts = (*(secret if job.sizes_in_sums else public), SHAPE, *referred(job))
        return promise_of(job, per_set(total, job), *texts)

    def rounds(
        self,
        job: Job,
        settings: Settings,
        model: PackageCells,
        recorder: StratumRecorder,
        learned: FromReference | None,
    ) -> Rounds:
        package, before, first = (yield from _learned_first(model)) if learned is None else (learned.package, None, 1)
        hold(package.measurements, package.shares, len(model.outcomes))
        limits = replace(package.prior.limits, shapes=(), clippings=())
        sums = yield Pass(BaseSums(model.design.pattern, limits, model.weighted), "sum")
        joint, bound, noisy = joint_query(job, settings.noise), (limits.cap, limits.centre, limits.half), list[Floats]()
        for number, (measurement, part) in enumerate(zip(package.measurements, package.shares, strict=True), start=first):
            stated = joint.share(f"sums by {measurement.name}", part)
            exact = measurement.saturated(sums, LARGEST_SCORE) if model.secret else measurement.exact(sums)
            answer = yield Defined.by_content((bound, measurement)).sums(exact, stated, number)
            noisy.append(answer)
        theta = model.estimated(package, np.concatenate(noisy), before)
        return released_sets(recorder, [theta], float(job.epsilon_per_set), measured=float(len(noisy)))


def _learned_first(
    model: PackageCells,
) -> Generator[Pass | Measurement | Choice, Any, tuple[Package, dict[str, Floats], int]]:
    """The package from noisy histograms, their released parameters, and the number of the next query."""
    assert model.first_stage is not None
    histograms, counts = yield from noisy_histograms(model.first_stage)
    assert isinstance(histograms, Histograms)
    typical = np.column_stack([histograms.typical, histograms.typical_error])
    try:
        package = model.shaped(histograms, counts).package()
    except ValueError as fault:
        raise Improper(str(fault)) from None
    return package, {"counts": counts, "typical": typical}, AFTER_HISTOGRAMS


MECHANISMS: dict[str, Mechanism] = {"table_package": TablePackage()}
