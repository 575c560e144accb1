"""Confidential half of `tables`: noisy sums of residuals from a public prediction, by table cell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.progress import part
from dpdist.core.records import UNIT, Codes, Floats
from dpdist.engine.protocol import Measurement, Mechanism, Pass, Rounds, StratumRecorder
from dpdist.job import Job, budget_text
from dpdist.mechanisms.promises import (
    MOVES_UNKNOWN,
    Defined,
    LossExceeded,
    NoisySums,
    Summing,
    per_set,
    promise_of,
    provenance,
    referred,
    released_sets,
)
from dpdist.mechanisms.tables.bins import BinnedColumns, quadrant_sums
from dpdist.mechanisms.tables.cells import LARGE_WEIGHTS, Learned, ResidualCells
from dpdist.mechanisms.tables.common_factors import common_factors, growth_of
from dpdist.mechanisms.tables.first_year_sums import FirstYearSums, ReleasedSums
from dpdist.mechanisms.tables.inequality import thresholds
from dpdist.mechanisms.tables.limits import TableLimits
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.scores import RecordScores
from dpdist.mechanisms.tables.sensitivity import QUADRANTS, counts_query, joint_query, quadrants_query
from dpdist.mechanisms.tables.shares import part_beyond
from dpdist.mechanisms.tables.spec import Tables as Settings
from dpdist.privacy.guarantees import Concentrated, NoisyQuery, Promise, Strict
from dpdist.privacy.noise import LARGEST_SCORE

SCALED = (
    "In every measured table, each record contributes residuals to its cell: its weight minus a public prediction and, "
    "for each outcome, its weighted, centred outcome minus a public prediction. The residuals are divided by clipping "
    "limits and scaled so that together their L1 norm is at most 1. The L1 sensitivity of a table's sums is therefore 1 "
    "when a record's values are left out, and 2 when they change."
)
SCALED_KNOWN = (
    "In every measured table, each record contributes residuals to its cell: for each outcome, its weighted, centred "
    "outcome minus a public prediction. The residuals are divided by clipping limits and scaled so that together their "
    "L1 norm is at most 1. The L1 sensitivity of a table's sums is therefore 1 when a record's values are left out, and "
    "2 when they change. Counts follow from public weights and sample counts."
)
LAPLACE = "A table allotted a share s of {part} receives discrete Laplace noise with scale sensitivity/(s{amount})."
SCALED_SECRET = (
    "The number of records is measured. In every measured table, each record adds its weight and its weighted outcome, "
    "centred at the cell's predicted mean, to its cell. Both are divided by clipping limits. Half their sum and half "
    "their difference are measured, scaled so that their L1 norm is at most 1. The L1 sensitivity of a table's sums is "
    "therefore 1 when a record is added or removed, and 2 when it is exchanged for another."
)
GAUSSIAN = "A table allotted a share s of {part} receives discrete Gaussian noise with σ = sensitivity/√(2s{amount})."
PREDICTED, LIMITED = 0.4, 0.7
"""About which shares of a stratum's work are done once parts of the budget and limits of tables are known."""
BEYOND = (
    "If noise is small compared with a single record, records with residuals beyond the first limits are counted first. "
    "For every such residual, a record adds 1, divided by the number of measured columns, to one count of its cell, so it "
    "adds at most 1 in all. These noisy counts widen the limits."
)
WEIGHT_COUNT = (
    "If the clipping limits affect any records, and some weights in the reference are much larger than predicted, the "
    "difference between the numbers of records with and without such a weight is also measured. A record adds 1 to it or "
    "subtracts 1, so the sensitivity is 1 when its values are left out, and 2 when they change."
)
SHARED = (
    "The prediction and the clipping limits depend only on the job, {source}, public sample counts and earlier noisy "
    "sums. The shares of all measurements sum to at most 1, so by adaptive composition they use no more than {budget} in "
    "total. The published tables are post-processing of these sums."
)
SHARED_SECRET = (
    "The cells, the prediction, the expected sample counts and the clipping limits depend only on the job, {source} and "
    "earlier noisy sums. The shares of all measurements sum to at most 1, so by adaptive composition they use no more "
    "than {budget} in total. The published tables and sample counts are post-processing of these sums."
)
SHAPE = (
    "The contribution of values beyond the clipping limits is estimated from the reference, and the error of this "
    "estimate is included in the standard errors. Drift since the reference is estimated from the noisy sums. If the "
    "share of the total that comes from {} beyond the limits has grown since the reference period, the figures are too "
    "low, and the standard errors do not reflect this."
)


BINNED = (
    "Every outcome, and the weight if it is measured, is counted in bins that depend on public bounds only. For each of "
    "these h columns, a record adds 1 to one bin. The L1 sensitivity is h when its values are left out, and 2h when they "
    "change. Tables cost the rest of the budget (adaptive composition)."
)
BINNED_LAPLACE = "The counts have discrete Laplace noise with scale h/ε₀ (2h/ε₀ under substitution)."
BINNED_GAUSSIAN = "The counts have discrete Gaussian noise with σ = √(h/2ρ₀) (√(h/ρ₀) under substitution)."
IN_QUADRANTS = (
    "After the bins, quadrant sums are measured: for each of K outcomes, a record adds 1 if its weight and its outcome are "
    "both above, or both not above, the bin ends nearest their medians by the bin counts, and −1 otherwise. The L1 "
    "sensitivity is K when its values are left out, and 2K when they change. "
)
QUADRANTS_LAPLACE = IN_QUADRANTS + (
    "Bin counts have discrete Laplace noise with scale h/(0.9 ε₀), quadrant sums with scale K/(0.1 ε₀), and twice that "
    "under substitution."
)
QUADRANTS_GAUSSIAN = IN_QUADRANTS + (
    "Bin counts have discrete Gaussian noise with σ = √(h/(1.8 ρ₀)) (√(h/(0.9 ρ₀)) under substitution), quadrant sums "
    "with σ = √(K/(0.2 ρ₀)) (twice that under substitution)."
)
SHAPE_OF_BINS = (
    "Limits, and values beyond them, are estimated from the noisy bin counts of the whole stratum; weights and outcomes "
    "are assumed to have normal scores with one correlation. Differences between cells are estimated from the noisy sums. "
    "Standard errors may miss a tail that the noise hides or that only one cell has."
)
SCORED = (
    "Before a table's residuals, scores of records are summed in its cells: whether an amount is above 0, its logarithm "
    "between two ends, or the value itself. Scores follow from the noisy counts and lie between −1 and 1, divided by their "
    "number, so the L1 sensitivity is 1 when a record's values are left out, and 2 when they change. These sums have a "
    "twentieth to a fifth of the table's share, by the noisy counts."
)
SPLIT = "; sequential within a set: ε₀ = {} for bin counts, ε₁ = {} for the tables"
SPLIT_RHO = "; sequential within a set: ρ₀ = {:.6g} (equivalent to ε₀ = {}) for bin counts, ρ₁ = {:.6g} for the tables"


@dataclass(frozen=True)
class RecordCount(Summing):
    """Kernel: the number of records in units of 1/UNIT, the first of these columns, (1, column)."""

    columns: int

    def sums(self, records: Records) -> Floats:
        return np.eye(1, self.columns) * (UNIT * len(records))


@dataclass(frozen=True, eq=False)
class ResidualSums(Summing):
    """Kernel: sums of contributions by cell of one or several tables, (cell, 1 + outcome), tables below each other.

    Where weights are public, there are sums of outcomes alone, (cell, outcome).
    """

    pattern: Codes
    """The base cell of every crosstab row of the stratum."""
    start: int
    """The stratum's first crosstab row."""
    prediction: Prediction
    tables: tuple[TableLimits, ...]

    def sums(self, records: Records) -> Floats:
        base, added = self.pattern[records.row - self.start].astype(np.int64), list[Floats]()
        for limits in self.tables:
            cell = limits.cell[base]
            parts = limits.contributions(base, records.weight, records.outcomes, self.prediction)
            parts = parts[:, int(self.prediction.weights_known) :]
            added.append(np.column_stack([np.bincount(cell, weights=part, minlength=len(limits.size)) for part in parts.T]))
        return np.concatenate(added)


@dataclass(frozen=True, eq=False)
class SumsOfScores(Summing):
    """Kernel: sums of scores by cell of all tables, (cell, score), tables below each other."""

    pattern: Codes
    start: int
    scores: RecordScores
    tables: tuple[Codes, ...]
    """The cell of every base cell, by table."""

    def sums(self, records: Records) -> Floats:
        base = self.pattern[records.row - self.start]
        parts, added = self.scores.contributions(records.weight, records.outcomes), list[Floats]()
        for cell in self.tables:
            of_record, number = cell[base], int(cell.max()) + 1
            added.append(np.column_stack([np.bincount(of_record, weights=part, minlength=number) for part in parts.T]))
        return np.concatenate(added)


@dataclass(frozen=True, eq=False)
class CountsBeyond(ResidualSums):
    """Kernel: numbers of records beyond limits by cell of all tables, (cell, coordinate × step)."""

    def sums(self, records: Records) -> Floats:
        base = self.pattern[records.row - self.start].astype(np.int64)
        columns = base, records.weight, records.outcomes, self.prediction
        return np.concatenate([limits.counts_beyond(*columns) for limits in self.tables])


@dataclass(frozen=True, eq=False)
class LargeWeightCount(Summing):
    """Kernel: the number of records with weights beyond their base cell's threshold, less that of others, (1, 1), in units
    of 1/UNIT.
    """

    pattern: Codes
    start: int
    threshold: Floats

    def sums(self, records: Records) -> Floats:
        large = records.weight > self.threshold[self.pattern[records.row - self.start]]
        return np.array([[UNIT * (2.0 * np.count_nonzero(large) - len(records))]])


@dataclass(frozen=True, eq=False)
class BinCounts(Summing):
    """Kernel: numbers of records by bin of the weight and of every outcome, (bin,)."""

    bins: BinnedColumns

    def sums(self, records: Records) -> Floats:
        return self.bins.counts(records.weight, records.outcomes)


@dataclass(frozen=True, eq=False)
class QuadrantSums(Summing):
    """Kernel: quadrant sums of the weight and every outcome about `medians`, (1, outcome)."""

    medians: Floats

    def sums(self, records: Records) -> Floats:
        return quadrant_sums(records.weight, records.outcomes, self.medians)[None]


class ResidualTables(NoisySums[Settings, ResidualCells]):
    """Tables by difference measurement: strict, pure with δ = 0 or zCDP (docs/methods.md, §9d)."""

    spec, sums = Settings, ResidualCells

    def queries(self, job: Job, settings: Settings) -> tuple[NoisyQuery, ...]:
        before = list[NoisyQuery]()
        if job.on_histograms:
            before.append(counts_query(job, settings.noise))
            if job.survey.measured_weight is not None:
                before.append(quadrants_query(job, settings.noise))
        return (*before, joint_query(job, settings.noise))

    def promised(self, job: Job, settings: Settings, total: Strict | Concentrated) -> Promise:
        law = GAUSSIAN if settings.gaussian else LAPLACE
        scaled = SCALED if job.survey.measured_weight is not None else SCALED_KNOWN
        public = (f"{scaled} {law}", SHARED, MOVES_UNKNOWN)
        texts = (f"{SCALED_SECRET} {law}", SHARED_SECRET) if job.sizes_in_sums else public
        columns = (job.survey.measured_weight is not None) + len(job.outcomes)
        if columns > len(job.outcomes) and not (job.on_histograms or job.sizes_in_sums):
            texts = (f"{texts[0]} {WEIGHT_COUNT}", *texts[1:])
        if not job.on_histograms and part_beyond(joint_query(job, settings.noise), 1, columns, 1):
            texts = (f"{texts[0]} {BEYOND}", *texts[1:])
        amount = "ρ" if settings.gaussian else "ε"
        if not job.on_histograms:
            of_all = {"source": "the reference", "budget": "the budget", "part": amount, "amount": amount}
            shape = SHAPE.format("weights or outcomes" if job.sizes_in_sums else "outcomes")
            return promise_of(job, per_set(total, job), *(text.format(**of_all) for text in texts), shape, *referred(job))
        of_rest = {"source": "noisy histogram counts", "budget": "the rest of the budget", "amount": f"{amount}₁"}
        of_rest["part"] = f"{amount}₁, the budget that the histogram counts leave,"
        assert job.reference is not None
        assert job.reference.histograms is not None
        of_law = BINNED_GAUSSIAN if settings.gaussian else BINNED_LAPLACE
        if columns > len(job.outcomes):
            of_law = QUADRANTS_GAUSSIAN if settings.gaussian else QUADRANTS_LAPLACE
        promise = promise_of(
            job,
            per_set(total, job),
            *(text.format(**of_rest) for text in texts),
            f"{BINNED} {of_law}",
            SCORED,
            SHAPE_OF_BINS,
            *provenance(job),
        )
        first, rest = (budget_text(part) for part in (job.reference.histograms.epsilon, job.epsilon.tables))
        split = SPLIT.format(first, rest)
        if settings.gaussian:
            split = SPLIT_RHO.format(float(job.rho.histograms), first, float(job.rho.tables))
        return replace(promise, composition=promise.composition + split)

    def rounds(
        self, job: Job, settings: Settings, model: ResidualCells, recorder: StratumRecorder, learned: Learned | None
    ) -> Rounds:
        joint = joint_query(job, settings.noise)
        if learned is None:
            assert model.bins is not None
            exact = yield Pass(BinCounts(model.bins), "sum")
            counts = yield Defined.by_content(model.bins).sums(exact, counts_query(job, settings.noise), 0)
            model = replace(model, counts=counts)
            if model.of_quadrants is not None:
                medians = model.medians
                exact = yield Pass(QuadrantSums(medians), "sum")
                defined = Defined.by_content((medians, QUADRANTS))
                answer = yield defined.sums(exact, model.of_quadrants, len(model.names) + 1)
                model = replace(model, quadrants=answer[0])
        model = model if learned is None else model.knows(learned)
        asked, learned = model.plan.asked, None
        model.forget_errors()
        parts = model.parts(asked)
        part(PREDICTED)
        sum_of_parts = sum(parts) + len(asked.file.tables) * asked.part_beyond + asked.part_of_large
        if min(parts) <= 0 or sum_of_parts > 1:
            raise LossExceeded(f"parts of the budget that are not all above 0, or that sum to {float(sum_of_parts)}")

        def measured(exact: Floats, number: int, limits: TableLimits | None, prediction: Prediction) -> Measurement:
            name = model.names[number]
            bound = None if limits is None else (limits.cell, limits.mean, limits.centre, limits.scale)
            defined = Defined.by_content((bound, prediction.means, prediction.subtracted, name))
            # Cutting sums of a secret number of records moves none farther from another.
            exact = np.clip(exact, -LARGEST_SCORE, LARGEST_SCORE)
            return defined.sums(exact, joint.share(f"sums of {name}", parts[number]), number + 1)

        rows, noisy, first = (model.design.pattern, model.design.first), list[Floats](), asked.first
        informed = asked.file.informed
        if model.secret:
            exact = yield Pass(RecordCount(2 * len(job.outcomes)), "sum")
            answer = yield measured(exact[:, :1], 0, None, asked.file.prediction)
            noisy.append(np.pad(answer, [(0, 0), (0, exact.shape[1] - 1)]))
            first = asked.first_limits(growth_of(asked, float(answer[0, 0]) / UNIT)[0], informed)
        exact = yield Pass(ResidualSums(*rows, informed.bare, (first,)), "sum")
        noisy.append((yield measured(exact, len(noisy), first, informed)))
        if asked.part_of_large:
            threshold = thresholds(asked, common_factors(asked, model.by_measurement(noisy[0])[0][0]))
            exact = yield Pass(LargeWeightCount(*rows, threshold), "sum")
            defined = Defined.by_content((threshold, LARGE_WEIGHTS))
            query = joint.share(f"sums of {LARGE_WEIGHTS}", asked.part_of_large)
            answer = yield defined.sums(exact, query, len(parts) + 1)
            asked = replace(asked, large=float(answer[0, 0]))
        sums = model.first_sums(asked, np.concatenate(noisy))
        released: ReleasedSums = sums
        part(LIMITED)
        limits = sums.limits[1:]
        if limits and asked.part_beyond:
            exact = yield Pass(CountsBeyond(*rows, sums.calibrated.bare, limits), "sum")
            counts, pairs = list[Floats](), zip(limits, model.by_table(exact), strict=True)
            for number, (table, of_table) in enumerate(pairs, start=len(parts) + 1):
                name = f"records beyond limits of {model.names[number - len(parts) + model.secret]}"
                defined = Defined.by_content(
                    (table.cell, table.mean, table.scale, sums.calibrated.means, sums.calibrated.subtracted, name)
                )
                counts.append((yield defined.sums(of_table, joint.share(name, asked.part_beyond), number)))
            sums = sums.widened(np.concatenate(counts))
            limits = sums.limits[1:]
        released, origin = sums, sums.calibrated
        if asked.parts_of_scores:
            of_records, scores = RecordScores.of(asked.file), list[Floats]()
            exact = yield Pass(SumsOfScores(*rows, of_records, tuple(cell for _, cell in asked.file.tables)), "sum")
            for number, of_table in enumerate(model.by_table(exact), start=1 + len(model.measured)):
                defined = Defined.by_content((*of_records.columns, model.names[number]))
                query = joint.share(f"sums of {model.names[number]}", parts[number])
                scores.append((yield defined.sums(of_table, query, number + 1)) / UNIT)
            released = FirstYearSums.after(sums, scores)
            origin, limits = released.by_sums.prediction, released.limits
        # Where all tables are of all records, the first sums are all.
        if limits:
            exact = yield Pass(ResidualSums(*rows, origin.bare, limits), "sum")
            for table, of_table in zip(limits, model.by_table(exact), strict=True):
                noisy.append((yield measured(of_table, len(noisy), table, origin)))
            released = released.given(model.by_measurement(np.concatenate(noisy)))
        theta = model.estimated(released, np.concatenate(noisy))
        return released_sets(recorder, [theta], float(job.epsilon_per_set), measured=float(len(noisy)))


MECHANISMS: dict[str, Mechanism] = {"tables": ResidualTables()}
