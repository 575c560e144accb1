"""A model's optional outputs: measurements and tables of its own; figures released under noise, and their intervals.

Under public bounds, a variance has two parts: the noise, which is simulated again, and the sample's composition over
cells. There are no standard errors if the noise scale follows from the file's own, confidential sensitivities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.keys import Recent, digest
from dpdist.core.records import Cells, Floats
from dpdist.estimation.donors import CELL
from dpdist.estimation.estimators import STATISTICS, Interval, t_interval
from dpdist.job import DesignEffect, StatisticName, Table
from dpdist.mechanisms.parts import Figures, measured_of
from dpdist.models.protocol import DRAWS, DesignEffectOf, Draws, ModelTable, StratumModel, supports
from dpdist.publish.released import ReleasedObject, effect_of, plain_effects
from dpdist.publish.standard_errors import (
    CellsKey,
    Spreads,
    VarianceParts,
    composition,
    noise_variances,
    normal_variance,
    simulate_errors,
    table_key,
)

# `measurements.parquet` has one row for each cell and statistic. Values and noise scales have one unit, in which an
# unclipped record counts as at most 1. A weighted posterior measures no figures, and so has no such file.
FILE = "measurements.parquet"
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "set": (pa.int32(), "number of the synthetic set (of nested sets, the first); 0 if one measurement serves all sets"),
    "table": (pa.string(), "the table of the figure; null if it serves all tables"),
    "statistic": (pa.string(), "the measured sum over the cell's records, as the metadata define it"),
    "measurement": (
        pa.int64(),
        "number of the noisy figure; cells with the same number were measured together, as one sum",
    ),
    "value": (pa.float64(), "the sum plus noise"),
    "law": (pa.string(), "of the noise: discrete Laplace or discrete Gaussian, on multiples of `lattice`"),
    "scale": (
        pa.float64(),
        "of the noise: b of the Laplace distribution, sigma of the Gaussian; null if it is confidential",
    ),
    "lattice": (pa.float64(), "the step of the noise, of which the value is a multiple"),
    "sensitivity": (
        pa.float64(),
        "the largest change by one unit in the sums that share an epsilon, in the L1 norm, or the L2 norm under Gaussian "
        "noise. The Laplace scale is this value divided by their epsilon; noise truncated to a domain has a larger scale",
    ),
    "centre": (pa.float64(), "of the outcome's clipping interval"),
    "weight_cap": (pa.float64(), "the weight at which records were clipped"),
    "half_width": (pa.float64(), "of the outcome's clipping interval"),
}


def write_measurements(path: Path, released: ReleasedObject) -> None:
    """Writes the file if the mechanism adds noise to figures."""
    if not released.job.mechanism.adds_noise:
        return
    parts = list(_measurements(released))
    there = dict.fromkeys(name for part in parts for name in part.column_names if name not in COLUMNS)
    declared = [CELL + name for name in (*released.job.categories, *released.job.outcomes)]
    cells = [*(name for name in declared if name in there), *(name for name in there if name not in declared)]
    schema = pa.schema([*((name, pa.string()) for name in cells), *((name, kind) for name, (kind, _) in COLUMNS.items())])
    table = pa.concat_tables([schema.empty_table(), *parts], promote_options="default").combine_chunks()
    measurements = measured_of(released.job)
    defined = {name: measurements.definition(name) for name in table["statistic"].unique().to_pylist()}
    texts = {"columns": {name: text for name, (_, text) in COLUMNS.items()}, "statistics": defined}
    pq.write_table(table.replace_schema_metadata({"dpdist.measurements": json.dumps(texts)}), path)


def _measurements(released: ReleasedObject) -> Iterator[pa.Table]:
    """Tables of measurements, with a row for each cell and statistic.

    A measurement shared by several synthetic sets is listed once, under its first set. The set is 0 if the mechanism
    measures once for all sets.
    """
    mechanism = released.job.mechanism
    number, once = 0, mechanism.sets != "protected"
    sharing = len(released.sets) // mechanism.noises(released.job)
    measurements = measured_of(released.job)
    for stratum in range(len(released.crosstab.stratum_labels)):
        model = released.model(stratum)
        for k in range(0, 1 if once else len(released.sets), sharing):
            for figures in measurements.figures(released, model, stratum, released.theta(model, stratum, k)):
                table = _table_of(released, figures, 0 if once else k + 1, number)
                yield table
                number += len(table)


def _table_of(released: ReleasedObject, figures: Figures, number_of_set: int, start: int) -> pa.Table:
    cells, several, unit = len(figures.cells), len(figures.statistics), Fraction(figures.unit)
    cell, statistic = np.repeat(np.arange(cells), several), np.tile(np.arange(several), cells)
    values = figures.values[:cells, :several].ravel() / figures.unit
    is_measured = np.isfinite(values)
    has_scale = is_measured & np.array([scale is not None for scale in figures.scales])[statistic]
    scales = [np.nan if scale is None else float(scale / unit) for scale in figures.scales]
    sensitivities = [np.nan if scale is None else _sensitivity(released, figures, scale) for scale in figures.scales]
    limits = [figures.limits(i, j) for i in range(cells) for j in range(several)]
    columns: dict[str, Any] = {
        "set": np.full(len(cell), number_of_set, dtype=np.int32),
        "table": pa.array([figures.table] * len(cell), pa.string()),
        "statistic": pa.array(list(figures.statistics) * cells, pa.string()),
        "measurement": start + cell * several + statistic,
        "value": pa.array(values, mask=~is_measured),
        "law": pa.array([figures.law] * len(cell), pa.string()),
        "scale": pa.array(np.array(scales)[statistic], mask=~has_scale),
        "lattice": pa.array(np.full(len(cell), 1.0 / figures.unit), mask=~has_scale),
        "sensitivity": pa.array(np.array(sensitivities)[statistic], mask=~has_scale),
    }
    columns |= {
        name: pa.array([limit[k] for limit in limits], pa.float64())
        for k, name in enumerate(("centre", "weight_cap", "half_width"))
    }
    levels = {
        CELL + name: pa.array([of_cell.get(name) for of_cell in figures.cells], pa.string()).take(pa.array(cell))
        for name in dict.fromkeys(name for of_cell in figures.cells for name in of_cell)
    }
    return pa.table(levels | columns)


def _sensitivity(released: ReleasedObject, figures: Figures, scale: Fraction) -> float:
    """Sensitivity to one privacy unit: stated for a record times the unit's records, else the noise scale times ε."""
    job = released.job
    if figures.sensitivity is not None:
        return figures.sensitivity * job.most_records
    once = job.mechanism.sets != "protected"
    epsilon = job.epsilon.tables / (1 if once else job.synthetic_sets)
    return float(scale * epsilon / Fraction(figures.unit))


def write_model_tables(folder: Path, released: ReleasedObject) -> None:
    """Writes each table as <name>.parquet and .csv, with rows of all strata."""
    by_name = dict[str, ModelTable]()
    crosstab, effect = released.crosstab, _within(released.design_effects, released.crosstab.strata)
    for stratum in range(len(crosstab.stratum_labels)):
        model, first = released.model(stratum), crosstab.rows_of(stratum).start
        if not supports(model, "tables_beside"):
            return
        levels = {name: str(crosstab.levels[name][crosstab.codes[name][first]]) for name in crosstab.strata}
        theta = released.theta(model, stratum, 0)
        for name, model_table in model.tables_beside(released.job, theta, effect).items():
            rows = [row | {"cell": levels | row["cell"]} for row in model_table.rows]
            by_name.setdefault(name, model_table._replace(rows=[])).rows.extend(rows)
    for name, model_table in by_name.items():
        _write(folder / name, released, model_table)


def _within(effects: tuple[DesignEffect, ...], strata: tuple[str, ...]) -> DesignEffectOf:
    """Looks up design effects of cells in one stratum: the stratum's columns count as columns of these cells."""
    return lambda columns, statistic, outcome: effect_of(effects, columns | set(strata), statistic, outcome)


def _write(path: Path, released: ReleasedObject, model_table: ModelTable) -> None:
    columns = [*released.crosstab.strata, *released.job.outcomes]
    data = {model_table.label: pa.array([row[model_table.label] for row in model_table.rows], pa.string())}
    data |= {CELL + name: pa.array([row["cell"].get(name) for row in model_table.rows], pa.string()) for name in columns}
    data |= {name: pa.array([row[name] for row in model_table.rows], pa.float64()) for name in model_table.numbers}
    table = pa.table(data)
    pq.write_table(table, path.with_name(f"{path.name}.parquet"))
    pa_csv.write_csv(table, path.with_name(f"{path.name}.csv"))


COMPOSED = 100
"""Number of simulated noises over which the excess of the composition's variance is averaged."""


@dataclass(frozen=True)
class NoisedTables:
    """A release of whole tables: its parameters, also under simulated noise, fitted once for all tables.

    `redraws` is None if the noise scale is confidential.
    """

    released: ReleasedObject
    model: StratumModel
    theta: Draws
    redraws: Draws | None

    @classmethod
    def of(cls, released: ReleasedObject, model: StratumModel) -> NoisedTables:
        theta = released.theta(model, 0, 0)
        if not model.public_noise:
            return cls(released, model, model.with_rows(theta) if model.consistency else theta, None)
        redraws = model.noised_again(theta, 0, DRAWS, released.seed.generator("precision noise"))
        return cls(released, model, model.with_rows(theta), model.with_rows(redraws))

    def intervals(self, table: Table, cells: Cells) -> list[Interval]:
        """Intervals of counts, means and totals of a table, (cell,) each; NaN for statistics that it does not have."""
        df, parts = np.full(len(cells), np.inf), self.variance_parts(table, cells)
        return [t_interval(point, part.total, df) for point, part in zip(self.points(table), parts, strict=True)]

    def points(self, table: Table) -> list[Floats]:
        """Counts, means and totals of a table as published, (cell,) each; NaN for statistics that it does not have."""
        points = self.model.figures(self.theta, table.name)
        nothing = np.full_like(next(iter(points.values()))[0], np.nan)
        return [points[name][0] if name in points else nothing for name in STATISTICS]

    def noise(self, table: Table) -> dict[StatisticName, Floats]:
        """Variances by noise alone of the table's figures, (cell,) each; none if the noise scale is confidential."""
        if self.redraws is None:
            return {}
        return {name: normal_variance(draws) for name, draws in self.model.figures(self.redraws, table.name).items()}

    def variance_parts(self, table: Table, cells: Cells) -> list[VarianceParts]:
        """Variances of counts, means and totals due to the sample's composition and to the noise, simulated again.

        They are NaN if the noise scale is confidential. Noise makes E(w|x) differ between rows, which raises the
        composition's variance. This excess is estimated by adding the noise a second time, and then subtracted.
        """
        unknown = np.full(len(cells), np.nan)
        if self.redraws is None:
            return [VarianceParts(unknown, unknown)] * len(STATISTICS)
        released, noise = self.released, self.noise(table)

        def variances(weight: Floats, product: Floats) -> list[Floats]:
            return [figures.variance for figures in composition(released, cells, [(weight, product)])]

        once = np.array(variances(*(values[0] for values in self.model.expect(self.theta))))
        pairs = (values[:COMPOSED] for values in self.model.expect(self.redraws))
        twice = np.array([variances(*pair) for pair in zip(*pairs, strict=True)])
        finite = np.isfinite(twice)
        added = np.where(finite, twice, 0.0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1) - once
        composed = np.maximum(0.0, once - added)
        effects = plain_effects(released.design_effects, cells, released.job.outcomes[0])
        parts = zip(STATISTICS, effects, composed, strict=True)
        return [VarianceParts(effect * variance, noise.get(name, unknown)) for name, effect, variance in parts]


def release_key(released: ReleasedObject) -> str:
    """A key of the release. A verdict, and the custodian's page that follows it, read it anew, without paths."""
    return digest((released.seed.hex(), json.dumps(released.job.public)))


NoiseParts = Mapping[tuple[str, CellsKey], Sequence[Floats]]
"""Variances of counts, means and totals by noise alone, (cell,) each, by outcome and table's cells."""
_published = Recent[NoiseParts]()
"""Those of this process's last publication."""
_simulated = Recent[list[Spreads] | None]()
"""Spreads by noise alone that were simulated for the last release."""


def remember_noise(released: ReleasedObject, noise: NoiseParts) -> None:
    """Keeps variances by noise of all published tables, so that the verdict on a run does not simulate noise again."""
    _published.replace(release_key(released), noise)


@dataclass(frozen=True)
class NoiseErrors:
    """Standard errors by noise alone; unknown if noise cannot be simulated."""

    released: ReleasedObject
    known: bool
    noised: NoisedTables | None = None
    """Tables whose figures were released themselves."""

    @classmethod
    def of(cls, released: ReleasedObject) -> NoiseErrors:
        """Simulates the noise again where it is asked for, as post-processing.

        Unknown for a fit with searched privacy weights, whose noise cannot be separated from its sampling error, and
        where sample counts are noisy, whose noise laws do not include.
        """
        model = released.model(0)
        if supports(model, "noise_of_count"):
            return cls(released, False, NoisedTables.of(released, model))
        job = released.job
        return cls(released, not job.mechanism.clamps and supports(model, "resampled") and not job.noisy_crosstab)

    def errors(self, table: Table, outcome: str) -> dict[StatisticName, Floats]:
        """Standard errors of counts, means and totals by noise alone, (cell,) each; NaN if they are not known."""
        number = table.number_of_cells(self.released.crosstab)
        unknown = dict.fromkeys(STATISTICS, np.full(number, np.nan))
        if self.noised is not None:
            return unknown | {name: np.sqrt(of_noise) for name, of_noise in self.noised.noise(table).items()}
        if not self.known:
            return unknown
        key = release_key(self.released)
        alone = (_published.get(key) or {}).get((outcome, table_key(table, number)))
        if alone is None:
            simulated = _simulated(key, lambda: simulate_errors(self.released, lambda _: None, noise_alone=True).spreads)
            assert simulated is not None
            spread = simulated[self.released.job.outcomes.index(outcome)]
            alone = noise_variances(self.released, self.released.cells(table), spread)
        return {name: np.sqrt(variance) for name, variance in zip(STATISTICS, alone, strict=True)}
