"""Public half of `laplace` and `laplace_composed`: figures of tables, their errors, measurements.

Cells without a sample record are publicly empty. On request of the job, figures of all tables are made consistent by a
least squares fit. The fit is of base cells, separately for counts and totals; means are their ratios. Separately noised
figures define no synthetic records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.core.records import UNIT, Cells, Crosstab, Floats
from dpdist.estimation.least_squares import NEAR_ENOUGH, LeastSquares, ratios, stacked
from dpdist.job import Job, StatisticName
from dpdist.mechanisms.laplace_tables.sensitivity import local_scale, outcome_needed, query_of
from dpdist.mechanisms.laplace_tables.spec import WholeTables
from dpdist.mechanisms.parts import NO_LIMITS, SUM_OF_A, SUM_OF_B, Figures, Words
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import PublicModel, design
from dpdist.privacy.cell_sums import CellBounds

UNMET = "distance from the least squares solution"
_ROWS = "rows by {}"
NO_RECORDS = (
    "There are no synthetic records: every figure, margins included, has its own noise, so no single file gives all "
    "figures."
)
LEAST_SQUARES = (
    "Counts and totals of all tables are adjusted by least squares: they are replaced by the nearest figures that add up. "
    "A mean is the ratio of its total to its count if the table has both; otherwise it is the noisy mean."
)
STOPPED = (
    "The least-squares adjustment stopped at its maximum number of steps, with a last correction of {:.0e} of the largest "
    "figure. Figures add up in all tables, but they are not exactly the nearest ones that do."
)
AS_NOISED = "Noisy figures are published without adjustment: margins are not the sums of their cells."
RATIOS = (
    "A mean is the ratio of the noisy total to the noisy count, clipped to the outcome's public bounds. If the noisy "
    "count is 0 or less, the mean is set to the lower or the upper bound, depending on the sign of the noisy total."
)
NO_ERRORS = (
    "There are no standard errors. The scale of the noise follows from the file's own sensitivities, which are "
    "confidential, and the variation of records was not released."
)
SUMS_NOISED_AGAIN = (
    "Standard errors are simulated. They include the noise and the variation of the number of sample records in each "
    "cell, but neither the variation of records within a cell, which was not released, nor the bias of clipping."
)
DEFINITIONS = {
    "a": SUM_OF_A,
    "b": SUM_OF_B,
    "count": "the table's own figure; its noise has the scale of confidential sensitivities",
    "mean": "as count",
    "total": "as count",
}


@dataclass(frozen=True)
class NoisyTable:
    """A table's cells and its noisy statistics; under public sensitivity these are its two sums, count and total."""

    name: str
    cells: Cells
    statistics: tuple[StatisticName, ...]
    occupied: Floats
    """1 for a cell that may have sample records, else 0.
    This is public. Where sample counts are noisy, it is 1 everywhere.
    """

    @property
    def parameter(self) -> Parameter:
        labels = tuple(" / ".join(label) or "all" for label in self.cells.labels)
        return Parameter(f"table {self.name}", (("cell", labels), ("statistic", self.statistics)))


@dataclass(frozen=True)
class NoisyTables(PublicModel):
    """The tables of a job; the whole file is one stratum."""

    tables: tuple[NoisyTable, ...]
    count: Floats
    """Sample records of every crosstab row, public."""
    bounds: CellBounds | None
    """Public bounds; None if the noise follows local sensitivities."""
    consistency: bool
    scale: Fraction
    """Scale of the noise: in units of 1/UNIT on pairs, or of 1/UNIT times each figure's own sensitivity."""

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> NoisyTables:
        (low, high), local = job.outcome_column.ends, job.local
        count, noisy_tables = crosstab.count.astype(np.float64), list[NoisyTable]()
        sums: tuple[StatisticName, ...] = ("count", "total") if outcome_needed(job.tables) else ("count",)
        for table in job.tables:
            cells = table.cells(crosstab)
            statistics = tuple(dict.fromkeys(statistic.name for statistic in table.statistics)) if local else sums
            sizes = np.ones(len(cells)) if job.noisy_crosstab else cells.membership @ count
            noisy_tables.append(NoisyTable(table.name, cells, statistics, (sizes > 0).astype(np.float64)))
        bounds = None if local else CellBounds((job.weight_bounds or (0.0, 1.0))[1], low, high)
        scale = local_scale(job, crosstab) if local else query_of(job).scale
        consistency = WholeTables.of(job).consistency == "least_squares"
        return cls(design(crosstab, (), rows), (low, high), tuple(noisy_tables), count, bounds, consistency, scale)

    @property
    def public_noise(self) -> bool:
        """False if the scale follows local sensitivities, which are confidential."""
        return self.bounds is not None

    @property
    def noise_of_count(self) -> tuple[float, float] | None:
        """Standard deviation of the noise of a count, and the largest weight; None under local sensitivities."""
        if self.bounds is None:
            return None
        return float(np.sqrt(2.0) * float(self.scale) / UNIT) * self.bounds.weight, self.bounds.weight

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(table.parameter for table in self.tables)

    @property
    def size(self) -> int:
        """Number of noisy figures."""
        return sum(parameter.size for parameter in self.parameters)

    def tables_of(self, noisy: Floats) -> Draws:
        """The released parameters, from all noisy figures, (figure,)."""
        values, start = {}, 0
        for table in self.tables:
            parameter = table.parameter
            figures, start = noisy[start : start + parameter.size].reshape(parameter.shape), start + parameter.size
            without_noise = np.array([np.nan if name == "mean" else 0.0 for name in table.statistics])
            values[parameter.name] = np.where(table.occupied[:, None] > 0, figures, without_noise)[None]
        return Draws(values)

    def figures(self, theta: Draws, name: str) -> dict[StatisticName, Floats]:
        """Published figures of a table, (draw, cell) each.

        They are made consistent if the job asks for it. Consistent means are ratios of sums, as are all means under
        public bounds.
        """
        (table,) = (table for table in self.tables if table.name == name)
        figures = self._noised(theta, table)
        if self.consistency:
            membership = table.cells.membership
            adding = [name for name in figures if name != "mean"]
            figures |= {name: (membership @ self.rows(theta, name).T).T for name in adding}
        if self.bounds is None:
            return ratios(figures) if self.consistency else figures
        empty: Floats = np.full_like(figures["count"], np.nan)
        return figures | {"mean": self.bounds.mean(figures["count"], figures["total"]) if "total" in figures else empty}

    def with_rows(self, theta: Draws) -> Draws:
        """Adds the counts and totals of crosstab rows, (draw, row), that are nearest to the noisy figures.

        `rows`, `figures` and `expect` then need no further fit. `unmet` is the distance from the solution.
        """
        names = dict.fromkeys(name for table in self.tables for name in table.statistics if name != "mean")
        values, unmet = dict(theta.values), [0.0]
        for having, group in self._alike(list(names)).items():
            noisy = [[self._noised(theta, self.tables[k])[name] for k in having] for name in group]
            stack = np.concatenate([np.concatenate(tables, axis=1) for tables in noisy])
            solution = LeastSquares.of(stacked([self.tables[k].cells for k in having])).solve(stack)
            unmet.append(solution.last_step)
            values |= dict(zip((_ROWS.format(name) for name in group), np.split(solution.rows, len(group)), strict=True))
        return Draws({**values, UNMET: np.full(len(theta), max(unmet))})

    def _alike(self, names: Sequence[StatisticName]) -> dict[tuple[int, ...], list[StatisticName]]:
        """Groups statistics that occur in the same tables, so that a group shares one factorisation."""
        alike: dict[tuple[int, ...], list[StatisticName]] = {}
        for name in names:
            having = tuple(k for k, table in enumerate(self.tables) if name in table.statistics)
            alike.setdefault(having, []).append(name)
        return alike

    def rows(self, theta: Draws, name: StatisticName) -> Floats:
        """Counts or totals of every crosstab row that are nearest to the noisy ones of all tables, (draw, row)."""
        fitted = theta if UNMET in theta.values else self.with_rows(theta)
        return fitted[_ROWS.format(name)]

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row from `rows`, (draw, row) each; 0 for an outcome that no table needs."""
        count, fitted = np.maximum(self.count, 1.0), theta if UNMET in theta.values else self.with_rows(theta)
        weight = self.rows(fitted, "count") / count
        has_totals = "total" in self.tables[0].statistics
        return weight, self.rows(fitted, "total") / count if has_totals else np.zeros_like(weight)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, for standard errors only."""
        sums = {}
        for table in self.tables:
            values = theta[table.parameter.name]
            noise = rng.laplace(0.0, float(self.scale), (draws, *values.shape[1:]))
            sums[table.parameter.name] = values + noise * table.occupied[:, None]
        return Draws(sums)

    def _noised(self, theta: Draws, table: NoisyTable) -> dict[StatisticName, Floats]:
        """Noisy figures as released, converted to the file's units, (draw, cell) each."""
        values = theta[table.parameter.name]
        if self.bounds is not None:
            pairs = values if values.shape[-1] == 2 else np.concatenate([values, np.zeros_like(values)], axis=-1)
            values = self.bounds.sums(pairs)
        return {name: values[..., k] for k, name in enumerate(table.statistics)}

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        of = (
            "the local sensitivity, computed from the file itself, on a lattice of 2^-52"
            if self.bounds is None
            else "the bounds"
        )
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}, in units of 2^-20 of {of}"}


@dataclass(frozen=True)
class TableWords(Words):
    """Texts that depend on whether the noise has a public scale or follows local sensitivities."""

    def post_processing(self, release: ReleaseView) -> list[str]:
        steps = [*super().post_processing(release), *([] if release.job.local else [RATIOS])]
        model = release.model(0)
        assert isinstance(model, NoisyTables)
        if model.consistency and (unmet := model.with_rows(release.theta(model, 0, 0))[UNMET][0]) > NEAR_ENOUGH:
            steps.append(STOPPED.format(unmet))
        return steps

    def errors_of(self, release: ReleaseView) -> str:
        return NO_ERRORS if release.job.local else self.errors


WORDS = TableWords(
    density="noisy weighted counts, means and totals of {outcome}, for each table as a whole and in the observed sample",
    errors=SUMS_NOISED_AGAIN,
    steps=(NO_RECORDS,),
    settings={"consistency": {"none": AS_NOISED, "least_squares": LEAST_SQUARES}},
)


def model_of(job: Job) -> type[NoisyTables]:
    """The model of every job under the mechanism."""
    return NoisyTables


def figures(release: ReleaseView, model: NoisyTables, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The figures of every table, without cells that are publicly empty."""
    for table in model.tables:
        occupied = np.flatnonzero(table.occupied)
        cells = [dict(zip(table.cells.by, table.cells.labels[k], strict=True)) for k in occupied]
        values = theta[table.parameter.name][0][occupied]
        if model.bounds is None:
            scales: list[Fraction | None] = [None] * len(table.statistics)
            yield Figures(cells, table.statistics, values, scales, lambda *_: NO_LIMITS, 1, table=table.name)
        else:
            bounds = model.bounds
            limits = (bounds.centre, bounds.weight, bounds.half_width)
            statistics, scales = ["a", "b"][: values.shape[1]], [model.scale] * values.shape[1]
            yield Figures(cells, statistics, values, scales, lambda *_, limits=limits: limits, table=table.name)
