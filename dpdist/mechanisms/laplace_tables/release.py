"""The model of noisy figures of whole tables, which mechanisms `laplace` and `laplace_composed` release.

Cells without a sample record are known to be empty. If the job asks for consistent figures, the figures of all tables
agree. They then follow from a least squares fit of base cells, for counts and totals separately, and means are ratios of
the two. There are no synthetic records, because separate noisy figures define none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.least_squares import LeastSquares, ratios, stacked
from dpdist.job import Job, StatisticName
from dpdist.mechanisms.laplace_tables.sensitivity import (
    figures,
    local_scale,
    outcome_needed,
    public_scale,
)
from dpdist.mechanisms.laplace_tables.spec import WholeTables
from dpdist.mechanisms.sums_model import SumsModel
from dpdist.models.design import design
from dpdist.models.protocol import Draws, Parameter
from dpdist.privacy.cell_sums import UNIT, CellBounds
from dpdist.privacy.queries import NoisyQuery

FINER = 2**32
"""Under local sensitivities Δ, figures lie on a lattice with steps Δ/(UNIT · FINER).

These steps are no wider than float64's spacing at Δ.
"""
FINE_SCALE = Fraction(2**36)
"""Scale of the second noise, in lattice steps: 16/UNIT of Δ. It hides the first lattice, on which it is uniform to 1e-4."""

UNMET = "distance from the least squares solution"
_ROWS = "rows by {}"


def _largest_weight(job: Job) -> float:
    """The public upper bound of the weight; 1 without weights."""
    declared = job.columns[job.survey.weight].bounds if job.survey.weight else None
    return (declared or (0.0, 1.0))[1]


@dataclass(frozen=True)
class NoisyTable:
    """A table's cells and its noisy statistics; under public sensitivity these are its two sums, count and total."""

    name: str
    cells: Cells
    statistics: tuple[StatisticName, ...]
    occupied: Floats
    """1 for a cell that may have sample records, else 0; public. Where sample counts are noisy, it is 1 everywhere."""

    @property
    def parameter(self) -> Parameter:
        labels = tuple(" / ".join(label) or "all" for label in self.cells.labels)
        return Parameter(f"table {self.name}", (("cell", labels), ("statistic", self.statistics)))


@dataclass(frozen=True)
class NoisyTables(SumsModel):
    """The tables of a job; the whole file is one stratum.

    The statistics are (row, 2): Σw and Σwy, or sums of `CellBounds.pairs` in whole units of 1/UNIT.
    """

    tables: tuple[NoisyTable, ...]
    count: Floats
    """Sample records of every frame row, public."""
    bounds: CellBounds | None
    """Public bounds; None if the noise follows the file's own sensitivities."""
    consistency: bool
    scale: Fraction
    """The scale of the noise on a figure, in 1/UNIT of the figure's sensitivity, or in units of the pairs."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> NoisyTables:
        (low, high), local = job.outcome_column.bounds or (0.0, 1.0), job.local
        count, found = frame.count.astype(np.float64), []
        sums: tuple[StatisticName, ...] = ("count", "total") if outcome_needed(job.tables) else ("count",)
        for said in job.tables:
            cells = cross(frame, said.by, said.margins)
            own = tuple(dict.fromkeys(statistic.name for statistic in said.statistics)) if local else sums
            held = np.ones(len(cells)) if job.predictors is not None else cells.membership @ count
            found.append(NoisyTable(said.name, cells, own, (held > 0).astype(np.float64)))
        bounds = None if local else CellBounds(_largest_weight(job), low, high)
        scale = local_scale(job, frame) if local else public_scale(job, frame)
        assert isinstance(job.mechanism, WholeTables)
        consistency = job.mechanism.consistency == "least_squares"
        return cls(design(frame, (), rows), (low, high), tuple(found), count, bounds, consistency, scale)

    @property
    def public_noise(self) -> bool:
        """False under local sensitivities, which the scale of the noise follows."""
        return self.bounds is not None

    @property
    def query(self) -> NoisyQuery:
        """What all figures together lose, under public bounds."""
        cells = sum(table.cells.per_record for table in self.tables)
        return figures(cells, "total" in self.tables[0].statistics, self.scale)

    @property
    def noise_of_one(self) -> tuple[float, float] | None:
        """Least noise of a count and of a mean of one record, in direct standard errors; None under local sensitivities."""
        least = float(np.sqrt(2.0) * float(self.scale) / UNIT)
        return None if self.bounds is None else (least, least)

    @property
    def noise_of_count(self) -> tuple[float, float]:
        """Standard deviation of the noise of a count, and the largest weight; NaN under local sensitivities."""
        if self.bounds is None:
            return np.nan, np.nan
        return float(np.sqrt(2.0) * float(self.scale) / UNIT) * self.bounds.weight, self.bounds.weight

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(table.parameter for table in self.tables)

    @property
    def size(self) -> int:
        """Number of noisy figures."""
        return sum(parameter.size for parameter in self.parameters)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        if self.bounds is None:
            columns = np.column_stack([records.weight, records.weight * records.outcome])
        else:
            columns = self.bounds.pairs(records.weight, records.outcome)
        rows = len(self.count)
        return np.column_stack([np.bincount(records.frame, alpha * column, minlength=rows) for column in columns.T])

    def exact(self, sums: Floats, local: Sequence[Mapping[StatisticName, float]] | None) -> Floats:
        """All figures, (figure,): sums of pairs in units of 1/UNIT, or the tables' own under local sensitivities."""
        found = list[Floats]()
        for table in self.tables:
            count, total = (table.cells.membership @ sums).T
            if local is None:
                columns = [count, total][: len(table.statistics)]
            else:
                with np.errstate(divide="ignore", invalid="ignore"):
                    figures = {"count": count, "mean": total / count, "total": total}
                columns = [figures[name] for name in table.statistics]
            found.append(np.column_stack(columns).ravel())
        return np.concatenate(found)

    def steps(self, local: Sequence[Mapping[StatisticName, float]]) -> Floats:
        """The unit of the noise on every figure, (figure,), if sensitivities are local; `local` has these by table."""
        each = (
            np.broadcast_to([own[name] / UNIT for name in table.statistics], table.parameter.shape)
            for table, own in zip(self.tables, local, strict=True)
        )
        return np.concatenate([values.ravel() for values in each])

    def tables_of(self, noisy: Floats) -> Draws:
        """The released parameters, from all noisy figures, (figure,)."""
        values, start = {}, 0
        for table in self.tables:
            parameter = table.parameter
            own, start = noisy[start : start + parameter.size].reshape(parameter.shape), start + parameter.size
            known = np.array([np.nan if name == "mean" else 0.0 for name in table.statistics])
            values[parameter.name] = np.where(table.occupied[:, None] > 0, own, known)[None]
        return Draws(values)

    def figures(self, theta: Draws, name: str) -> dict[StatisticName, Floats]:
        """Published figures of a table, (draw, cell) each.

        They are made consistent if the job asks for it. Means are then ratios of sums, as they always are under public
        bounds.
        """
        (table,) = (table for table in self.tables if table.name == name)
        found = self._noised(theta, table)
        if self.consistency:
            membership = table.cells.membership
            adding = [name for name in found if name != "mean"]
            found |= {name: (membership @ self.rows(theta, name).T).T for name in adding}
        if self.bounds is None:
            return ratios(found) if self.consistency else found
        empty: Floats = np.full_like(found["count"], np.nan)
        return found | {"mean": self.bounds.mean(found["count"], found["total"]) if "total" in found else empty}

    def fitted(self, theta: Draws) -> Draws:
        """The parameters, with counts and totals of every frame row, (draw, row), that are nearest to the noisy figures.

        `rows`, `figures` and `expect` then need no fit of their own. `unmet` is the distance from the solution.
        """
        names = dict.fromkeys(name for table in self.tables for name in table.statistics if name != "mean")
        values, unmet = dict(theta.values), [0.0]
        for having, group in self._alike(list(names)).items():
            noisy = [[self._noised(theta, self.tables[k])[name] for k in having] for name in group]
            stack = np.concatenate([np.concatenate(own, axis=1) for own in noisy])
            solution = LeastSquares.of(stacked([self.tables[k].cells for k in having])).solve(stack)
            unmet.append(solution.unmet)
            values |= dict(zip((_ROWS.format(name) for name in group), np.split(solution.rows, len(group)), strict=True))
        return Draws({**values, UNMET: np.full(len(theta), max(unmet))})

    def _alike(self, names: Sequence[StatisticName]) -> dict[tuple[int, ...], list[StatisticName]]:
        """Statistics by the positions of the tables that have them; those of the same tables share one factor."""
        found: dict[tuple[int, ...], list[StatisticName]] = {}
        for name in names:
            having = tuple(k for k, table in enumerate(self.tables) if name in table.statistics)
            found.setdefault(having, []).append(name)
        return found

    def rows(self, theta: Draws, name: StatisticName) -> Floats:
        """Counts or totals of every frame row that are nearest to the noisy ones of all tables, (draw, row)."""
        fitted = theta if UNMET in theta.values else self.fitted(theta)
        return fitted[_ROWS.format(name)]

    def expect(self, theta: Draws) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row from `rows`, (draw, row) each; 0 for an outcome that no table needs."""
        count, fitted = np.maximum(self.count, 1.0), theta if UNMET in theta.values else self.fitted(theta)
        weight = self.rows(fitted, "count") / count
        known = "total" in self.tables[0].statistics
        return weight, self.rows(fitted, "total") / count if known else np.zeros_like(weight)

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The released sums with further noise of the same law, for standard errors only."""
        again = {}
        for table in self.tables:
            values = theta[table.parameter.name]
            noise = rng.laplace(0.0, float(self.scale), (draws, *values.shape[1:]))
            again[table.parameter.name] = values + noise * table.occupied[:, None]
        return Draws(again)

    def _noised(self, theta: Draws, table: NoisyTable) -> dict[StatisticName, Floats]:
        """Noisy figures as released, converted to the file's units, (draw, cell) each."""
        values = theta[table.parameter.name]
        if self.bounds is not None:
            pairs = values if values.shape[-1] == 2 else np.concatenate([values, np.zeros_like(values)], axis=-1)
            values = self.bounds.sums(pairs)
        return {name: values[..., k] for k, name in enumerate(table.statistics)}

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        of = "the sensitivity that the file itself has, on a lattice of 2^-52" if self.bounds is None else "the bounds"
        return {**super().describe(theta), "noise": f"discrete Laplace, scale {self.scale}, in units of 2^-20 of {of}"}


def model_of(job: Job) -> type[NoisyTables]:
    """The model of every job under the mechanism."""
    return NoisyTables
