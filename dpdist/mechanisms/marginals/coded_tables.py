"""Base of the models of `marginals`: a distribution from noisy tables of coded columns, synthetic records, estimates.

A weight w is counted as v = min(w, U)/U, with the public bound U. Then Σv ≤ Σw/U ≤ (Σw)²/Σw², the effective number of
records. Sampling errors are those of Σv records, and so not too small.

Without a reference, a count's standard error is an upper bound: it adds noise and the largest sampling variance, U Σw.
With a reference, the error also includes that of the weight beyond the bound (`fitting`). No error includes
clipping without a reference, or setting negative counts to 0.

A mean is c + R S/C, with the fitted sum S of positions u and the fitted count C. The levels have centre c and half
width R. Its error is an upper bound from noise, (2b² + (S/C)² 2a²)/C², and sampling, U Var(u)/C. The noise scales are b
for the averaged sum and a for the count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from dpdist.core.records import UNIT, Codes, Crosstab, Floats, Ints, quotient_or
from dpdist.estimation.estimators import NORMAL_90
from dpdist.job import Adjacency, Job
from dpdist.mechanisms.marginals.fitting import (
    RELEASED,
    FittedTables,
    Marginal,
    ReferenceWeights,
    ValueSums,
    beyond,
    errors_of,
    extend,
    factors_of,
    fitted_once,
    has_reference,
    largest_factor,
    noised,
    pair_of,
    rows_of,
    sampled_again,
    sums_in,
    variance_per_weight,
)
from dpdist.mechanisms.marginals.spec import levels_of, texts_of
from dpdist.models.protocol import DesignEffectOf, Draws, ModelTable, Parameter, ReferenceRecords
from dpdist.models.public_model import LinearModel, design
from dpdist.privacy.guarantees import record_epsilon

# Columns are filled in order, each given its parents: the columns of its table that are already filled. Let g records
# have the same levels of the parents, and let a level have probability p. Then g p records get the level, rounded down or
# up. Weights are then scaled to the wanted tables.
ROUNDS, CLOSE = 100, 1e-10
"""Rounds of scaling weights to tables, and the tolerance relative to the total."""
Filling = tuple[int, Marginal | None]
"""A column with its table, whose other columns are filled earlier; None for a column without parents."""


def draw_records(
    fitted: FittedTables, filling: Iterable[Filling], raked_to: Iterable[Marginal], number: int, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Codes (record, column) and weights (record,) of the requested number of records; weights sum to the total.

    `raked_to` are the tables with which the records' weights agree.
    """
    codes = np.full((number, len(fitted.margins)), -1, dtype=np.int64)
    for column, key in filling:
        if key is None:
            codes[:, column] = rng.permutation(laid_out(fitted.margins[column], number, rng))
            continue
        table = np.moveaxis(fitted.tables[key], key.index(column), -1)
        parents = [codes[:, parent] for parent in key if parent != column]
        cell = np.ravel_multi_index(tuple(parents), table.shape[:-1])
        rows = table.reshape(-1, table.shape[-1])
        for row in np.unique(cell):
            alike = np.flatnonzero(cell == row)
            codes[alike, column] = rng.permutation(laid_out(rows[row], len(alike), rng))
    return codes, raked(fitted, codes, raked_to)


def laid_out(counts: Floats, number: int, rng: np.random.Generator) -> Ints:
    """Levels of `number` records in proportion to counts; systematic sampling rounds each number down or up."""
    total = counts.sum()
    share = counts / total if total > 0.0 else np.full(len(counts), 1.0 / len(counts))
    ends = np.cumsum(share)
    points = (np.arange(number) + rng.random()) / number
    return np.minimum(np.searchsorted(ends / ends[-1], points, side="right"), len(counts) - 1).astype(np.int64)


def raked(fitted: FittedTables, codes: Ints, raked_to: Iterable[Marginal]) -> Floats:
    """Non-negative weights with the given total, under which the records' tables equal `tables`.

    If a cell has no record, the tables are as near as scaling can bring them.
    """
    number = len(codes)
    weight = np.full(number, fitted.total / number)
    wanted_by_cell = [
        (
            np.ravel_multi_index(tuple(codes[:, column] for column in key), fitted.table(key).shape),
            fitted.table(key).ravel(),
        )
        for key in raked_to
    ]
    for _ in range(ROUNDS):
        worst = 0.0
        for cell, target in wanted_by_cell:
            current = np.bincount(cell, weights=weight, minlength=len(target))
            worst = max(worst, float(np.abs(current - target)[current > 0.0].max(initial=0.0)))
            weight *= quotient_or(0.0, target, current)[cell]
        if worst <= CLOSE * fitted.total:
            break
    total = weight.sum()
    return np.asarray(weight * (fitted.total / total)) if total > 0.0 else np.full(number, fitted.total / number)


ERRORS = ("standard_error", "lower", "upper")
OF_COUNTS, OF_SUMS = ("count", "share", *ERRORS), ("sum", "mean", *ERRORS)
"""Names of the figures of a table of counts, and of one of sums."""


@dataclass(frozen=True)
class CodedTables(LinearModel, ABC):
    """Noisy tables of coded columns of one stratum, in units of 1/UNIT; a table is named by the positions of its columns.

    A subclass says what noise a table has, and how records are made.
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[float, ...], ...]
    measured: tuple[Marginal, ...]
    """Tables that a pass over records sums."""
    weights: tuple[float, float]
    """Public bounds of the weight; 1 and 1 without weights."""
    count: int
    """Sample records of the stratum, public."""
    epsilon: Fraction
    """The ε of one record."""
    adjacency: Adjacency

    @classmethod
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> Self:
        return cls(
            design(crosstab, (), rows),
            job.outcome_column.ends,
            job.outcomes,
            tuple(levels_of(job.columns[name]) for name in job.outcomes),
            (),
            job.weight_bounds or (1.0, 1.0),
            max(1, int(crosstab.count[rows].sum())),
            record_epsilon(job, job.epsilon_per_set),
            job.budget.adjacency,
            *cls.settings(job),
        )

    @classmethod
    def settings(cls, job: Job) -> tuple[Any, ...]:
        """The subclass's own fields, from the job."""
        return ()

    @abstractmethod
    def scale_of(self, key: Marginal) -> Fraction:
        """Scale of the noise on a table, in units of 1/UNIT; it depends on the job alone."""

    @property
    @abstractmethod
    def scale(self) -> Fraction:
        """The largest noise scale, at which sums must still be exact."""

    @property
    def tables_summed(self) -> int:
        """Number of tables summed in a pass; a record moves each of them equally far."""
        return len(self.measured)

    @abstractmethod
    def sharing(self, key: Marginal) -> int:
        """Number of tables that share one part of ε with this table."""

    @abstractmethod
    def filling(self, keys: tuple[Marginal, ...]) -> list[Filling]:
        """The order in which columns of synthetic records are filled, given the released tables."""

    @abstractmethod
    def raked_to(self, keys: tuple[Marginal, ...]) -> list[Marginal]:
        """Tables with which the weights of synthetic records agree."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.levels))

    @property
    @abstractmethod
    def most_sums(self) -> int:
        """The largest number of cells that a pass over records sums, or a bound on it."""

    def cells(self, keys: Iterable[Marginal]) -> int:
        return sum(prod(self.shape(key)) for key in keys)

    @property
    def singles(self) -> tuple[Marginal, ...]:
        """The tables of one column each."""
        return tuple((k,) for k in range(len(self.columns)))

    def shape(self, key: Marginal) -> tuple[int, ...]:
        return tuple(self.sizes[column] for column in key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return (Parameter("sums"),)

    def measuring(self, keys: tuple[Marginal, ...]) -> Self:
        """The same model, with these tables to be summed in a pass."""
        return replace(self, measured=keys)

    def codes_of(self, records: ReferenceRecords) -> Ints:
        """The position of the level of every record and column, (record, column)."""
        return self.coded(tuple(records.outcomes.T))

    def coded(self, columns: Sequence[Floats]) -> Ints:
        """Positions of the levels nearest to the values of columns, which are (record,) each."""
        codes = np.empty((len(columns[0]), len(self.columns)), dtype=np.int64)
        for k, (levels, values) in enumerate(zip(self.levels, columns, strict=True)):
            middle = (np.array(levels[1:]) + np.array(levels[:-1])) / 2.0
            codes[:, k] = np.searchsorted(middle, values, side="left")
        return codes

    def cell(self, codes: Ints, key: Marginal) -> Ints:
        """The position of every record's cell in a table, (record,)."""
        return np.ravel_multi_index(tuple(codes[:, column] for column in key), self.shape(key)).astype(np.int64)

    def parts(self, keys: tuple[Marginal, ...], sums: Floats) -> list[Floats]:
        """Sums (draw, cell) of all tables, split by table into (draw, *cells)."""
        ends = np.cumsum([prod(self.shape(key)) for key in keys])[:-1]
        split = np.split(sums, ends, axis=1)
        return [part.reshape(len(sums), *self.shape(key)) for key, part in zip(keys, split, strict=True)]

    def split(self, keys: tuple[Marginal, ...], sums: Floats) -> dict[Marginal, Floats]:
        """As `parts`, by table. Every table is there once."""
        return dict(zip(keys, self.parts(keys, sums), strict=True))

    def keys_of(self, theta: Draws) -> tuple[Marginal, ...]:
        """The tables of a release, each as the positions of its columns."""
        return tuple(tuple(int(c) for c in row if c >= 0) for row in theta["tables"][0])

    def scales_of(self, theta: Draws) -> tuple[Fraction, ...]:
        """Scales of the noise on the released tables, in units of 1/UNIT."""
        return tuple(self.scale_of(key) for key in self.keys_of(theta))

    def noise_of(self, theta: Draws) -> dict[Marginal, float]:
        """The noise scale of every table in weights; for repeated measurements, that of their mean."""
        precision = dict[Marginal, float]()
        for key, scale in zip(self.keys_of(theta), self._scales_in_weights(theta), strict=True):
            precision[key] = precision.get(key, 0.0) + scale**-2
        return {key: value**-0.5 for key, value in precision.items()}

    def _scales_in_weights(self, theta: Draws) -> tuple[float, ...]:
        """Noise scales of the released tables in weights, on counts with what lies beyond the bound."""
        keys, unit = self.keys_of(theta), self.weights[1] / UNIT
        factors = [float(table.mean()) for table in self.parts(keys, factors_of(theta)[None])]
        return tuple(float(scale) * unit * factor for scale, factor in zip(self.scales_of(theta), factors, strict=True))

    def with_weights_beyond(self, theta: Draws, reference: ReferenceWeights) -> Draws:
        """Adds to the released parameters the reference's weights beyond the bound, by cell of every table."""
        cap, keys, fitted = self.weights[1], self.keys_of(theta), self.fitted(theta)
        near = reference.scaled(fitted.total / self.count, cap)
        tables = [beyond(near, self.cell(near.codes, key), fitted.table(key).ravel(), cap) for key in keys]
        return extend(theta, tables, near, cap)

    def errors_beyond(self, theta: Draws, key: Marginal) -> tuple[Floats, Floats]:
        """Relative errors of a table's counts from sampling and from drift beyond the bound, shaped as the table."""
        keys = self.keys_of(theta)
        sampling, drift = (self.parts(keys, errors[None])[keys.index(key)][0] for errors in errors_of(theta))
        return sampling, drift

    def fitted(self, theta: Draws) -> FittedTables:
        """The released tables, in weights, made to agree."""
        sums = theta["sums"][0] * factors_of(theta) * (self.weights[1] / UNIT)
        values = tuple(
            (value.column, value.by, value.u.tobytes(), value.values.tobytes(), value.scale)
            for value in self.value_sums(theta)
        )
        return fitted_once(
            self.sizes, self.keys_of(theta), self._scales_in_weights(theta), self.ends(theta), sums.tobytes(), values
        )

    def value_sums(self, theta: Draws) -> list[ValueSums]:
        """Measured sums of values for one draw; empty if the mechanism measures none."""
        return []

    def ends(self, theta: Draws) -> tuple[float, float]:
        """Smallest and largest total of weights of a file of this size, including the weight beyond the bound."""
        return self.count * self.weights[0], self.count * self.weights[1] * largest_factor(theta)

    def margins(self, theta: Draws) -> list[Floats]:
        """Weighted counts of every column's levels, (draw, level)."""
        if "margins" in theta.values:
            return np.split(theta["margins"], np.cumsum(self.sizes)[:-1], axis=1)
        return [margin[None] for margin in self.fitted(theta).margins]

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each."""
        margin = self.margins(theta)[outcome]
        rows, count = len(self.design.pattern), theta.values.get("count", self.count)
        weight, product = margin.sum(axis=1) / count, margin @ np.array(self.levels[outcome]) / count
        return np.repeat(weight[:, None], rows, axis=1), np.repeat(product[:, None], rows, axis=1)

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, (draw, pair)."""
        margin = self.margins(theta)[outcome]
        total = margin.sum(axis=1, keepdims=True)
        share = quotient_or(1.0 / margin.shape[1], margin, total)
        reached = np.concatenate([np.zeros((len(share), 1)), np.cumsum(share, axis=1)], axis=1)
        return np.asarray(reached[:, np.searchsorted(np.array(self.levels[outcome]), value, side="right")])

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Values of all columns for the requested number of records, (record, column), and weights."""
        number = len(crosstab_row)
        codes, weight = self.draw_codes(theta, number, rng)
        values = np.column_stack([np.array(levels)[codes[:, k]] for k, levels in enumerate(self.levels)])
        return values[:, 0] if len(self.columns) == 1 else values, weight * (number / self.count)

    def draw_codes(self, theta: Draws, number: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Codes (record, column) and weights (record,) of synthetic records; weights sum to the stratum's total."""
        keys = tuple(dict.fromkeys(self.keys_of(theta)))
        return draw_records(self.fitted(theta), self.filling(keys), self.raked_to(keys), number, rng)

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Margins under other samples without noise; a sample has as many records as the sum of weights allows."""
        margins = [margin[0] for margin in self.margins(theta)]
        return Draws({"margins": sampled_again(margins, variance_per_weight(theta, self.weights[1]), records, draws, rng)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Margins under other noise and other weights beyond the bound, for standard errors only."""
        fitted, scales = self.fitted(theta), self.noise_of(theta)
        beyond = {key: self.errors_beyond(theta, key) for key in scales} if has_reference(theta) else {}
        tables = {key: fitted.table(key) for key in scales}
        sums = [sums_in(fitted, value) for value in self.value_sums(theta)]
        return Draws({"margins": noised(self.sizes, tables, scales, self.ends(theta), beyond, sums, draws, rng)})

    def recounted(self, theta: Draws, counts: Floats) -> Draws:
        """Margins under other sample counts (draw, row), which limit the total of weights."""
        margins, count = self.margins(theta), np.maximum(counts.sum(axis=1), 1.0)
        total = np.repeat(margins[0].sum(axis=1), len(counts))
        within = np.clip(total, count * self.weights[0], count * self.weights[1] * largest_factor(theta))
        factor = quotient_or(1.0, within, total)
        return Draws({"margins": factor[:, None] * np.concatenate(margins, axis=1), "count": count})

    def labelled(self, job: Job, key: Marginal) -> list[dict[str, str]]:
        """Every cell of a table, as levels by column, in the order of its sums."""
        names = [texts_of(job.columns[self.columns[column]], self.levels[column]) for column in key]
        columns = [self.columns[column] for column in key]
        return [dict(zip(columns, cell, strict=True)) for cell in product(*names)]

    def released(self, keys: tuple[Marginal, ...], sums: Floats) -> Draws:
        """Noisy tables (cell,) in the form in which they are released."""
        tables = np.full((1, len(keys), max(2, *map(len, keys))), -1.0)
        for row, key in enumerate(keys):
            tables[0, row, : len(key)] = key
        return Draws({"sums": sums[None], "tables": tables})

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        """The noise, and every table with its columns, its noise scale and its sums, as JSON values."""
        keys = self.keys_of(theta)
        tables = zip(keys, self.scales_of(theta), self.parts(keys, theta["sums"]), strict=True)
        return {
            **{name: theta[name][0].tolist() for name in RELEASED if name in theta.values},
            "prior": "proper",
            "noise": f"discrete Laplace, in units of 1/{UNIT} of the weight's upper bound",
            "marginals": [
                {
                    "columns": [self.columns[column] for column in key],
                    "scale": str(scale),
                    "sums": values[0].ravel().tolist(),
                }
                for key, scale, values in tables
            ],
        }

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """The inverse of `describe`."""
        number, tables = {name: k for k, name in enumerate(self.columns)}, described["marginals"]
        keys = tuple(tuple(number[name] for name in table["columns"]) for table in tables)
        noisy = self.released(keys, np.concatenate([np.array(table["sums"], float) for table in tables]))
        return Draws({**noisy.values, **{name: np.array([described[name]]) for name in RELEASED if name in described}})

    def tables_beside(self, job: Job, theta: Draws, effect: DesignEffectOf) -> Mapping[str, ModelTable]:
        """Counts of every measured table as "marginals", and measured sums and means as "sums" where there are any."""
        counts = {"marginals": ModelTable("marginal", OF_COUNTS, list(_counts(self, job, theta, effect)))}
        sums = list(_sums(self, job, theta, effect))
        return counts | ({"sums": ModelTable("of", OF_SUMS, sums)} if sums else {})


class Means(NamedTuple):
    """Weighted sums of a column, its means, and their standard errors, by cell."""

    total: Floats
    mean: Floats
    error: Floats


def _counts(model: CodedTables, job: Job, theta: Draws, effect: DesignEffectOf) -> Iterator[dict[str, Any]]:
    """Rows of the cells, table after table."""
    fitted = model.fitted(theta)
    for key in model.noise_of(theta):
        columns = [model.columns[column] for column in key]
        errors = errors_of_counts(model, theta, key, effect(frozenset(columns), "count", None))
        cells = zip(model.labelled(job, key), fitted.table(key).ravel().tolist(), errors.tolist(), strict=True)
        for cell, value, error in cells:
            share = value / fitted.total if fitted.total > 0.0 else None
            ends = max(0.0, value - NORMAL_90 * error), value + NORMAL_90 * error
            figures = dict(zip(OF_COUNTS, (value, share, error, *ends), strict=True))
            yield {"marginal": " x ".join(columns), "cell": cell, **figures}


def errors_of_counts(model: CodedTables, theta: Draws, key: Marginal, effect: float = 1.0) -> Floats:
    """Standard errors of a table's fitted counts, (cell,), under a design effect on the sampling variance."""
    counts = model.fitted(theta).table(key).ravel()
    beyond = np.hypot(*model.errors_beyond(theta, key)).ravel()
    sampling = effect * variance_per_weight(theta, model.weights[1]) * counts
    return np.asarray(np.sqrt(2.0 * model.noise_of(theta)[key] ** 2 + sampling + (beyond * counts) ** 2))


def _sums(model: CodedTables, job: Job, theta: Draws, effect: DesignEffectOf) -> Iterator[dict[str, Any]]:
    """Rows of the cells, one sum after another."""
    for value_sums in model.value_sums(theta):
        name, levels = model.columns[value_sums.column], model.levels[value_sums.column]
        by = () if value_sums.by is None else (value_sums.by,)
        cells = model.labelled(job, by) if by else [dict[str, str]()]
        crossed = frozenset(model.columns[column] for column in by)
        means = means_of(model, theta, value_sums, effect(crossed, "mean", name))
        for cell, total, mean, error in zip(cells, *(column.tolist() for column in means), strict=True):
            ends = max(min(levels), mean - NORMAL_90 * error), min(max(levels), mean + NORMAL_90 * error)
            figures = (total, mean, error, *ends) if np.isfinite(mean) else (total, None, None, None, None)
            yield {"of": name, "cell": cell, **dict(zip(OF_SUMS, figures, strict=True))}


def means_of(model: CodedTables, theta: Draws, value_sums: ValueSums, effect: float = 1.0) -> Means:
    """Weighted sums and means of the fitted tables, under a design effect on the sampling variance.

    A mean is NaN if the fitted count is 0.
    """
    fitted, noise, levels = model.fitted(theta), model.noise_of(theta), model.levels[value_sums.column]
    middle, half = (min(levels) + max(levels)) / 2.0, (max(levels) - min(levels)) / 2.0
    precision = value_sums.scale**-2
    if (pair := pair_of(value_sums, fitted.tables)) is not None:
        precision += float(noise[pair] ** -2 / (value_sums.u @ value_sums.u))
    rows = rows_of(fitted, value_sums)
    count = rows.sum(axis=1)
    holding = [key for key in noise if value_sums.by is None or value_sums.by in key]
    of_count = 1.0 / sum(len(count) / (np.prod(model.shape(key)) * noise[key] ** 2) for key in holding)
    position = quotient_or(np.nan, sums_in(fitted, value_sums).values[0], count)
    variance = np.maximum(rows @ value_sums.u**2 / np.maximum(count, 1e-300) - position**2, 0.0)
    noisy = 2.0 * (1.0 / precision + position**2 * of_count) / np.maximum(count, 1e-300) ** 2
    sampled = effect * model.weights[1] * variance / np.maximum(count, 1e-300)
    mean = middle + half * position
    return Means(np.where(count > 0.0, mean, 0.0) * count, mean, half * np.sqrt(noisy + sampled))
