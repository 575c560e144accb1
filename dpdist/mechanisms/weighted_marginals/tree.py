"""Fits one distribution to noisy tables of columns and of pairs of columns that make no loop, in closed form.

Along a tree of pairs, the distribution of greatest entropy with given tables is ∏ pairs / ∏ columns^(degree − 1), where a
column's degree is its number of pairs. So it is enough to make the tables agree: one total, one margin for every column,
and pairs that sum to these margins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

Marginal = tuple[int, ...]
"""A table, as the positions of its columns."""
ROUNDS, CLOSE = 200, 1e-12
"""Rounds of fitting a pair to its margins, and the tolerance relative to the total."""
LEAST_MIXED = 1e-9
"""Part of every pair's table that is the product of its margins, so that every margin above 0 can be met."""


class Tree(NamedTuple):
    """Consistent tables: the total, each column's margin, and each measured pair's table."""

    total: float
    margins: tuple[Floats, ...]
    pairs: Mapping[Marginal, Floats]

    def table(self, key: Marginal) -> Floats:
        """The table of a column or of a measured pair."""
        return self.margins[key[0]] if len(key) == 1 else self.pairs[key]


def fit(
    sizes: Sequence[int], tables: Mapping[Marginal, Floats], scales: Mapping[Marginal, float], ends: tuple[float, float]
) -> Tree:
    """The tree from noisy tables, each shaped as its columns; `scales` are the scales of the noise.

    The total lies between `ends`.
    """
    margins = agreed_margins(sizes, {key: values[None] for key, values in tables.items()}, scales, ends)
    own = tuple(values[0] for values in margins)
    pairs: dict[Marginal, Floats] = {
        key: fitted_pair(tables[key], own[key[0]], own[key[1]]) for key in tables if len(key) == 2
    }
    return Tree(float(own[0].sum()), own, pairs)


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


def fitted_pair(noisy: Floats, rows: Floats, columns: Floats) -> Floats:
    """A non-negative table with these margins, near a noisy one.

    The noisy table is projected onto the simplex, then scaled to its margins.
    """
    total = rows.sum()
    if total <= 0.0:
        return np.zeros_like(noisy)
    start = onto_simplex(noisy.reshape(1, -1), np.array([total]))[0].reshape(noisy.shape)
    found = (1.0 - LEAST_MIXED) * start + LEAST_MIXED * np.outer(rows, columns) / total
    for _ in range(ROUNDS):
        found = found * _ratio(rows, found.sum(axis=1))[:, None]
        found = found * _ratio(columns, found.sum(axis=0))
        if np.abs(found.sum(axis=1) - rows).max() <= CLOSE * total:
            break
    return np.asarray(found)


def _ratio(wanted: Floats, held: Floats) -> Floats:
    return np.divide(wanted, held, out=np.zeros_like(wanted), where=held > 0.0)
