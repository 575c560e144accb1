"""Public half of `tables`: base cells estimated from noisy sums, their errors, and synthetic records.

The reference's records are released as donors. Publication computes prediction, limits and posterior anew from them and
the noisy sums. Estimates of base cells are released, so that tables need none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import OTHER_LIMITS
from dpdist.core.keys import WRITTEN, Recent, digest
from dpdist.core.records import UNIT, Codes, Crosstab, Floats, Ints, cells_of_record, codes_of, quotient
from dpdist.estimation.donors import AbsentRecords, Donors, PeriodTotals, law_of, remembered
from dpdist.job import Job, Statistic
from dpdist.mechanisms.tables.bins import BinnedAnswers, BinnedColumns
from dpdist.mechanisms.tables.bounds import within_bounds
from dpdist.mechanisms.tables.costs import projected_cost
from dpdist.mechanisms.tables.drift_sizes import mean_square_drift
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.first_year_sums import FirstYearSums, ReleasedSums
from dpdist.mechanisms.tables.limits import STEPS_WIDER, TableLimits, unpaired
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.measured_sums import MeasuredSums
from dpdist.mechanisms.tables.measurements import LARGE, NUMBER, PART_OF_LARGE, ResidualMeasurements
from dpdist.mechanisms.tables.periods import Estimated, common_history, errors_of_two, learned_from
from dpdist.mechanisms.tables.plan import PublishedFigures, TablePlan
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.redrawn_cells import RedrawnCells
from dpdist.mechanisms.tables.sensitivity import counts_query, joint_query, quadrants_query
from dpdist.mechanisms.tables.shares import LEAST_OF_SCORES, PART_STEPS, PublishedTable, least_part, part_beyond, worth_of
from dpdist.mechanisms.tables.spec import EFFECTS, LARGEST, MEAN_SQUARE, PredictionName, Tables
from dpdist.mechanisms.tables.synthetic import DonorCells, Drawn, OfDonors
from dpdist.mechanisms.tables.words import AtBound
from dpdist.mechanisms.tables.workload import Workload, WorkloadTable
from dpdist.models.protocol import (
    Cost,
    DrawnTogether,
    Draws,
    ErrorsOfCells,
    Improper,
    Parameter,
    ReferenceRecords,
    ReleaseView,
    StratumModel,
)
from dpdist.models.public_model import cell_counts, patterns
from dpdist.privacy.guarantees import NoisyQuery, neighbour_of

FEWEST_VALUES, MOST_VALUES = 200, 10_000
"""Numbers of values that stand for a law without a reference: as many as the file has records, within these."""
LAWS = 8
"""Number of other laws that noisy counts may have meant."""
DONORS_OF_CELL = 64
"""Number of values that stand for it in synthetic records of a base cell."""
MOST_PLACES = 2**18
"""Sizes (`_places`) up to which plans and sums of several strata are kept: stages ask for each again."""
MOST_SUMS = 750_000
"""Largest number of sums of a job: a run of 738,960 was measured whole."""
BEYOND_REFERENCE = 10.0
"""Where the job states no upper bound of the weight, limits reach this many times the reference's largest weight."""
FURTHER = ("size", "counts", "quadrants", "scores", "beyond", "large", "trees")
"""Released parameters that only some jobs have."""
PREDICTED = ("count", "mean", "total")
"""Statistics whose errors are predicted."""
ALIKE = 1e-6
"""Relative difference of mean limits that rounding may make between machines."""
AS_MEASURED = "publish with the version that the statement names under protected_by"
ALL, NUMBER_OF_RECORDS, LARGE_WEIGHTS = "all records", "number of records", "records with large weights"
"""Names of the measurements of all records."""
SCORES = "scores of {}"
"""Name of a table's sums of scores."""


class Learned(NamedTuple):
    """What the mechanism learned from the reference: the plan of measurements, and donors for synthetic records."""

    plan: TablePlan
    donors: Donors


@dataclass(frozen=True)
class ResidualCells(DonorCells):
    """Base cells of the file, with the tables over them."""

    tables: tuple[WorkloadTable, ...]
    statistics_by_table: tuple[tuple[str, tuple[Statistic, ...]], ...] = field(metadata={WRITTEN: "statistics"})
    """Statistics of every table, by its name."""
    joint: NoisyQuery
    """The query for all measurements together."""
    distance: Fraction
    """Distance by which neighbouring files move a measurement, in units of 1/UNIT."""
    one_weight: bool
    public_weights: tuple[float, float]
    """Public bounds of the weight."""
    raked: tuple[int, ...] = ()
    """Columns of public totals to which tables are raked; every measured table is crossed with them."""
    nested: tuple[tuple[int, ...], ...] = ()
    """Columns of every hierarchy, the coarsest first."""
    weighted: bool = True
    """Whether weights are measured; False without weights, and where they are public."""
    weight: Floats | None = None
    """The public weight of every cell, (cell,), 1 without weights; None if weights are measured."""
    secret: bool = False
    """True if the file's numbers of records are secret; every cross of levels is then a cell."""
    bins: BinnedColumns | None = None
    """Bins that are counted under noise where the job has no reference."""
    of_counts: NoisyQuery | None = None
    """The query for these counts."""
    counts: Floats | None = None
    """Noisy counts, (bin,), once they are known."""
    of_quadrants: NoisyQuery | None = None
    """The query for quadrant sums, where weights are measured as well."""
    quadrants: Floats | None = None
    """Noisy quadrant sums, (outcome,), once they are known."""
    donors: Donors | None = None
    """Records of the reference, once they are known."""
    absent: AbsentRecords | None = None
    """Records of the reference in crosses that the file lacks, before they are learned from."""
    earlier: tuple[PeriodTotals, ...] = ()
    """Totals of earlier periods since the reference, before they are learned from."""
    period: str = ""
    largest: bool = False
    """True if the parts of the budget make the largest error least, and not the mean squared one."""
    learner: PredictionName = EFFECTS
    of_trees: Floats | None = None
    """What trees predict, once they are grown: `Prediction.of_trees`."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
        columns, mechanism = job.cell_columns, job.mechanism
        assert isinstance(mechanism, Tables)
        cells = patterns(crosstab, columns, rows)
        first = np.unique(cells.pattern, return_index=True)[1] + rows.start
        codes = np.column_stack([np.zeros((len(first), 0), dtype=np.int32), *(crosstab.codes[c][first] for c in columns)])
        bounds = tuple(column.bounds or (0.0, 1.0) for column in job.outcome_columns.values())
        tables = tuple(
            WorkloadTable(
                *(table.name, tuple(columns.index(name) for name in table.by), table.margins, table.priority),
                tuple(
                    sorted(
                        (columns.index(name), codes_of(crosstab.levels[name], level_names))
                        for name, level_names in table.universe.items()
                    )
                ),
            )
            for table in job.tables
        )
        joint, public = joint_query(job, mechanism.noise), job.survey.design_weights
        weighted = job.survey.measured_weight is not None
        return cls(
            *(cells, bounds[0], cells.names, job.outcomes, bounds, columns),
            tuple(tuple(map(str, crosstab.levels[name])) for name in columns),
            codes.astype(np.int32),
            np.ones(len(first)) if job.sizes_in_sums else cell_counts(crosstab, rows, cells),
            tables,
            tuple((table.name, tuple(table.statistics)) for table in job.tables),
            joint,
            joint.moved.by(neighbour_of(job)),
            bool(job.survey.one_weight_in),
            weight_bounds(job),
            tuple(k for k, name in enumerate(columns) if any(name in rake.by for rake in job.rake)),
            tuple(
                tuple(columns.index(name) for name in hierarchy.columns if name in columns)
                for hierarchy in job.hierarchies.values()
            ),
            weighted,
            None if weighted else np.ones(len(first)) if public is None else public.of(crosstab)[first],
            secret=job.sizes_in_sums,
            period=job.period,
            largest=mechanism.objective != MEAN_SQUARE,
            learner=mechanism.prediction,
            bins=BinnedColumns.of(weight_bounds(job) if weighted else None, bounds) if job.on_histograms else None,
            of_counts=counts_query(job, mechanism.noise) if job.on_histograms else None,
            of_quadrants=quadrants_query(job, mechanism.noise) if job.on_histograms and weighted else None,
        )

    @property
    def workload(self) -> Workload:
        sizes = tuple(map(len, self.levels))
        crossed = [replace(table, by=tuple(dict.fromkeys((*table.by, *self.raked)))) for table in self.tables]
        columns = self.codes.astype(np.int64), sizes, self.count, tuple(crossed)
        return Workload(*columns, self.columns, len(self.outcomes))

    @property
    def measured(self) -> tuple[tuple[int, ...], ...]:
        """Columns of every table that is measured, and no other gives; universes count as columns.

        A column of a hierarchy gives the coarser ones.
        """
        coarser = {column: chain[:place] for chain in self.nested for place, column in enumerate(chain)}
        sets = [by for by in self.workload.measured if by]
        coverage = {by: {above for column in by for above in (column, *coarser.get(column, ()))} for by in sets}
        return tuple(by for by in sets if not any(other != by and coverage[other].issuperset(by) for other in sets))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the measurements, that of all records first, after their number if it is secret."""
        names = (ALL, *map(self.workload.named, self.measured))
        if self.bins is not None:
            names = (*names, *map(SCORES.format, names[1:]))
        return (NUMBER_OF_RECORDS, *names) if self.secret else names

    def parts(self, asked: ResidualMeasurements) -> tuple[Fraction, ...]:
        """Parts of the budget of the measurements, by the order of their names."""
        return (NUMBER, *asked.parts) if self.secret else asked.parts

    @property
    def sums(self) -> int:
        # Scores are measured as well without a reference.
        cells = sum(self.workload.number_of_groups(by) for by in self.measured) * (1 + (self.bins is not None))
        return (self.weighted + len(self.outcomes)) * (1 + cells)

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """The largest scale of noise, in units of 1/UNIT."""
        part = least_part(len(self.measured)) * (LEAST_OF_SCORES / 2 if self.bins is not None else 1)
        if self.bins is None:
            cells = sum(self.workload.number_of_groups(by) for by in self.measured)
            columns = self.weighted + len(self.outcomes)
            part = min(part, part_beyond(self.joint, len(self.measured), columns, cells * columns * STEPS_WIDER) or part)
            part = min(part, PART_OF_LARGE) if self.weighted and not self.secret else part
        return (self.joint.share("", part).scale,)

    @property
    def largest_sum(self) -> int:
        """The largest sum of any file of as many records, in units of 1/UNIT; sums of a secret number are cut."""
        return 0 if self.secret else UNIT * int(self.count.sum())

    @property
    def too_large(self) -> str:
        """The reason why the tables cannot be estimated together; empty if they can."""
        return f"{self.sums:,} sums to measure, and 'tables' permits {MOST_SUMS:,}" if self.sums > MOST_SUMS else ""

    def cost(self, records: int) -> Cost:
        """The projected cost of a run, from public sizes."""
        sizes = list(map(len, self.levels))
        published = [
            (prod(sizes[column] + table.margins for column in table.by), cells_of_record(table.by, table.margins))
            for table in self.tables
        ]
        return projected_cost(
            records, len(self.count), self.sums, len(self.outcomes), sizes, self.measured, published, self.secret
        )

    @property
    def identified(self) -> int:
        """A reference needs more than one record. Cells without one are predicted from others."""
        return 1

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("means", (("cell", self.labels), ("mean", ("weight", *self.outcomes)))),)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of statistics' names, by outcome: the outcome's name, or nothing if there is one outcome."""
        return tuple(f" {name}" for name in self.outcomes) if len(self.outcomes) > 1 else ("",)

    def with_absent(self, absent: AbsentRecords) -> Self:
        """This model, which also learns from these records."""
        return replace(self, absent=absent)

    def with_history(self, history: Sequence[PeriodTotals]) -> Self:
        """This model, which also learns from totals of earlier periods."""
        return replace(self, earlier=remembered(history))

    def with_donors(self, donors: Donors) -> Self:
        """This model with the reference's records."""
        return replace(self, donors=donors)

    def learned(self, records: ReferenceRecords, copied: pa.Table | None) -> Learned:
        """Prediction and limits that a reference gives. Raises `Improper` if the reference is too small, or has no records
        for trees.
        """
        donors = Donors.of(self.pattern(records.row), records.weight, records.outcomes, copied)
        if not len(donors) and law_of(self.earlier) is None:
            raise Improper("the reference has no record with a weight above 0 in the cells of the tables")
        if self.absent is not None:
            donors = replace(donors, absent=self.absent.by(self.columns))
        donors = replace(donors, history=self.earlier)
        model = self.with_donors(donors)
        if self.learner != EFFECTS:
            if model.alike:
                raise Improper(f"prediction: {self.learner} needs records, but the chain began without a reference")
            # Grown once: another machine might grow other trees.
            model = replace(model, of_trees=model.built().file.at_crosses.of_trees)
        plan = model.built()
        return Learned(plan, _within(plan, donors))

    def at_weight_bound(self, theta: Draws) -> AtBound | None:
        """What noisy counts of bins tell of weights at their public upper bound; None if they are not counted."""
        if self.bins is None or not self.bins.weighted or self.of_counts is None:
            return None
        counts, (low, high) = theta["counts"][0], self.public_weights
        weight = float(self.count @ theta["means"][0, :, 0])
        top = int(self.bins.ends[0]) - 1
        return AtBound(float(self.count.sum()), float(counts[top]), self.of_counts.scale_as_laplace, weight, low, high)

    def relearned(self, learned: Learned) -> Learned:
        """What is learned under another budget: the prediction is the same."""
        return learned._replace(plan=learned.plan.under(self.joint))

    @property
    def alike(self) -> bool:
        """True if one law by noisy counts of bins serves all cells: this release's counts, or those of the first period of
        a chain that began without a reference.
        """
        return self.donors is None or law_of(self.donors.history) is not None

    @property
    def plan(self) -> TablePlan:
        """Measured tables with the reference's records, or with a law by noisy counts."""
        return PLANS(digest(self._content), self.built)

    def knows(self, learned: Learned) -> Self:
        """This model with what was learned, so that its plan is not built again in this process."""
        donors = _within(learned.plan, learned.donors)
        model = replace(self.with_donors(donors), of_trees=learned.plan.file.of_trees)
        PLANS(digest(model._content), lambda: learned.plan)
        return model

    def forget_errors(self) -> None:
        """Keeps the parts of the budget, and not what predicts errors of published cells: that is large in a file of many
        cells, and a run needs it no more.
        """
        if len(self.codes) >= LARGE:
            PLANS.replace(digest(self._content), self.plan.settled)

    @property
    def _content(self) -> tuple[object, ...]:
        """All that the plan follows from."""
        sizes = tuple(map(len, self.levels))
        donors = None if self.donors is None else replace(self.donors, copied=None)
        public = self.joint, self.bounds, self.public_weights, self.weight, self.of_counts, self.counts, self.quadrants
        count = None if self.secret else self.count
        tables = self.workload.tables, self.tables, self._worth, self.largest, self.learner, self.of_trees
        return (self.codes, sizes, count, tables, self.nested, *public, donors)

    def built(self) -> TablePlan:
        """`plan`, computed anew."""
        codes, reference = self.codes.astype(np.int64), self._reference
        tables, placed = list[tuple[tuple[int, ...], Codes]](), list[Codes]()
        combinations = codes if self.alike else reference.codes.astype(np.int64)
        workload = replace(self.workload, codes=combinations, count=np.ones(len(combinations)))
        for by in self.measured:
            group = workload.groups(by)
            present, cell = np.unique(group[: len(codes)], return_inverse=True)
            place = np.full(int(group.max()) + 1, -1, dtype=np.int32)
            place[present] = np.arange(len(present))
            tables.append((tuple(column for column in by if column < codes.shape[1]), cell.reshape(-1).astype(np.int32)))
            placed.append(np.full_like(place[group], -1) if self.alike else place[group])
        low, high = self.public_weights if self.weight is None else (self.weight.min(), self.weight.max())
        # Noisy counts of bins reach no farther than noise lets them, and say nothing of public weights.
        most = high if self.alike else min(high, BEYOND_REFERENCE * float(reference.weight.max()))
        lowest, highest = ([end, *ends] for end, ends in zip((low, most), zip(*self.bounds, strict=True), strict=True))
        file = ExpectedFile(
            *(codes, tuple(map(len, self.levels)), self.count, tuple(tables), tuple(placed), reference),
            *(np.array(lowest, dtype=float), np.array(highest, dtype=float)),
            self.weight,
            self.secret,
            () if self.donors is None else self.donors.history,
            tuple(self._law(len(reference.weight), draw) for draw in range(1, 1 + LAWS)) if self.alike else (),
            self.alike,
            self.learner,
            self.of_trees,
            self.joint.law == "laplace",
        )
        return TablePlan(PublishedFigures(file, tuple(self._published()), self.largest), self.joint)

    @property
    def _worth(self) -> tuple[tuple[float, ...], ...]:
        """What squared errors of counts and of outcomes' means count for, by table."""
        pairs = zip(self.tables, self.statistics_by_table, strict=True)
        return tuple(worth_of(table.priority, statistics, self.outcomes, self.largest) for table, (_, statistics) in pairs)

    def _published(self) -> Iterator[PublishedTable]:
        for table, worth in zip(self.tables, self._worth, strict=True):
            yield PublishedTable(self.workload.published(table), np.array(worth))

    def by_setting(self) -> Mapping[str, Self]:
        """This model with the other objective."""
        return {f"objective: {MEAN_SQUARE if self.largest else LARGEST}": replace(self, largest=not self.largest)}

    @property
    def _reference(self) -> ReferenceSample:
        """Records of the reference, whose crosses begin with base cells; or values by noisy counts, in no cell."""
        if self.alike:
            law = self._law(int(np.clip(self.count.sum(), FEWEST_VALUES, MOST_VALUES)))
            return law._replace(codes=self.codes[:0])
        assert self.donors is not None
        donors, absent = self.donors, self.donors.absent
        cell = donors.cell.astype(np.int32)
        if absent is None:
            return ReferenceSample(self.codes, donors.weight, donors.outcomes, cell)
        return ReferenceSample(
            np.concatenate([self.codes, absent.codes]),
            np.concatenate([donors.weight, absent.weight]),
            np.concatenate([donors.outcomes, absent.outcomes]),
            np.concatenate([cell, len(self.codes) + np.arange(len(absent.codes), dtype=np.int32)]),
        )

    def _law(self, number: int, draw: int = 0) -> ReferenceSample:
        """Values that stand for the laws of noisy counts, or of a draw of them."""
        stated = law_of(self.donors.history) if self.donors is not None else None
        if stated is not None:
            bins = BinnedColumns.of(self.public_weights if self.weighted else None, self.bounds)
            if len(stated.counts) != bins.ends[-1]:
                raise Improper("the chain's first release counted other bins than those of the public bounds")
            records = float(stated.count.sum())
            answers = BinnedAnswers(stated.counts, stated.scale, stated.quadrants, stated.quadrant_scale, records)
            return bins.sample(answers, number, draw)
        assert self.bins is not None
        return self.bins.sample(self._answers, number, draw)

    @property
    def _answers(self) -> BinnedAnswers:
        """Noisy counts of bins and quadrant sums."""
        assert self.of_counts is not None
        assert self.counts is not None
        quadrants = np.zeros(0) if self.quadrants is None else self.quadrants
        scale = 0.0 if self.of_quadrants is None else self.of_quadrants.scale_as_laplace
        return BinnedAnswers(self.counts, self.of_counts.scale_as_laplace, quadrants, scale, float(self.count.sum()))

    @property
    def medians(self) -> Floats:
        """Medians of the weight and of outcomes by noisy counts, (1 + outcome,), about which quadrants are."""
        assert self.bins is not None
        return self.bins.medians(self._answers)

    def knowing(self, theta: Draws) -> Self:
        """This model with the released counts of bins, where the job has no reference, or predictions of trees."""
        released = {"counts": "counts", "quadrants": "quadrants", "of_trees": "trees"}
        parameters = {name: theta[key][0] for name, key in released.items() if key in theta.values}
        return replace(self, **parameters) if parameters else self

    def predicted_errors(self, learned: Learned) -> Sequence[ErrorsOfCells]:
        """Errors of counts, means and totals by table, under the planned drift; other statistics are not predicted."""
        errors_of_tables = list[ErrorsOfCells]()
        for errors, (name, statistics) in zip(learned.plan.errors, self.statistics_by_table, strict=True):
            for statistic in statistics:
                if statistic.name not in PREDICTED:
                    continue
                k = 0 if statistic.name == "count" else 1 + self.outcomes.index(statistic.variable or self.outcomes[0])
                error, alone, direct = errors.totals(k) if statistic.name == "total" else errors.means(k)
                # Rounding gives errors to counts of all records that have one weight.
                least = 1e-6 * errors.figures.total_weight * (statistic.name == "count")
                relative = [np.where(direct > least, quotient(value, direct), np.nan) for value in (error, alone)]
                errors_of_tables.append(
                    ErrorsOfCells(name, statistic, relative[0], relative[1], np.full(len(direct), np.inf))
                )
        return errors_of_tables

    def estimated(self, sums: ReleasedSums, noisy: Floats) -> Draws:
        """The released parameters, from all noisy sums, (cell, 1 + outcome), in units of 1/UNIT."""
        (posterior, observed, _), asked, file = sums.reading, sums.asked, sums.asked.file
        z, means = posterior.estimate(observed)[: len(self.count)], posterior.prior.prediction.means[: len(self.count)]
        low, high = np.array(self.bounds).T
        predicted = file.numbers.count * means[:, 0]
        count, totals = predicted + z[:, 0], means[:, 1:] * (predicted + z[:, 0])[:, None] + z[:, 1:]
        count, totals = self._within_bounds(count, totals, predicted, means[:, 1:])
        mean = np.where(count[:, None] > 0.0, quotient(totals, count[:, None]), means[:, 1:])
        size = self.count
        if self.secret:
            # Numbers of records follow from mean weights, and a cell has at least one.
            size = np.maximum(np.rint(count / (sums.calibration.factors[0] * means[:, 0])), 1.0)
        values = {"means": np.column_stack([count / size, np.clip(mean, low, high)]), "noisy": noisy}
        values["limits"] = self._sizes_of(sums.all_limits)
        values["drift"] = posterior.prior.drift[-1]
        values["parts"] = np.array([float(part * PART_STEPS) for part in self.parts(asked)])
        values |= {"size": size} if self.secret else {}
        values |= {"counts": self.counts} if self.counts is not None else {}
        values |= {"quadrants": self.quadrants} if self.quadrants is not None else {}
        values |= {"scores": UNIT * np.concatenate(sums.scores)} if isinstance(sums, FirstYearSums) else {}
        values |= {"beyond": asked.beyond} if asked.beyond is not None else {}
        values |= {"large": np.array(asked.large)} if asked.large is not None else {}
        values |= {"trees": file.at_crosses.of_trees} if self.learner != EFFECTS else {}
        theta = Draws({name: value[None] for name, value in values.items()})
        SUMS(self.knowing(theta)._released(theta), lambda: sums)
        return theta

    def sized(self, theta: Draws) -> Self:
        """This model with the released numbers of records, where the file's are secret."""
        return replace(self, count=theta["size"][0]) if self.secret else self

    def sizes_of_rows(self, described: Mapping[str, Any]) -> Ints:
        """The number of sample records of every crosstab row, (row,), estimated from noisy sums."""
        return np.array(described["size"], dtype=np.int64)[self.design.pattern]

    def _within_bounds(self, count: Floats, totals: Floats, predicted: Floats, means: Floats) -> tuple[Floats, Floats]:
        """Counts and totals within public bounds; `predicted` (cell,) are counts, and `means` (cell, outcome)."""
        tables = [self.workload.groups(by) for by in self.measured]
        weights, totals = ((0.0, np.inf) if self.secret else self.public_weights), totals.copy()
        # Sizes that have made room for one outcome may have none for another: they are kept at last.
        for last in (False, False, True):
            if self.weighted:
                count, _ = within_bounds(count, self.count, weights, predicted, tables, known=True)
            for k, ends in enumerate(self.bounds):
                known = last or not self.weighted
                totals[:, k], count = within_bounds(totals[:, k], count, ends, means[:, k] * count, tables, known=known)
        return count, totals

    def first_sums(self, asked: ResidualMeasurements, noisy: Floats) -> MeasuredSums:
        """Noisy sums, or those of all records alone, with the limits that follow from them."""
        sums = self.by_measurement(noisy)[: 1 if asked.parts_of_scores else None]
        return MeasuredSums.of(asked, sums, float(noisy[0, 0]) / UNIT if self.secret else None)

    def all_sums(self, asked: ResidualMeasurements, noisy: Floats, scores: Floats | None = None) -> ReleasedSums:
        """The same, after noisy sums of scores where there is no reference, (cell, score)."""
        first = self.first_sums(asked, noisy)
        if scores is None:
            return first
        return FirstYearSums.after(first, self.by_table(scores), self.by_measurement(noisy)[1:])

    def history(self, theta: Draws) -> tuple[PeriodTotals, ...]:
        """Totals of earlier periods, and those of the released noisy sums."""
        totals = self.released_sums(theta).totals(self.period)
        if self.bins is not None:
            counts, scale, quadrants, quadrant_scale, _ = self.knowing(theta)._answers
            totals = replace(totals, counts=counts, scale=scale, quadrants=quadrants, quadrant_scale=quadrant_scale)
        return (*(() if self.donors is None else self.donors.history), totals)

    def released_sums(self, theta: Draws) -> ReleasedSums:
        """The released noisy sums with their limits; publication asks for them several times, and computes them once.

        Raises `WorkspaceError` if this version chooses other limits than those under which the sums were measured: it would
        take them for sums of something else.
        """
        model = self.knowing(theta)

        def checked() -> ReleasedSums:
            scores = theta["scores"][0] / UNIT if "scores" in theta.values else None
            sums = model.all_sums(model.released_measurements(theta), theta["noisy"][0], scores)
            stated = theta.values.get("limits")
            if stated is None or not np.allclose(self._sizes_of(sums.all_limits), stated[0], rtol=ALIKE, atol=0.0):
                raise WorkspaceError("released/set-1.json", OTHER_LIMITS, AS_MEASURED)
            return sums

        return SUMS(model._released(theta), checked)

    def _sizes_of(self, limits: Sequence[TableLimits]) -> Floats:
        """Mean limits over cells, (measurement, coordinate): of weights, if these are measured, and of outcomes."""
        return np.array([table.scale[:, not self.weighted :].mean(axis=0) for table in limits])

    def by_measurement(self, noisy: Floats) -> list[Floats]:
        """Noisy sums of u of every measurement, (cell, 1 + outcome), without the number of records."""
        ends = np.cumsum([1, *map(self.workload.number_of_groups, self.measured)])[:-1]
        return np.split(self._residuals(noisy[int(self.secret) :]) / UNIT, ends)

    def by_table(self, sums: Floats) -> list[Floats]:
        """Sums of every table's cells from those of all tables, (cell, …)."""
        return np.split(sums, np.cumsum([*map(self.workload.number_of_groups, self.measured)])[:-1])

    def _residuals(self, noisy: Floats) -> Floats:
        """Noisy sums of u_0, which is 0 where weights are public, and of every u_k, (cell, 1 + outcome)."""
        if self.secret:
            return unpaired(noisy)
        return noisy if self.weighted else np.column_stack([np.zeros(len(noisy)), noisy])

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each."""
        pattern = self.design.pattern
        if "products" in theta.values:
            weight, product = theta["weights"], theta["products"][..., outcome]
            if len(pattern) == weight.shape[1] and np.array_equal(pattern, np.arange(len(pattern))):
                return weight, product  # draws of many cells are large, and need no copy
        else:
            weight, product = theta["means"][..., 0], theta["means"][..., 0] * theta["means"][..., 1 + outcome]
        return weight[:, pattern], product[:, pattern]

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        means = theta["means"][0, self.pattern(crosstab_row)]
        return means[:, 1:] if len(self.outcomes) > 1 else means[:, 1], means[:, 0]

    def donor_records(self, release: ReleaseView, stratum: int) -> Drawn:
        """Synthetic records that are copies of donors, moved to the estimates of base cells."""
        theta = release.theta(self, stratum, 0)
        return Drawn.of(release, self.sized(theta), stratum, self._donors_by_counts(theta) if self.alike else None)

    def _donors_by_counts(self, theta: Draws) -> Donors:
        """Donors by the law of noisy counts, the same in every base cell."""
        law, cells = self.knowing(theta)._law(DONORS_OF_CELL), len(self.count)
        cell = np.repeat(np.arange(cells, dtype=np.int32), DONORS_OF_CELL)
        typical = law.weight.mean() or 1.0
        weight = (
            np.tile(np.where(law.weight > 0.0, law.weight, typical), cells) if self.weight is None else self.weight[cell]
        )
        return Donors.of(cell, weight, np.tile(law.outcomes, (cells, 1)))

    def distribution(self, release: ReleaseView, stratum: int) -> OfDonors:
        """The distributions of the reference's records, moved to the estimates of base cells."""
        prediction = self.posterior(release.theta(self, stratum, 0)).prior.prediction
        return OfDonors.of_cells(release, self, stratum, prediction.means[: len(self.codes), 1:])

    def redrawn(self, theta: Draws) -> RedrawnCells:
        """The released base cells, to be drawn again."""
        return RedrawnCells(self.posterior(theta), theta["means"][0], self.sized(theta).count, self.joint.law == "laplace")

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        sums, donors = self.released_sums(theta), None if self.alike else self.donors
        weight = sums.calibration.factors[0] * sums.asked.file.prediction.means[:, 0] if self.secret else None
        group = None if donors is None else donors.by_cell(self.codes).group
        return self.redrawn(theta).under_other_samples(draws, rng, group, weight)

    def unprotected(self, theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
        return self.redrawn(theta).of_samples(draws, rng)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        return self.redrawn(theta).under_other_noise(draws, rng)

    def drawn_with(
        self, theta: Draws, earlier: StratumModel, of_earlier: Draws, draws: int, rng: np.random.Generator
    ) -> DrawnTogether | str:
        """Base cells of this release and of an earlier one under the same errors of their reference.

        If columns, bounds, measured tables or reference records differ, the reason in words.
        """
        if not isinstance(earlier, ResidualCells):
            return "their mechanisms differ"
        if (reason := self._other_reference(earlier)) is not None:
            return reason
        estimate, earlier_estimate = self._estimated(theta), earlier._estimated(of_earlier)
        periods = common_history(estimate, earlier_estimate)
        if periods is None or self.donors is None:
            return "they learned from different earlier releases"
        learning = replace(self, donors=replace(self.donors, history=periods)).knowing(theta)
        draws = min(each.posterior.draws(draws) for each in (estimate, earlier_estimate))
        errors = errors_of_two(estimate, earlier_estimate, learning.plan.file.prior_of_periods, draws, rng)
        pairs = (self.redrawn(theta), errors.later), (earlier.redrawn(of_earlier), errors.earlier)
        cells = [redrawn.with_errors(draws, [(slice(0, draws), z)]) for redrawn, z in pairs]
        return DrawnTogether(cells[0], cells[1], sampled=learned_from(estimate, earlier_estimate))

    def _estimated(self, theta: Draws) -> Estimated:
        *history, totals = self.history(theta)
        posterior, observed, _ = self.released_sums(theta).reading
        return Estimated(posterior, tuple(history), totals, mean_square_drift(posterior, observed))

    def _other_reference(self, other: ResidualCells) -> str | None:
        """Why errors of the reference are not shared; None if both releases have the same reference records, and measure
        the same tables of the same columns.
        """
        both = self, other
        if any(model.alike for model in both):
            return "at least one of the two releases was made without a reference file"
        if any(model.secret for model in both):
            return "at least one of the two releases has secret sample counts"
        if any(model.learner != EFFECTS for model in both):
            return "at least one of the two releases predicts by trees"
        definition, other_definition = (
            (each.columns, each.levels, each.outcomes, each.bounds, each.public_weights, each.weighted, each.measured)
            for each in both
        )
        records, other_records = (
            np.column_stack([part.of_records(part.codes), part.weight, part.outcomes])
            for part in (model._reference for model in both)
        )
        if definition != other_definition:
            return "their columns, levels, bounds or measured tables differ"
        # Exact, because these are published records and no result of arithmetic.
        same = np.array_equal(records[np.lexsort(records.T)], other_records[np.lexsort(other_records.T)])
        return None if same else "their reference records differ"

    def posterior(self, theta: Draws) -> Posterior:
        """The posterior of the released noisy sums."""
        return self.released_sums(theta).reading.posterior

    def _released(self, theta: Draws) -> str:
        """A checksum of what was released, without estimates."""
        return digest((self._content, *(value for name, value in sorted(theta.values.items()) if name != "means")))

    def released_parts(self, theta: Draws) -> tuple[Fraction, ...]:
        """Released parts of the budget, by measurement."""
        return tuple(Fraction(int(steps), PART_STEPS) for steps in theta["parts"][0])

    def released_measurements(self, theta: Draws) -> ResidualMeasurements:
        """The measurements under the released parts, which a machine with other last digits would not choose again."""
        parts = self.released_parts(theta)[int(self.secret) :]
        beyond = theta["beyond"][0] if "beyond" in theta.values else None
        large = float(theta["large"][0]) if "large" in theta.values else None
        return ResidualMeasurements(self.knowing(theta).plan.file, self.joint, parts, beyond, large)

    def since_reference(self, theta: Draws) -> Floats:
        """The released mean weight and mean of every outcome over all records, over the reference's, (1 + outcome,)."""
        released, predicted = self._of_all_records(theta, theta["means"][0]), self._predicted_of_all_records(theta)
        return quotient(released, predicted)

    def drift_of_means(self, theta: Draws) -> Floats:
        """A relative drift of 1 of all records over the mean, (1 + outcome,): 1 where drift is relative to 0."""
        mean, origin = self._predicted_of_all_records(theta)[1:], self.knowing(theta).plan.file.prediction.origin
        return np.concatenate([[1.0], np.where(origin == 0.0, 1.0, np.abs(1.0 - quotient(origin, mean)))])

    def _predicted_of_all_records(self, theta: Draws) -> Floats:
        return self._of_all_records(theta, self.knowing(theta).plan.file.prediction.means)

    def _of_all_records(self, theta: Draws, means: Floats) -> Floats:
        """Sum of weights and means of outcomes over all records, (1 + outcome,), by means of base cells first."""
        size = self.sized(theta).count
        weights, outcomes = size * means[: len(size), 0], means[: len(size), 1:]
        return np.concatenate([[weights.sum()], weights @ outcomes / weights.sum()])

    def groups(self, by: Sequence[int]) -> list[dict[str, str]]:
        """The levels of every measured cell, by the table's columns, and by universe the side that it is on."""
        group = self.workload.groups(by)
        first = np.unique(group, return_index=True)[1]
        columns = [column for column in by if column < len(self.columns)]
        inside = {self.workload.named((k,)): self.workload.inside(k) for k in by if k >= len(self.columns)}
        return [
            {self.columns[k]: self.levels[k][self.codes[cell, k]] for k in columns}
            | {name: "inside" if side[cell] else "outside" for name, side in inside.items()}
            for cell in first
        ]

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        of_law = "b" if self.joint.law == "laplace" else "sigma"
        of_large = {LARGE_WEIGHTS: str(PART_OF_LARGE)} if "large" in theta.values else {}
        return {
            **super().describe(theta),
            "noisy": theta["noisy"][0].tolist(),
            "drift": theta["drift"][0].tolist(),
            "limits": theta["limits"][0].tolist(),
            "parts": dict(zip(self.names, map(str, self.released_parts(theta)), strict=True)) | of_large,
            **{name: theta[name][0].tolist() for name in FURTHER if name in theta.values},
            "noise": f"discrete {self.joint.law.title()}, {of_law} = {self.joint.scale} in units of 2^-20 at a share of 1",
        }

    def recall(self, described: Mapping[str, Any]) -> Draws:
        values = dict(super().recall(described).values)
        names = [name for name in ("noisy", "drift", "limits", *FURTHER) if name in described]
        if not set(self.names) <= set(described["parts"]):
            raise WorkspaceError("released/set-1.json", OTHER_LIMITS, AS_MEASURED)
        parts = np.array([[float(Fraction(described["parts"][name]) * PART_STEPS) for name in self.names]])
        noisy = {name: np.array([described[name]], dtype=np.float64) for name in names}
        return Draws({**values, **noisy, "parts": parts})


def _within(plan: TablePlan, donors: Donors) -> Donors:
    """The donors in the plan's memory: records of its reference begin with theirs, which need not be there twice."""
    if plan.file.alike:
        return donors
    records, reference = slice(0, len(donors)), plan.file.reference
    return replace(donors, weight=reference.weight[records], outcomes=reference.outcomes[records])


def _places(file: ExpectedFile) -> int:
    """Places of base cells in tables, records of the reference, and an allowance for what does not grow with them."""
    return 2_000 + len(file.codes) * (1 + len(file.tables)) + len(file.reference.weight)


PLANS = Recent[TablePlan](2, MOST_PLACES, lambda plan: _places(plan.file))
SUMS = Recent[ReleasedSums](2, MOST_PLACES, lambda sums: _places(sums.asked.file))


def weight_bounds(job: Job) -> tuple[float, float]:
    """Public bounds of the measured weight: 1 and 1 without one, 0 and infinity where the job states none."""
    if job.survey.measured_weight is None:
        return 1.0, 1.0
    declared = job.columns.get(job.survey.measured_weight)
    return (0.0, np.inf) if declared is None or declared.bounds is None else declared.bounds


def model_of(job: Job) -> type[ResidualCells]:
    """The model of every job under the mechanism."""
    return ResidualCells
