"""Makes noisy tables of coded columns agree: one total, one margin for every column, and tables that sum to these margins.

Along a tree of pairs, the distribution of greatest entropy with given tables is ∏ pairs / ∏ columns^(degree − 1), where a
column's degree is its number of pairs. So pairs that agree define this distribution. Tables of three columns or more are
made to agree only in the margins of single columns. Where sums of values were measured, columns and pairs get these sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.coded_tables.value_sums import ValueSums, tilted, wanted_rows, wanted_sum

Marginal = tuple[int, ...]
"""A table, as the positions of its columns."""
ROUNDS, CLOSE, CLOSE_SUMS = 200, 1e-12, 1e-9
"""Rounds of fitting a table to its margins, and the tolerances relative to the total: of margins, and of sums of rows."""
LEAST_MIXED = 1e-9
"""Part of every table that is the product of its margins, so that every margin above 0 can be met."""


WITHIN = 1e-3
"""Tolerance of sums of rows and margins relative to the total, within which a table is said to have them all."""
TOWARDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Parts of the way to independence by which sums of rows are moved, one after another, until a table has them."""


class Fitted(NamedTuple):
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
) -> Fitted:
    """Tables that agree, from noisy tables, each shaped as its columns; `scales` are the scales of the noise.

    The total lies between `ends`. `sums` are measured sums of values, of one draw.
    """
    margins = agreed_margins(sizes, {key: values[None] for key, values in tables.items()}, scales, ends, sums)
    own = tuple(values[0] for values in margins)
    several: dict[Marginal, Floats] = {}
    for key in tables:
        if len(key) > 1:
            rows = [Rows.of(key, tables[key], scales[key], column, own, sums) for column in summed_within(key, sums)]
            several[key] = fitted_table(tables[key], [own[column] for column in key], rows)
    return Fitted(float(own[0].sum()), own, several)


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
) -> Fitted:
    """As `fit` of averaged measurements, computed once; `sums` are the bytes of all tables' cells."""
    parts = np.split(np.frombuffer(sums), np.cumsum([prod(sizes[c] for c in key) for key in keys])[:-1])
    unpacked = [ValueSums(c, by, np.frombuffer(u), np.frombuffer(v)[None], scale) for c, by, u, v, scale in values]
    return fit(sizes, *averaged_tables(sizes, keys, parts, scales), ends, unpacked)


def summed_within(key: Marginal, sums: Sequence[ValueSums]) -> list[int]:
    """Columns of a pair whose values were summed by the pair's other column; none of a larger table."""
    ways = (key, key[::-1]) if len(key) == 2 else ()
    return [one for one, other in ways if any((each.column, each.by) == (one, other) for each in sums)]


class Rows(NamedTuple):
    """Sums that the rows of a pair's table are to have."""

    axis: int
    """The axis of the column that is summed."""
    u: Floats
    wanted: Floats
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
        """From a noisy table and all sums of the column by the table's other column; `margins` are the fitted ones."""
        axis = key.index(column)
        found = [each for each in sums if each.column == column and each.by == key[1 - axis]]
        u = found[0].u
        rows = np.moveaxis(noisy, axis, -1)
        total = margins[key[1 - axis]]
        return cls(axis, u, wanted_rows(rows, scale, found, u, total, float(margins[column] @ u)), total)

    def tilted(self, table: Floats) -> Floats:
        """The table with these sums."""
        rows = np.moveaxis(table, self.axis, -1)
        rows = rows * _ratio(self.total, rows.sum(axis=1))[:, None]
        return np.moveaxis(tilted(rows, self.u, self.wanted), -1, self.axis)

    def towards_independence(self, part: float) -> Rows:
        """These sums, moved by a part of the way to those that rows have if columns are independent."""
        mean = self.wanted.sum() / max(float(self.total.sum()), 1e-300)
        return self._replace(wanted=(1.0 - part) * self.wanted + part * mean * self.total)

    def off(self, table: Floats) -> float:
        """The largest distance of a row's sum from the wanted one."""
        return float(np.abs(np.moveaxis(table, self.axis, -1) @ self.u - self.wanted).max())


def pair_of(measured: ValueSums, keys: Iterable[Marginal]) -> Marginal | None:
    """The pair by whose other column values are summed; None for a sum over all records."""
    return next((key for key in keys if set(key) == {measured.column, measured.by}), None)


def rows_of(fitted: Fitted, measured: ValueSums) -> Floats:
    """Fitted counts (row, level) of the column that is summed: of all records, or by the level of the other column."""
    key = pair_of(measured, fitted.tables)
    if key is None:
        return fitted.margins[measured.column][None]
    return np.moveaxis(fitted.tables[key], key.index(measured.column), -1)


def sums_in(fitted: Fitted, measured: ValueSums) -> ValueSums:
    """The sums that the fitted tables have, in place of the measured ones."""
    return measured._replace(values=(rows_of(fitted, measured) @ measured.u)[None])


def averaged_tables(
    sizes: Sequence[int], keys: Sequence[Marginal], parts: Sequence[Floats], scales: Sequence[float]
) -> tuple[dict[Marginal, Floats], dict[Marginal, float]]:
    """Every measured table once, and its noise scale. Repeated measurements, (cell,) each, are averaged by precision."""
    tables, precision = dict[Marginal, Floats](), dict[Marginal, float]()
    for key, part, scale in zip(keys, parts, scales, strict=True):
        values, own = part.reshape([sizes[column] for column in key]), scale**-2
        before = precision.get(key, 0.0)
        tables[key] = values if key not in tables else (before * tables[key] + own * values) / (before + own)
        precision[key] = before + own
    return tables, {key: each**-0.5 for key, each in precision.items()}


def agreed_margins(
    sizes: Sequence[int],
    tables: Mapping[Marginal, Floats],
    scales: Mapping[Marginal, float],
    ends: tuple[float, float],
    sums: Sequence[ValueSums] = (),
) -> list[Floats]:
    """Consistent margins of every column, (draw, level) each, from noisy tables (draw, *cells); all have one total.

    Sums of tables are averaged by their precision. A sum of K cells has K times the variance of one cell. Columns with
    measured sums of values get these, as far as the counts do not say otherwise.
    """
    precision = {key: 1.0 / (values[0].size * scales[key] ** 2) for key, values in tables.items()}
    whole = sum(precision[key] * values.reshape(len(values), -1).sum(axis=1) for key, values in tables.items())
    total = np.clip(whole / sum(precision.values()), *ends)
    found = []
    for column, size in enumerate(sizes):
        holding = [key for key in tables if column in key]
        weight = {key: size / (tables[key][0].size * scales[key] ** 2) for key in holding}
        mean = np.asarray(sum(weight[key] * summed(tables[key], key, column) for key in holding) / sum(weight.values()))
        margin, own = onto_simplex(mean, total), [each for each in sums if each.column == column]
        if own:
            u = own[0].u
            margin = tilted(margin, u, wanted_sum(mean, sum(weight.values()), own, u, total))
        found.append(margin)
    return found


def summed(table: Floats, key: Marginal, column: int) -> Floats:
    """A table (draw, *cells) summed to one of its columns, (draw, level)."""
    others = tuple(axis for axis, name in enumerate(key, start=1) if name != column)
    return np.asarray(table.sum(axis=others))


def onto_simplex(values: Floats, total: Floats) -> Floats:
    """The nearest points (draw, entry) with entries of at least 0 that sum to `total` (draw,).

    A constant is subtracted from all entries, and negative results are set to 0.
    """
    ordered = -np.sort(-values, axis=1)
    above = np.cumsum(ordered, axis=1) - total[:, None]
    number = np.arange(1, values.shape[1] + 1)
    last = np.maximum((ordered * number > above).sum(axis=1), 1)
    off = above[np.arange(len(values)), last - 1] / last
    kept = np.maximum(values - off[:, None], 0.0)
    whole = kept.sum(axis=1)
    return np.asarray(kept * np.divide(total, whole, out=np.ones_like(total), where=whole > 0.0)[:, None])


def fitted_table(noisy: Floats, margins: Sequence[Floats], rows: Sequence[Rows] = ()) -> Floats:
    """A non-negative table with these margins, one for each axis, near a noisy one.

    The noisy table is projected onto the simplex, then scaled to its margins, and to the sums of its rows. If no table has
    them all, the sums are moved towards those of independent columns until one has.
    """
    total = margins[0].sum()
    if total <= 0.0:
        return np.zeros_like(noisy)
    start = onto_simplex(noisy.reshape(1, -1), np.array([total]))[0].reshape(noisy.shape)
    alone = LEAST_MIXED * reduce(np.multiply.outer, margins) / total ** (len(margins) - 1)
    start = (1.0 - LEAST_MIXED) * start + alone
    for part in TOWARDS if rows else ():
        moved = [each.towards_independence(part) for each in rows]
        found = _scaled(start, margins, moved, CLOSE_SUMS)
        if _off(found, margins, moved) <= WITHIN * total:
            return _scaled(found, margins, (), CLOSE)
    return _scaled(start, margins, (), CLOSE)


def _scaled(table: Floats, margins: Sequence[Floats], rows: Sequence[Rows], close: float) -> Floats:
    """The table scaled in turns to the sums of rows and to margins, until it is as close to all as `close`."""
    total = margins[0].sum()
    for _ in range(ROUNDS):
        for each in rows:
            table = each.tilted(table)
        for axis, margin in enumerate(margins):
            ratio = _ratio(margin, _along(table, axis))
            table = table * ratio.reshape([-1 if own == axis else 1 for own in range(table.ndim)])
        if _off(table, margins, rows) <= close * total:
            break
    return np.asarray(table)


def _off(table: Floats, margins: Sequence[Floats], rows: Sequence[Rows]) -> float:
    """The largest distance of the table's margins and sums of rows from those that it is to have."""
    off = [np.abs(_along(table, axis) - margin).max() for axis, margin in enumerate(margins)]
    return float(max([*off, *(each.off(table) for each in rows)]))


def _along(table: Floats, axis: int) -> Floats:
    """The margin of one axis."""
    return np.asarray(table.sum(axis=tuple(own for own in range(table.ndim) if own != axis)))


def _ratio(wanted: Floats, held: Floats) -> Floats:
    return np.divide(wanted, held, out=np.zeros_like(wanted), where=held > 0.0)
