"""Public half of `table_package`, for `query` and `publish`: base cells from noisy measurements, errors, records.

The reference's records are released as donors; publication computes the same prior from them, and draws errors from the
posterior. Estimates of base cells are released, so that tables need neither prior nor posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import scipy

from dpdist.core.digests import digest
from dpdist.core.progress import within
from dpdist.core.records import Codes, Floats, Frame, Ints
from dpdist.core.table_cells import codes_of
from dpdist.core.this_process import available_memory
from dpdist.estimation.donors import AbsentRecords, Donors
from dpdist.job import Job, NoiseName, Statistic
from dpdist.mechanisms.figures import GAUSSIAN, LAPLACE, Figures
from dpdist.mechanisms.reference_tables.cells import ReferenceRecords, public_weights
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.points import Drawn, OfDonors
from dpdist.mechanisms.reference_tables.typical_weights import TypicalWeights
from dpdist.mechanisms.table_package.sensitivity import WHOLE, joint_query, law_of
from dpdist.mechanisms.table_package.spec import AUTO, MEAN_SQUARE, TablePackage
from dpdist.mechanisms.table_package.words import DEFINITIONS, QUERIES, WORDS
from dpdist.models.design import counted, patterns
from dpdist.models.on_reference import ErrorsOfCells
from dpdist.models.outputs import ReleaseView
from dpdist.models.protocol import Cost, Draws, Improper, Parameter, describe_draws, recall_draws
from dpdist.models.public_model import PublicModel
from dpdist.packages import levels
from dpdist.packages.cost import SECONDS, Amounts, peak_bytes, processor_seconds
from dpdist.packages.error_draws import CellErrors, by_other, by_sample
from dpdist.packages.estimates import base_estimates, projected
from dpdist.packages.group_shapes import GroupLaw, GroupShapes
from dpdist.packages.large import refuse_beyond_memory
from dpdist.packages.package import Chosen, Package, Reference, Source, best_package, package
from dpdist.packages.package import Figures as PredictedFigures
from dpdist.packages.posterior import MOST_SUMS, Posterior, learned, resized, with_hidden
from dpdist.packages.shares import Law, Parts
from dpdist.packages.strategy import STRATEGIES, Aggregation, Strategy, TopDown, least_share, middles
from dpdist.packages.workload import PackageTable, Workload, indicator
from dpdist.privacy.queries import NoisyQuery, neighbour_of

__all__ = ["DEFINITIONS", "QUERIES", "WORDS", "PackageCells", "figures", "model_of"]

DONORS_OF_CELL = 64
"""Number of made-up donors of a base cell, where the job has no reference."""
OF_HISTOGRAMS = ("counts", "typical")
"""Released parameters of histograms: noisy counts, (group, bin), and typical weights with errors, (cell, 2)."""
OF_SECRET_SIZES = ("size", "growth")
"""Released parameters where numbers of records are secret: estimates of them, (cell,), and the file's relative to the
reference's, (1,)."""
LAW_NAMES: dict[NoiseName, str] = {"laplace": LAPLACE, "gaussian": GAUSSIAN}


PREDICTED = ("count", "mean", "total")
"""Statistics whose errors are predicted."""


class FromReference(NamedTuple):
    """What the mechanism learned from the reference: the package, and donors for synthetic records."""

    package: Package
    donors: Donors


@dataclass(frozen=True)
class PackageCells(PublicModel):
    """Base cells of the file, with the tables over them."""

    labels: tuple[str, ...]
    outcomes: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    """Public bounds of every outcome."""
    columns: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    """Names of the levels of every column."""
    codes: Codes
    """Levels of the tables' columns in every cell, (cell, column)."""
    count: Floats
    """Sample records of every cell, public; 1 in every cell if they are secret."""
    tables: tuple[PackageTable, ...]
    statistics: tuple[tuple[str, tuple[Statistic, ...]], ...]
    """Statistics of every table, by its name."""
    joint: NoisyQuery
    """The query for all measurements together."""
    moved: Fraction
    """Distance by which neighbouring files move a measurement, in units of 1/WHOLE."""
    strategy: str
    weighted: bool
    """Whether weights are measured; False without weights, and where they are public."""
    one_weight: bool
    public_weights: tuple[float, float]
    """Public bounds of a measured weight."""
    weight: Floats | None = None
    """The public weight of every cell, (cell,), 1 without weights; None if weights are measured."""
    nested: tuple[tuple[int, ...], ...] = ()
    """Columns of every hierarchy, the coarsest first."""
    largest: bool = False
    """True if the objective is the largest error, and not the mean squared one."""
    secret: bool = False
    """True if the file's numbers of records are secret."""
    donors: Donors | None = None
    """Records of the reference, once they are known."""
    first_stage: TypicalWeights | Histograms | None = None
    """The first measurements, if the job has no reference."""
    shapes: GroupShapes | None = None
    """The laws from noisy histograms in place of a reference, once they are known."""
    absent: AbsentRecords | None = None
    """Records of the reference in crosses that the file lacks, before they are learned from."""

    @property
    def scales(self) -> tuple[Fraction, ...]:
        """The largest scale of noise that any strategy and any parts of the budget can have, in units of 1/WHOLE."""
        above = len(self.workload.above) if self.strategy == TopDown().name or self.nested else 0
        return (self.joint.share("", least_share(len(self.workload.measured) + 1 + above)).scale,)

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> Self:
        columns, mechanism = job.cell_columns, job.mechanism
        assert isinstance(mechanism, TablePackage)
        cells = patterns(frame, columns, rows)
        first = np.unique(cells.pattern, return_index=True)[1] + rows.start
        codes = np.column_stack([np.zeros((len(first), 0), dtype=np.int32), *(frame.codes[c][first] for c in columns)])
        bounds = tuple(column.bounds or (0.0, 1.0) for column in job.outcome_columns.values())
        tables = tuple(
            PackageTable(
                *(table.name, tuple(columns.index(name) for name in table.by), table.margins, table.priority),
                tuple(
                    sorted(
                        (columns.index(name), codes_of(frame.levels[name], kept)) for name, kept in table.universe.items()
                    )
                ),
            )
            for table in job.tables
        )
        statistics = tuple((table.name, tuple(table.statistics)) for table in job.tables)
        joint, public = joint_query(job, mechanism.noise), job.survey.design_weights
        weighted = job.survey.measured_weight is not None
        made = cls(
            *(cells, bounds[0], cells.names, job.outcomes, bounds, columns),
            tuple(tuple(map(str, frame.levels[name])) for name in columns),
            *(
                codes.astype(np.int32),
                np.ones(len(first)) if job.sizes_in_sums else counted(frame, rows, cells),
                tables,
                statistics,
                joint,
                joint.moved.by(neighbour_of(job)),
            ),
            *(mechanism.strategy, weighted, bool(job.survey.one_weight_in)),
            weight=None if weighted else np.ones(len(first)) if public is None else public.of(frame)[first],
            nested=tuple(tuple(map(columns.index, hierarchy.columns)) for hierarchy in job.hierarchies.values()),
            largest=mechanism.objective != MEAN_SQUARE,
            public_weights=public_weights(job),
            secret=job.sizes_in_sums,
        )
        if not job.on_histograms:
            return made
        return replace(made, first_stage=TypicalWeights.build(job, replace(made, tables=(), statistics=())))

    @property
    def largest_sum(self) -> int:
        """The largest sum of any file of as many records, in units of 1/WHOLE; sums of a secret number are cut."""
        return 0 if self.secret else WHOLE * int(self.count.sum())

    @property
    def too_large(self) -> str:
        """The reason why a package cannot be held; empty if it can. Some packages have fewer sums than others."""
        workload, why = self.workload, "where numbers of records are secret" if self.secret else "without a reference"
        if self.first_stage is not None or self.secret:
            rows = max(sum(one.matrix.shape[0] for one in strategy.aggregations(workload)) for strategy in self.tried)
            if (number := (1 + len(self.outcomes)) * rows) > MOST_SUMS:
                return f"{number:,} sums to measure, and a package may have {MOST_SUMS:,} {why}"
            if levels.Terms.of(workload).large:
                return f"more cells of tables and columns than can be held {why}"
        try:
            refuse_beyond_memory(workload, available_memory())
        except ValueError as fault:
            return str(fault)
        return ""

    @property
    def tried(self) -> list[Strategy]:
        """The strategies that the job names, or that `auto` tries."""
        workload, auto = self.workload, self.strategy == AUTO
        return [one for one in STRATEGIES if one.name == self.strategy or (auto and one.suits(workload))]

    def cost(self, records: int) -> Cost:
        """The projected cost of a run, from public sizes."""
        amounts = Amounts.of(self.workload, records, self.tried)
        shared = records * SECONDS.records
        return Cost(processor_seconds(amounts), shared, peak_bytes(amounts, self.workload))

    @property
    def identified(self) -> int:
        """A reference needs more than one record. Cells without one take their level from others."""
        return 1

    @property
    def first(self) -> list[int]:
        """The first frame row of every cell."""
        return [int(row) for row in np.unique(self.design.pattern, return_index=True)[1]]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        cell = ("cell", self.labels)
        several = len(self.outcomes) > 1
        level = ("level", ("weight", *(self.outcomes if several else ("outcome",)), *(("size",) if self.secret else ())))
        centre, half = ([name + suffix for suffix in self.suffixes] for name in ("centre", "half_width"))
        return (
            Parameter("means", (cell, ("mean", ("weight", *self.outcomes)))),
            Parameter("limits", (cell, ("limit", (*centre, "cap", *half)))),
            Parameter("deviations", (cell, level)),
            Parameter("drift", (level,)),
        )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of statistics' names, by outcome: the outcome's name, or nothing if there is one outcome."""
        return tuple(f" {name}" for name in self.outcomes) if len(self.outcomes) > 1 else ("",)

    @property
    def workload(self) -> Workload:
        sizes = tuple(map(len, self.levels))
        outcomes = len(self.outcomes)
        columns = self.codes.astype(np.int64), sizes, self.count, self.tables, self.columns
        return Workload(*columns, outcomes, self.nested, self.secret, self.largest, self.weight)

    @property
    def law(self) -> Law:
        """The facts on noise that the choice of measurements needs."""
        return law_of(self.joint)

    def learned(self, records: ReferenceRecords, copied: pa.Table | None) -> FromReference:
        """The package that a reference gives. Raises `Improper` if the reference or the machine is too small."""
        donors = Donors.of(self.pattern(records.frame), records.weight, records.outcomes, copied)
        if not len(donors):
            raise Improper("the reference has no record with a weight above 0 in the cells of the tables")
        if self.absent is not None:
            donors = replace(donors, absent=self.absent.by(self.columns))
        try:
            return FromReference(self.with_donors(donors).package(), donors)
        except ValueError as fault:
            raise Improper(str(fault)) from None

    def relearned(self, learned: FromReference) -> FromReference:
        """Levels stay. So do, in packages of many sums, the strategy and the choice of centres."""
        try:
            return learned._replace(package=self.with_donors(learned.donors).package(before=learned.package))
        except ValueError as fault:
            raise Improper(str(fault)) from None

    def predicted_errors(self, learned: FromReference) -> Sequence[ErrorsOfCells]:
        """Errors of counts, means and totals by table, under the planned drift; other statistics are not predicted."""
        statistics = {name: [one for one in chosen if one.name in PREDICTED] for name, chosen in self.statistics}
        with_totals = [name for name, chosen in statistics.items() if any(one.name == "total" for one in chosen)]

        def of(errors: PredictedFigures, one: Statistic) -> Floats:
            if one.name == "count":
                return errors.counts
            return (errors.means if one.name == "mean" else errors.totals)[:, self.outcomes.index(one.variable or "")]

        def freedom(by_outcome: Floats, one: Statistic) -> Floats:
            shown = by_outcome[:, self.outcomes.index(one.variable or self.outcomes[0])]
            return shown if one.name == "mean" else np.full(len(shown), np.inf)

        records = self._reference(learned.donors)
        return [
            ErrorsOfCells(
                *(of_table.table, one, of(of_table.error, one), of(of_table.reference_alone, one)),
                freedom(of_table.freedom, one),
            )
            for of_table in learned.package.predicted(with_totals, records)
            for one in statistics[of_table.table]
        ]

    def by_setting(self) -> Mapping[str, Self]:
        by_strategy = {f"strategy: {one.name}": one.name for one in STRATEGIES if one.suits(self.workload)}
        other = "mean_square" if self.largest else "largest"
        return {
            **{change: replace(self, strategy=name) for change, name in by_strategy.items()},
            f"objective: {other}": replace(self, largest=not self.largest),
        }

    def shaped(self, histograms: Histograms, noisy: Floats) -> Self:
        """This model with shapes from noisy counts of histograms, (group, bin), in place of a reference."""
        groups = histograms.of_groups(noisy)
        laws = tuple(GroupLaw(cells[0].weight, np.stack([cell.outcome for cell in cells])) for cells in groups)
        return replace(self, shapes=GroupShapes(histograms.group.astype(np.int64), histograms.typical, laws))

    @property
    def source(self) -> Source:
        """The source of levels and limits."""
        if self.shapes is not None:
            return self.shapes
        assert self.donors is not None
        return self._reference(self.donors)

    def _reference(self, donors: Donors) -> Reference:
        """The records that levels are learned from: donors, and those in crosses that the file lacks."""
        if (absent := donors.absent) is None:
            return Reference(donors.cell, donors.weight, donors.outcomes)
        cell, codes = self.workload.placed(absent.codes.astype(np.int64))
        outcomes = np.concatenate([donors.outcomes, absent.outcomes])
        weight = np.concatenate([donors.weight, absent.weight])
        return Reference(np.concatenate([donors.cell, cell]), weight, outcomes, codes)

    def with_absent(self, absent: AbsentRecords) -> Self:
        """This model, which also learns from these records."""
        return replace(self, absent=absent)

    def with_donors(self, donors: Donors) -> Self:
        """This model with the reference's records."""
        return replace(self, donors=donors)

    def package(self, chosen: tuple[str, Chosen] | None = None, before: Package | None = None) -> Package:
        """The package under the job's strategy, or under a strategy with its earlier choices.

        `before` is the package under another budget. Raises `ValueError` for what cannot be held.
        """
        (name, parts), source = chosen or (self.strategy, None), self.source
        if name == AUTO:
            return best_package(self.workload, source, self.bounds, self.law, before=before)[0]
        return package(self.workload, source, self.bounds, self.law, STRATEGIES[number_of(name)], parts, before)

    def estimated(self, package: Package, noisy: Floats, of_histograms: Mapping[str, Floats] | None = None) -> Draws:
        """The released parameters, from all noisy measurements, (row,), in units of 1/WHOLE.

        `of_histograms` are released with them.
        """
        with within(0.0, 0.8):
            posterior = learned(package.posterior, noisy / WHOLE)
        base = base_estimates(posterior, noisy / WHOLE, self.bounds)
        levels, limits, drift = posterior.prior.levels, posterior.prior.limits, posterior.drift
        low, high = np.array(self.bounds).T
        with np.errstate(divide="ignore", invalid="ignore"):
            held = base.counts[:, None]
            mean = np.where(held > 0.0, base.totals / held, np.clip(levels.mean, low, high))
        size = self.sized(posterior, noisy)
        weight = base.counts / size if self.weight is None else self.weight
        values = {
            "means": np.column_stack([weight, np.clip(mean, low, high)]),
            "limits": np.column_stack([limits.centre, limits.cap, limits.half]),
            "deviations": posterior.prior.linearised_at,
            "drift": np.array(drift),
            "noisy": noisy,
            "shares": np.array([float(part) for part in package.parts.shares]),
            "outcome_parts": np.array(package.parts.outcomes, dtype=np.float64),
            "centred": np.array([float(package.group_centred)]),
            "strategy": np.array([number_of(package.strategy)], dtype=np.float64),
            **({"size": size, "growth": np.array([posterior.growth])} if self.secret else {}),
            **(of_histograms or {}),
        }
        return Draws({name: value[None] for name, value in values.items()})

    def sized(self, posterior: Posterior, noisy: Floats) -> Floats:
        """Sample records of every cell, (cell,), public or estimated: at least one, which has the cell's estimate."""
        if not self.secret:
            return self.count
        estimated = projected(posterior.estimated(noisy / WHOLE)[:, -1], posterior.prior.workload)
        return np.asarray(np.maximum(np.rint(estimated), 1.0))

    def sizes_of_rows(self, described: Mapping[str, Any]) -> Ints:
        """The number of sample records of every frame row, (row,), estimated from noisy sums."""
        return np.array(described["size"], dtype=np.int64)[self.design.pattern]

    def prepared(self, theta: Draws) -> Package:
        """The package of the released parameters, before its measurements, from the reference's records."""
        shares = tuple(map(Fraction, theta["shares"][0].tolist()))
        of_outcomes = tuple(tuple(map(Fraction, parts)) for parts in theta["outcome_parts"][0].tolist())
        chosen = Chosen(Parts(shares, of_outcomes), bool(theta["centred"][0, 0]))
        return _prepared(_Problem.of(self._recalled(theta), STRATEGIES[int(theta["strategy"][0, 0])].name, chosen))

    def _recalled(self, theta: Draws) -> Self:
        """This model with the shapes of released histograms, if the job has no reference."""
        if self.first_stage is None:
            return self
        return self.shaped(self.histograms(theta), theta["counts"][0])

    def histograms(self, theta: Draws) -> Histograms:
        """The released histograms of a job without a reference."""
        assert self.first_stage is not None
        return self.first_stage.recalled(*theta["typical"][0].T)

    def posterior(self, theta: Draws) -> Posterior:
        """The posterior of the released parameters."""
        made = self.prepared(theta)
        whole = resized(made.posterior, float(theta["growth"][0, 0])) if self.secret else made.posterior
        prior = replace(whole.prior, linearised_at=theta["deviations"][0])
        return with_hidden(replace(whole, prior=prior, drift=tuple(map(float, theta["drift"][0]))))

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        if "products" in theta.values:
            weight, product = theta["weights"], theta["products"][..., outcome]
        else:
            weight, product = theta["means"][..., 0], theta["means"][..., 0] * theta["means"][..., 1 + outcome]
        return weight[:, self.design.pattern], product[:, self.design.pattern]

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        means = theta["means"][0, self.pattern(frame_row)]
        return means[:, 1:] if len(self.outcomes) > 1 else means[:, 1], means[:, 0]

    def donor_records(self, release: ReleaseView, stratum: int) -> Drawn:
        """Synthetic records that are copies of donors, moved to the estimates of base cells."""
        return Drawn.of(release, self, stratum, self._made_up(release, stratum) if self.first_stage is not None else None)

    def distribution(self, release: ReleaseView, stratum: int) -> OfDonors:
        """The distributions of the reference's records, moved to the estimates of base cells."""
        return OfDonors.of_cells(release, self, stratum)

    def _made_up(self, release: ReleaseView, stratum: int) -> Donors:
        """Donors by the released histograms, `DONORS_OF_CELL` for every base cell."""
        shapes = self._recalled(release.theta(self, stratum, 0)).shapes
        assert shapes is not None
        kept = [law.thinned(DONORS_OF_CELL) for law in shapes.laws]
        cell = np.repeat(np.arange(len(self.count), dtype=np.int32), DONORS_OF_CELL)
        weight = np.concatenate([typical * kept[k].weight for typical, k in zip(shapes.typical, shapes.group, strict=True)])
        outcomes = np.concatenate([kept[k].outcome.T for k in shapes.group])
        return Donors.of(cell, np.clip(weight, *self.public_weights), outcomes)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Base cells under other samples of the file's records, without noise.

        `shape` (draw, cell) is the error of the donors' shapes, in standard deviations: one for all cells that use them.
        """
        drawn = self._drawn(theta, rng, f"{draws} samples", lambda posterior: by_sample(posterior, draws, rng))
        moved = self._moved(theta, drawn)
        if self.donors is None:
            return moved
        group = self.donors.by_cell(self.codes).group
        shape = rng.standard_normal((len(moved["weights"]), int(group.max()) + 1))[:, group]
        return Draws({**moved.values, "shape": shape})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Base cells under other noise, other samples of the reference, and other drift, for standard errors only."""
        laplace = self.joint.law == "laplace"
        drawn = self._drawn(theta, rng, f"{draws} others", lambda posterior: by_other(posterior, draws, rng, laplace))
        return self._moved(theta, drawn)

    def _drawn(
        self, theta: Draws, rng: np.random.Generator, name: str, draw: Callable[[Posterior], CellErrors]
    ) -> CellErrors:
        """Errors that follow from the posterior of released parameters; equal ones are drawn once in a process."""
        donors = None if self.donors is None else self._reference(self.donors)
        public = self.codes, self.count, self.tables, self.nested, self.joint, self.bounds, self.public_weights
        key = digest((public, donors, dict(theta.values), name, rng.bit_generator.state))

        def drawn() -> CellErrors:
            with within(0.0, 0.5):
                posterior = self.posterior(theta)
            with within(0.5, 1.0):
                return draw(posterior)

        errors, after = _redrawn(_Redrawn(key, drawn, rng))
        rng.bit_generator.state = after
        return errors

    def _moved(self, theta: Draws, errors: CellErrors) -> Draws:
        means, (counts, totals) = theta["means"][0], errors
        weight, mean = means[:, :1], means[:, 1:]
        size = theta["size"][0] if self.secret else self.count
        weights = weight[:, 0] + counts / size
        return Draws({"weights": weights, "products": weight * mean + totals / size[:, None]})

    def measured(self, theta: Draws) -> Iterator[tuple[Aggregation, Fraction]]:
        """The groups of base cells that were measured, with their parts of the budget."""
        strategy = STRATEGIES[int(theta["strategy"][0, 0])]
        parts = map(Fraction, theta["shares"][0].tolist())
        pairs = zip(strategy.aggregations(self.workload), parts, strict=True)
        return ((grouped, part) for grouped, part in pairs if part)

    def groups(self, matrix: scipy.sparse.csr_array) -> list[dict[str, str]]:
        """The levels of every group of base cells, by the columns that do not vary within any group."""
        groups = matrix.tocoo()
        first = np.full(groups.shape[0], -1)
        first[groups.row[::-1]] = groups.col[::-1]
        constant = [
            k for k in range(len(self.columns)) if (self.codes[first[groups.row], k] == self.codes[groups.col, k]).all()
        ]
        return [{self.columns[k]: self.levels[k][self.codes[cell, k]] for k in constant} for cell in first]

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        strategy = STRATEGIES[int(theta["strategy"][0, 0])].name
        of_law = "b" if self.joint.law == "laplace" else "sigma"
        return {
            **describe_draws(self.parameters, theta),
            "strategy": strategy,
            "centred": bool(theta["centred"][0, 0]),
            "shares": theta["shares"][0].tolist(),
            **({"outcome_parts": theta["outcome_parts"][0].tolist()} if len(self.outcomes) > 1 else {}),
            "noisy": theta["noisy"][0].tolist(),
            **({name: theta[name][0].tolist() for name in OF_SECRET_SIZES} if self.secret else {}),
            **{name: theta[name][0].tolist() for name in OF_HISTOGRAMS if name in theta.values},
            "noise": f"discrete {self.joint.law.title()}, {of_law} = {self.joint.scale} in units of 2^-30 at a share of 1",
        }

    def recall(self, described: Mapping[str, Any]) -> Draws:
        made = dict(recall_draws(self.parameters, described).values)
        made |= {name: np.array([described[name]], dtype=np.float64) for name in ("shares", "noisy")}
        made |= {name: np.array([described[name]], dtype=np.float64) for name in OF_HISTOGRAMS if name in described}
        whole = [[1.0]] * len(described["shares"])
        made["outcome_parts"] = np.array([described.get("outcome_parts", whole)], dtype=np.float64)
        made["centred"] = np.array([[float(described["centred"])]])
        if self.secret:
            made |= {name: np.array([described[name]], dtype=np.float64) for name in OF_SECRET_SIZES}
        return Draws({**made, "strategy": np.array([[float(number_of(described["strategy"]))]])})


def number_of(strategy: str) -> int:
    """The position of a strategy among all."""
    return [one.name for one in STRATEGIES].index(strategy)


@dataclass(frozen=True, eq=False)
class _Problem:
    """A model with a strategy; equal models share a package, which publication asks for several times."""

    key: str
    model: PackageCells
    strategy: str
    chosen: Chosen

    @classmethod
    def of(cls, model: PackageCells, strategy: str, chosen: Chosen) -> _Problem:
        of_model = (model.codes, model.count, model.weight, model.tables, model.nested, model.joint, model.source)
        content = (*of_model, strategy, chosen)
        return cls(digest(content), model, strategy, chosen)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Problem) and other.key == self.key


@lru_cache(maxsize=2)
def _prepared(problem: _Problem) -> Package:
    return problem.model.package((problem.strategy, problem.chosen))


@dataclass(frozen=True)
class _Redrawn:
    """Errors yet to be drawn. Publication and the custodian's page ask for the same ones, which take most of their time."""

    key: str
    draw: Callable[[], CellErrors] = field(compare=False)
    rng: np.random.Generator = field(compare=False)


@lru_cache(maxsize=2)
def _redrawn(wanted: _Redrawn) -> tuple[CellErrors, Mapping[str, Any]]:
    return wanted.draw(), wanted.rng.bit_generator.state


def model_of(job: Job) -> type[PackageCells]:
    """The model of every job under the mechanism."""
    return PackageCells


def figures(release: ReleaseView, model: PackageCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of every measurement, group by group."""
    start = 0
    names = ("above", "below") if model.secret else ("q of" if len(model.outcomes) > 1 else "q",)
    statistics = [*model.weighted * ["a"], *(name + suffix for name in names for suffix in model.suffixes)]
    sums = len(statistics)
    for number, (grouped, part) in enumerate(model.measured(theta)):
        groups = grouped.matrix.shape[0]
        values = theta["noisy"][0, start : start + sums * groups].reshape(sums, groups).T
        start += sums * groups
        yield Figures(
            cells=model.groups(grouped.matrix),
            statistics=statistics,
            values=values,
            scales=[model.joint.share("", part).scale] * sums,
            limits=_GroupLimits(model, theta, number),
            unit=WHOLE,
            law=LAW_NAMES[model.joint.law],
            table=grouped.name,
            sensitivity=float(model.moved / WHOLE),
        )
    if model.first_stage is not None:
        yield from _of_bins(release, model, theta)


def _of_bins(release: ReleaseView, model: PackageCells, theta: Draws) -> Iterator[Figures]:
    """The noisy counts of bins, with the bins' centres and half-widths, by group of base cells and by column."""
    histograms, weight = model.histograms(theta), release.job.survey.measured_weight
    names = [*([weight] if weight is not None else []), *model.outcomes]
    groups, start = model.groups(indicator(histograms.group.astype(np.int64))), 0
    for name, (left, right) in zip(names, histograms.bins, strict=True):
        ends = [(float(a + b) / 2.0, None, float(b - a) / 2.0) for a, b in zip(left, right, strict=True)]
        for number, (cell, counts) in enumerate(zip(groups, theta["counts"][0, :, start : start + len(ends)], strict=True)):
            yield Figures(
                cells=[cell] * len(ends),
                statistics=[f"count in bins of {name}"],
                values=counts[:, None],
                scales=[histograms.query.scale],
                limits=partial(_ends_of_bin, ends),
                unit=1,
                law=LAW_NAMES[histograms.query.law],
                table=f"histograms of group {number + 1}",
                sensitivity=float(histograms.query.moved.by(neighbour_of(release.job))),
            )
        start += len(ends)


def _ends_of_bin(ends: list[tuple[float, None, float]], number: int, statistic: int) -> tuple[float, None, float]:
    return ends[number]


@dataclass(frozen=True)
class _GroupLimits:
    """The limits of a measurement's groups, computed when they are first asked for: extents, and centres if it has them."""

    model: PackageCells
    theta: Draws
    number: int
    """The measurement's position."""

    @cached_property
    def _of_groups(self) -> list[Floats]:
        """Centre (NaN if base cells keep their own), extent of weights, and extent of outcomes over it, (group, 3).

        One array for every outcome.
        """
        package = self.model.prepared(self.theta)
        matrix, (of_weight, *of_outcomes) = (
            package.aggregations[self.number].matrix,
            package.measurements[self.number].extents,
        )
        limits, count = package.prior.limits, package.prior.workload.count
        return [
            np.column_stack(
                [
                    middles(matrix, limits.cap, centre, count)
                    if self.theta["centred"][0, 0]
                    else np.full(len(extent), np.nan),
                    of_weight,
                    extent / of_weight,
                ]
            )
            for centre, extent in zip(limits.centre.T, of_outcomes, strict=True)
        ]

    def __call__(self, group: int, statistic: int) -> tuple[float | None, float | None, float | None]:
        """A group's centre, weight cap and half-width; those of outcomes are None for a sum of weights."""
        ends = self._of_groups
        outcome = statistic - self.model.weighted
        centre, cap, half = map(float, ends[max(outcome, 0) % len(ends)][group])
        return (None, cap, None) if outcome < 0 else (None if np.isnan(centre) else centre, cap, half)
