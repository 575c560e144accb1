"""Makes noisy tables of coded columns agree: one total, one margin for every column, and tables that sum to these margins.

Along a tree of pairs, the distribution of greatest entropy with given tables is ∏ pairs / ∏ columns^(degree − 1), where a
column's degree is its number of pairs. So pairs that agree define this distribution. Tables of three columns or more are
made to agree only in the margins of single columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

Marginal = tuple[int, ...]
"""A table, as the positions of its columns."""
ROUNDS, CLOSE = 200, 1e-12
"""Rounds of fitting a table to its margins, and the tolerance relative to the total."""
LEAST_MIXED = 1e-9
"""Part of every table that is the product of its margins, so that every margin above 0 can be met."""


class Fitted(NamedTuple):
    """Tables that agree: the total, each column's margin, and each measured table of several columns."""

    total: float
    margins: tuple[Floats, ...]
    tables: Mapping[Marginal, Floats]

    def table(self, key: Marginal) -> Floats:
        """The table of a column, or a measured table of several."""
        return self.margins[key[0]] if len(key) == 1 else self.tables[key]


def fit(
    sizes: Sequence[int], tables: Mapping[Marginal, Floats], scales: Mapping[Marginal, float], ends: tuple[float, float]
) -> Fitted:
    """Tables that agree, from noisy tables, each shaped as its columns; `scales` are the scales of the noise.

    The total lies between `ends`.
    """
    margins = agreed_margins(sizes, {key: values[None] for key, values in tables.items()}, scales, ends)
    own = tuple(values[0] for values in margins)
    several: dict[Marginal, Floats] = {
        key: fitted_table(tables[key], [own[column] for column in key]) for key in tables if len(key) > 1
    }
    return Fitted(float(own[0].sum()), own, several)


@lru_cache(maxsize=8)
def fitted_once(
    sizes: tuple[int, ...], keys: tuple[Marginal, ...], scales: tuple[float, ...], ends: tuple[float, float], sums: bytes
) -> Fitted:
    """As `fit` of averaged measurements, computed once; `sums` are the bytes of all tables' cells."""
    parts = np.split(np.frombuffer(sums), np.cumsum([prod(sizes[c] for c in key) for key in keys])[:-1])
    return fit(sizes, *averaged_tables(sizes, keys, parts, scales), ends)


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
    sizes: Sequence[int], tables: Mapping[Marginal, Floats], scales: Mapping[Marginal, float], ends: tuple[float, float]
) -> list[Floats]:
    """Consistent margins of every column, (draw, level) each, from noisy tables (draw, *cells); all have one total.

    Sums of tables are averaged by their precision. A sum of K cells has K times the variance of one cell.
    """
    precision = {key: 1.0 / (values[0].size * scales[key] ** 2) for key, values in tables.items()}
    whole = sum(precision[key] * values.reshape(len(values), -1).sum(axis=1) for key, values in tables.items())
    total = np.clip(whole / sum(precision.values()), *ends)
    found = []
    for column, size in enumerate(sizes):
        holding = [key for key in tables if column in key]
        weight = {key: size / (tables[key][0].size * scales[key] ** 2) for key in holding}
        mean = sum(weight[key] * summed(tables[key], key, column) for key in holding) / sum(weight.values())
        found.append(onto_simplex(np.asarray(mean), total))
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


def fitted_table(noisy: Floats, margins: Sequence[Floats]) -> Floats:
    """A non-negative table with these margins, one for each axis, near a noisy one.

    The noisy table is projected onto the simplex, then scaled to its margins.
    """
    total = margins[0].sum()
    if total <= 0.0:
        return np.zeros_like(noisy)
    start = onto_simplex(noisy.reshape(1, -1), np.array([total]))[0].reshape(noisy.shape)
    alone = LEAST_MIXED * reduce(np.multiply.outer, margins) / total ** (len(margins) - 1)
    found = (1.0 - LEAST_MIXED) * start + alone
    for _ in range(ROUNDS):
        for axis, margin in enumerate(margins):
            ratio = _ratio(margin, _along(found, axis))
            found = found * ratio.reshape([-1 if own == axis else 1 for own in range(found.ndim)])
        if max(np.abs(_along(found, axis) - margin).max() for axis, margin in enumerate(margins[:-1])) <= CLOSE * total:
            break
    return np.asarray(found)


def _along(table: Floats, axis: int) -> Floats:
    """The margin of one axis."""
    return np.asarray(table.sum(axis=tuple(own for own in range(table.ndim) if own != axis)))


def _ratio(wanted: Floats, held: Floats) -> Floats:
    return np.divide(wanted, held, out=np.zeros_like(wanted), where=held > 0.0)
