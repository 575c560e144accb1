"""Noisy tables made to agree, and estimates of what the weights' bound U cuts off (METHODS §9b).

If tables of pairs form a tree, their distribution of greatest entropy is ∏ pairs / ∏ columns^(degree − 1). A column's
degree is its number of pairs. Consistent pairs therefore define this distribution. Tables of three or more columns are
only given the same margins of single columns.

A mechanism may measure sums of values, Σ min(w, U) u, beside counts. Here u in [−1, 1] is a value's position between
the column's lowest and highest level. A measured sum and the sum that follows from the counts are averaged by
precision. Counts p then become p e^(λu), the nearest counts in relative entropy with the averaged sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints, quotient_or
from dpdist.estimation.least_squares import nearest_on_simplex
from dpdist.models.protocol import Draws

# All weights of the reference are multiplied by one factor, so that their mean clipped weight equals the current file's.
# A cell's clipped count V is multiplied by the reference's ratio ρ = Σw/Σmin(w, U). Cells with few records use the whole
# table's ratio in part.
#
# The error of V ρ has two parts: sampling, and drift since the reference. With S = Σ(w − ρ min(w, U))² over the
# reference's records, sampling of the current file adds the variance S V/V_ref. Sampling of the reference adds S
# (V/V_ref)². Drift has the standard deviation `DRIFT` times V (ρ − 1), the weight that is added.
DRIFT = 0.25
"""Standard deviation of the drift, relative to the reference's weight beyond the bound."""
LEANING = 20
"""Number of records of the whole table that are mixed with a cell's reference records."""
SCALINGS = 50
"""Rounds of scaling the reference's weights to the current file's mean clipped weight."""
LARGEST_SCALE = 4.0
"""The reference's weights are multiplied by a factor between 1/4 and 4."""
RELEASED = ("factors", "factor_errors", "variance_per_weight")
"""Released figures on weights beyond their public bound, where the job has a reference."""


class ReferenceWeights(NamedTuple):
    """The reference's records of one stratum: positions of levels (record, column), and weights (record,)."""

    codes: Ints
    weight: Floats

    def scaled(self, mean: float, cap: float) -> ReferenceWeights:
        """The records, with weights multiplied by the factor that gives the mean clipped weight `mean`."""
        factor = 1.0
        for _ in range(SCALINGS):
            clipped_mean = np.minimum(factor * self.weight, cap).mean()
            factor = float(np.clip(factor * mean / max(clipped_mean, 1e-300), 1.0 / LARGEST_SCALE, LARGEST_SCALE))
        return self._replace(weight=factor * self.weight)

    @property
    def heaviness(self) -> float:
        """Σw²/Σw: the variance of a sum of weights, for each unit of the sum."""
        return float((self.weight**2).sum() / max(self.weight.sum(), 1e-300))


class Beyond(NamedTuple):
    """For each cell the factor ρ on its clipped count, and the relative error of the product from sampling."""

    factor: Floats
    error: Floats


def beyond(reference: ReferenceWeights, cell: Ints, clipped: Floats, cap: float) -> Beyond:
    """What lies beyond the bound `cap` in each cell of a table; `cell` (record,) has the reference's records' cells.

    `clipped` are the current file's clipped counts, in weights, (cell,).
    """
    weights, below = reference.weight, np.minimum(reference.weight, cap)
    size, overall = len(clipped), weights.sum() / max(below.sum(), 1e-300)
    joined = LEANING * below.mean()
    of_cell = np.bincount(cell, weights=below, minlength=size) + joined
    factor = np.maximum((np.bincount(cell, weights=weights, minlength=size) + overall * joined) / of_cell, 1.0)
    residual, typical = (weights - factor[cell] * below) ** 2, float(((weights - overall * below) ** 2).mean())
    spread = np.bincount(cell, weights=residual, minlength=size) + LEANING * typical
    now = np.maximum(clipped, below.mean())
    return Beyond(factor, np.sqrt(spread / of_cell * (1.0 / now + 1.0 / of_cell)) / factor)


def extend(theta: Draws, tables: Sequence[Beyond], reference: ReferenceWeights, cap: float) -> Draws:
    """Adds ρ and its error for all tables, one after another, to the released parameters."""
    factors, errors = (np.concatenate([table[k] for table in tables])[None] for k in (0, 1))
    heaviest = np.array([[max(cap, reference.heaviness)]])
    return Draws({**theta.values, **dict(zip(RELEASED, (factors, errors, heaviest), strict=True))})


def has_reference(theta: Draws) -> bool:
    """True if the released parameters hold what lies beyond the bound."""
    return "factors" in theta.values


def factors_of(theta: Draws) -> Floats:
    """The factor ρ of every sum, (cell,); 1 without a reference."""
    return theta["factors"][0] if "factors" in theta.values else np.ones(theta["sums"].shape[1])


def largest_factor(theta: Draws) -> float:
    """The largest factor of any cell; 1 without a reference."""
    return float(theta["factors"].max()) if "factors" in theta.values else 1.0


def errors_of(theta: Draws) -> tuple[Floats, Floats]:
    """Relative errors of all cells' counts from sampling and from drift beyond the bound, (cell,) each."""
    factor = factors_of(theta)
    sampling = theta["factor_errors"][0] if "factor_errors" in theta.values else np.zeros_like(factor)
    return sampling, DRIFT * (1.0 - 1.0 / factor)


def variance_per_weight(theta: Draws, cap: float) -> float:
    """Estimates the variance of a sum of weights, for each unit of the sum.

    It is the bound `cap`, or the reference's figure Σw²/Σw if that figure is larger. Without a reference, the variance
    cannot be larger than `cap`.
    """
    return float(theta["variance_per_weight"][0, 0]) if "variance_per_weight" in theta.values else cap


MOST_STEPS, CLOSE_POSITION = 80, 1e-12
"""Steps of the search for λ, and the tolerance of a mean position."""
OUTERMOST = 1.0 - 1e-6
"""Largest mean position of a table; larger sums are set to it."""


class ValueSums(NamedTuple):
    """Noisy sums Σ min(w, U) u of a column by the level of another column, or over all records; in weights."""

    column: int
    by: int | None
    u: Floats
    """Positions of the column's levels."""
    values: Floats
    """(draw, level), or (draw, 1) over all records."""
    scale: float
    """Scale of the noise."""


def positions(levels: Sequence[float]) -> Floats:
    """Where levels lie between the lowest (−1) and the highest (1), (level,)."""
    values = np.asarray(levels, dtype=np.float64)
    low, high = values.min(), values.max()
    return np.asarray(np.clip((values - (low + high) / 2.0) / ((high - low) / 2.0), -1.0, 1.0))


def wanted_sum(counts: Floats, precision: float, sums: Sequence[ValueSums], u: Floats, total: Floats) -> Floats:
    """The sum over all records, (draw,), from noisy counts (draw, level) and from measured sums.

    `precision` of a count is one over its variance; a constant factor does not matter.
    """
    estimates = [(counts @ u, (u @ u) / precision)]
    estimates += [(value.values.sum(axis=1), value.values.shape[1] * value.scale**2) for value in sums]
    weight = sum(1.0 / variance for _, variance in estimates)
    mean = sum(values / variance for values, variance in estimates) / weight
    return np.clip(mean, -OUTERMOST * total, OUTERMOST * total)


def tilt(counts: Floats, u: Floats, target: Floats) -> Floats:
    """Counts (row, level) p e^(λu) of at least 0, with the sum `target` (row,); each row's total stays."""
    total = counts.sum(axis=1)
    if not (total > 0.0).any():
        return counts
    positive = np.maximum(total, 1e-300)
    start = (1.0 - LEAST_MIXED) * counts + LEAST_MIXED * positive[:, None] / counts.shape[1]
    goal = np.clip(target / positive, -OUTERMOST, OUTERMOST)
    steepest = (np.log(1.0 / LEAST_MIXED / (1.0 - OUTERMOST)) + np.log(counts.shape[1])) / np.diff(np.sort(u)).min()
    low, high, slope = np.full(len(goal), -steepest), np.full(len(goal), steepest), np.zeros(len(goal))
    for _ in range(MOST_STEPS):
        share = _sloped(start, u, slope)
        mean = share @ u
        off = mean - goal
        open_ones = np.abs(off) > CLOSE_POSITION
        if not open_ones.any():
            break
        low, high = np.where(off < 0.0, slope, low), np.where(off > 0.0, slope, high)
        variance = np.maximum(share @ u**2 - mean**2, 1e-300)
        further = slope - off / variance
        within = (low < further) & (further < high)
        slope = np.where(open_ones, np.where(within, further, (low + high) / 2.0), slope)
    return np.asarray(total[:, None] * _sloped(start, u, slope))


def _sloped(counts: Floats, u: Floats, slope: Floats) -> Floats:
    """Shares p e^(λu), (row, level)."""
    power = slope[:, None] * u
    tilted = counts * np.exp(power - power.max(axis=1, keepdims=True))
    return np.asarray(tilted / np.maximum(tilted.sum(axis=1, keepdims=True), 1e-300))


def wanted_rows(table: Floats, scale: float, sums: Sequence[ValueSums], u: Floats, margin: Floats, total: float) -> Floats:
    """The sum of every row, (row,), from a noisy table (row, level) and from measured sums of rows; the sums add up to
    `total`.

    No row's sum is larger than its weight, `margin`, allows.
    """
    precision = np.array([1.0 / float(u @ u) / scale**2, *(value.scale**-2.0 for value in sums)])
    mean = np.average([table @ u, *(value.values[0] for value in sums)], axis=0, weights=precision)
    ends, low, high = OUTERMOST * margin, -2.0 * np.abs(mean).max() - margin.sum(), 2.0 * np.abs(mean).max() + margin.sum()
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2.0
        less = np.clip(mean + middle, -ends, ends).sum() < total
        low, high = (middle, high) if less else (low, middle)
    return np.asarray(np.clip(mean + (low + high) / 2.0, -ends, ends))


Marginal = tuple[int, ...]
"""A table, as the positions of its columns."""
ROUNDS, CLOSE, CLOSE_SUMS = 200, 1e-12, 1e-9
"""Rounds of fitting a table to its margins, and tolerances relative to the total, for margins and for sums of rows."""
LEAST_MIXED = 1e-9
"""Part of every table that is spread over all cells, so that margins and sums above 0 can be met."""
WITHIN = 1e-3
"""Tolerance relative to the total, for a table to count as having its sums of rows and its margins."""
TOWARDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Sums of rows are moved towards independence by these parts, in turn, until a table can have them."""


class FittedTables(NamedTuple):
    """Tables that agree: the total, each column's margin, and each measured table of several columns."""

    total: float
    margins: tuple[Floats, ...]
    tables: Mapping[Marginal, Floats]

    def table(self, key: Marginal) -> Floats:
        """The table of a column, or a measured table of several."""
        return self.margins[key[0]] if len(key) == 1 else self.tables[key]


def fit(
    sizes: Sequence[int],
    tables: Mapping[Marginal, Floats],
    scales: Mapping[Marginal, float],
    ends: tuple[float, float],
    sums: Sequence[ValueSums] = (),
) -> FittedTables:
    """Tables that agree, from noisy tables, each shaped as its columns; `scales` are the scales of the noise.

    The total lies between `ends`. `sums` are measured sums of values, of one draw.
    """
    margins = agreed_margins(sizes, {key: values[None] for key, values in tables.items()}, scales, ends, sums)
    fitted = tuple(values[0] for values in margins)
    several: dict[Marginal, Floats] = {}
    for key in tables:
        if len(key) > 1:
            rows = [Rows.of(key, tables[key], scales[key], column, fitted, sums) for column in summed_within(key, sums)]
            several[key] = fitted_table(tables[key], [fitted[column] for column in key], rows)
    return FittedTables(float(fitted[0].sum()), fitted, several)


Packed = tuple[int, int | None, bytes, bytes, float]
"""The fields of `ValueSums`, its arrays as bytes."""


@lru_cache(maxsize=8)
def fitted_once(
    sizes: tuple[int, ...],
    keys: tuple[Marginal, ...],
    scales: tuple[float, ...],
    ends: tuple[float, float],
    sums: bytes,
    values: tuple[Packed, ...] = (),
) -> FittedTables:
    """`fit` of averaged measurements, computed once; `sums` are the bytes of all tables' cells."""
    parts = np.split(np.frombuffer(sums), np.cumsum([prod(sizes[c] for c in key) for key in keys])[:-1])
    unpacked = [ValueSums(c, by, np.frombuffer(u), np.frombuffer(v)[None], scale) for c, by, u, v, scale in values]
    return fit(sizes, *averaged_tables(sizes, keys, parts, scales), ends, unpacked)


def summed_within(key: Marginal, sums: Sequence[ValueSums]) -> list[int]:
    """Columns of a pair whose values were summed by level of the other column; empty for a larger table."""
    ways = (key, key[::-1]) if len(key) == 2 else ()
    return [column for column, other in ways if any((value.column, value.by) == (column, other) for value in sums)]


class Rows(NamedTuple):
    """Sums that the rows of a pair's table are to have."""

    axis: int
    """The axis of the column that is summed."""
    u: Floats
    target: Floats
    """By the level of the pair's other column."""
    total: Floats
    """Counts of the pair's other column."""

    @classmethod
    def of(
        cls,
        key: Marginal,
        noisy: Floats,
        scale: float,
        column: int,
        margins: Sequence[Floats],
        sums: Sequence[ValueSums],
    ) -> Rows:
        """The rows, from a noisy table and all sums of the column by the table's other column; `margins` are the fitted
        margins.
        """
        axis = key.index(column)
        repeated = [value for value in sums if value.column == column and value.by == key[1 - axis]]
        u = repeated[0].u
        rows = np.moveaxis(noisy, axis, -1)
        total = margins[key[1 - axis]]
        return cls(axis, u, wanted_rows(rows, scale, repeated, u, total, float(margins[column] @ u)), total)

    def tilted(self, table: Floats) -> Floats:
        """The table with these sums."""
        rows = np.moveaxis(table, self.axis, -1)
        rows = rows * quotient_or(0.0, self.total, rows.sum(axis=1))[:, None]
        return np.moveaxis(tilt(rows, self.u, self.target), -1, self.axis)

    def towards_independence(self, part: float) -> Rows:
        """The sums, moved by a part of the distance towards the sums under independent columns."""
        mean = self.target.sum() / max(float(self.total.sum()), 1e-300)
        return self._replace(target=(1.0 - part) * self.target + part * mean * self.total)

    def off(self, table: Floats) -> float:
        """The largest difference between a row's sum and its wanted sum."""
        return float(np.abs(np.moveaxis(table, self.axis, -1) @ self.u - self.target).max())


def pair_of(value_sums: ValueSums, keys: Iterable[Marginal]) -> Marginal | None:
    """The pair of a sum of values by level of another column; None for a sum over all records."""
    return next((key for key in keys if set(key) == {value_sums.column, value_sums.by}), None)


def rows_of(fitted: FittedTables, value_sums: ValueSums) -> Floats:
    """Fitted counts (row, level) of the column that is summed: of all records, or by the level of the other column."""
    key = pair_of(value_sums, fitted.tables)
    if key is None:
        return fitted.margins[value_sums.column][None]
    return np.moveaxis(fitted.tables[key], key.index(value_sums.column), -1)


def sums_in(fitted: FittedTables, value_sums: ValueSums) -> ValueSums:
    """Sums as the fitted tables have them, with the fields of the measured sums."""
    return value_sums._replace(values=(rows_of(fitted, value_sums) @ value_sums.u)[None])


def averaged_tables(
    sizes: Sequence[int], keys: Sequence[Marginal], parts: Sequence[Floats], scales: Sequence[float]
) -> tuple[dict[Marginal, Floats], dict[Marginal, float]]:
    """Every measured table once, and its noise scale. Repeated measurements, (cell,) each, are averaged by precision."""
    tables, precision = dict[Marginal, Floats](), dict[Marginal, float]()
    for key, part, scale in zip(keys, parts, scales, strict=True):
        values, added = part.reshape([sizes[column] for column in key]), scale**-2
        before = precision.get(key, 0.0)
        tables[key] = values if key not in tables else (before * tables[key] + added * values) / (before + added)
        precision[key] = before + added
    return tables, {key: value**-0.5 for key, value in precision.items()}


def agreed_margins(
    sizes: Sequence[int],
    tables: Mapping[Marginal, Floats],
    scales: Mapping[Marginal, float],
    ends: tuple[float, float],
    sums: Sequence[ValueSums] = (),
) -> list[Floats]:
    """Consistent margins of every column, (draw, level) each, with one total, from noisy tables (draw, *cells).

    Sums of tables are averaged by their precision. If values of a column were summed, its margin has these sums.
    """
    precision = {key: 1.0 / (values[0].size * scales[key] ** 2) for key, values in tables.items()}
    totals = sum(precision[key] * values.reshape(len(values), -1).sum(axis=1) for key, values in tables.items())
    total = np.clip(totals / sum(precision.values()), *ends)
    margins = []
    for column, size in enumerate(sizes):
        holding = [key for key in tables if column in key]
        weight = {key: size / (tables[key][0].size * scales[key] ** 2) for key in holding}
        mean = np.asarray(sum(weight[key] * summed(tables[key], key, column) for key in holding) / sum(weight.values()))
        margin, of_column = onto_simplex(mean, total), [value for value in sums if value.column == column]
        if of_column:
            u = of_column[0].u
            margin = tilt(margin, u, wanted_sum(mean, sum(weight.values()), of_column, u, total))
        margins.append(margin)
    return margins


def summed(table: Floats, key: Marginal, column: int) -> Floats:
    """A table (draw, *cells) summed to one of its columns, (draw, level)."""
    other_axes = tuple(axis for axis, name in enumerate(key, start=1) if name != column)
    return np.asarray(table.sum(axis=other_axes))


def onto_simplex(values: Floats, total: Floats) -> Floats:
    """The nearest points (draw, entry) with entries of at least 0 that sum to `total` (draw,)."""
    positive = nearest_on_simplex(values, total)
    sums = positive.sum(axis=1)
    return np.asarray(positive * quotient_or(1.0, total, sums)[:, None])


def fitted_table(noisy: Floats, margins: Sequence[Floats], rows: Sequence[Rows] = ()) -> Floats:
    """A non-negative table with these margins, one for each axis, near a noisy one.

    Where no table has both the margins and the sums of rows, the sums are moved towards independence until a table
    exists.
    """
    total = margins[0].sum()
    if total <= 0.0:
        return np.zeros_like(noisy)
    start = onto_simplex(noisy.reshape(1, -1), np.array([total]))[0].reshape(noisy.shape)
    alone = LEAST_MIXED * reduce(np.multiply.outer, margins) / total ** (len(margins) - 1)
    start = (1.0 - LEAST_MIXED) * start + alone
    for part in TOWARDS if rows else ():
        shifted_rows = [row.towards_independence(part) for row in rows]
        table = _scale(start, margins, shifted_rows, CLOSE_SUMS)
        if _off(table, margins, shifted_rows) <= WITHIN * total:
            return _scale(table, margins, (), CLOSE)
    return _scale(start, margins, (), CLOSE)


def _scale(table: Floats, margins: Sequence[Floats], rows: Sequence[Rows], close: float) -> Floats:
    """The table scaled in turns to the sums of rows and to margins, until it is within `close` of all."""
    total = margins[0].sum()
    for _ in range(ROUNDS):
        for row in rows:
            table = row.tilted(table)
        for axis, margin in enumerate(margins):
            ratio = quotient_or(0.0, margin, _along(table, axis))
            table = table * ratio.reshape([-1 if k == axis else 1 for k in range(table.ndim)])
        if _off(table, margins, rows) <= close * total:
            break
    return np.asarray(table)


def _off(table: Floats, margins: Sequence[Floats], rows: Sequence[Rows]) -> float:
    """The largest difference of the table's margins and sums of rows from the wanted ones."""
    off = [np.abs(_along(table, axis) - margin).max() for axis, margin in enumerate(margins)]
    return float(max([*off, *(row.off(table) for row in rows)]))


def _along(table: Floats, axis: int) -> Floats:
    return np.asarray(table.sum(axis=tuple(k for k in range(table.ndim) if k != axis)))


def sampled_again(
    margins: Sequence[Floats], per_weight: float, records: int, draws: int, rng: np.random.Generator
) -> Floats:
    """Margins (draw, level) of all columns, one after another, under other samples without noise.

    `per_weight` is the variance of a sum of weights for each unit of the sum. Each weight is simulated as 0 or
    `per_weight`.
    """
    total = margins[0].sum()
    effective, shares = max(1, round(total / per_weight)), []
    for margin in margins:
        share = margin / total if total > 0.0 else np.full(len(margin), 1.0 / len(margin))
        shares.append(rng.multinomial(effective, share / share.sum(), draws) / effective)
    below = max(0.0, 1.0 - effective / max(records, 1))
    spread = np.maximum(total * (1.0 + rng.standard_normal(draws) * np.sqrt(below / effective)), 0.0)
    return np.asarray(spread[:, None] * np.concatenate(shares, axis=1))


def noised(
    sizes: Sequence[int],
    tables: Mapping[Marginal, Floats],
    scales: Mapping[Marginal, float],
    ends: tuple[float, float],
    beyond: Mapping[Marginal, tuple[Floats, Floats]],
    sums: Sequence[ValueSums],
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Margins (draw, level) of all columns, one after another, if the fitted tables had other noise.

    `beyond` has relative errors of counts by table, from sampling and drift beyond the weights' bound; empty without a
    reference. One draw of drift applies to all cells. `sums` are the sums of values that the fitted tables have.
    """
    margins = [np.empty((draws, size)) for size in sizes]
    for draw in range(draws):
        noisy = {key: (table + rng.laplace(0.0, scales[key], table.shape))[None] for key, table in tables.items()}
        drift = rng.standard_normal() if beyond else 0.0
        for key, (of_cell, common) in beyond.items():
            noisy[key] = noisy[key] * (1.0 + of_cell * rng.standard_normal(of_cell.shape) + common * drift)
        noised_sums = [
            value._replace(values=value.values + rng.laplace(0.0, value.scale, value.values.shape)) for value in sums
        ]
        for values, margin in zip(margins, agreed_margins(sizes, noisy, scales, ends, noised_sums), strict=True):
            values[draw] = margin[0]
    return np.concatenate(margins, axis=1)
