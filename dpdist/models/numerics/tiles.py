"""Log densities of records under many draws, tile by tile, in bounded memory.

Many densities are a dot product of record features and functions of the parameters. They are computed by a matrix
product for every pattern, a combination of predictor levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from dpdist.core.errors import installed
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.protocol import Extremes

TILE_VALUES = 128_000
"""Number of records × draws in a tile: 1 MB of float64 fits the second-level cache."""
ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error of a sum of up to six terms; it is multiplied by the sum of the terms' sizes.

Terms are formed from logarithms and log gamma functions, which err by a few units in the last place.
"""


class Tile(NamedTuple):
    """The log likelihood of some records: their positions, and values (record, draw) in an array that is reused.

    `magnitude` (record,) is the largest sum, over draws, of the sizes of a record's terms.
    """

    rows: Ints
    values: Floats
    magnitude: Floats


class ParameterTable(NamedTuple):
    """Functions of the parameters that multiply a record's features, (feature, draw), with the sizes of their terms.

    The sizes (feature,) bound these terms, because a function's rounding error is proportional to them.
    """

    values: Floats
    magnitude: Floats

    @classmethod
    def of(cls, *terms: Floats | float, formed_from: Floats | float = 0.0) -> ParameterTable:
        """A table whose rows err by units in the last place; `formed_from` is the size of the terms of the first row."""
        values = np.vstack(np.broadcast_arrays(*terms))
        magnitude = np.abs(values).max(axis=1)
        magnitude[0] = max(magnitude[0], np.max(formed_from))
        return cls(values, magnitude)


def products(pattern: Codes, features: Floats, draws: int, table: Callable[[int], ParameterTable]) -> Iterator[Tile]:
    """Yields tiles of the product of features (record, feature) and the table of each record's pattern."""
    size = tile_records(draws)
    buffer = np.empty((min(size, len(pattern)), draws))
    for rows, number in by_pattern(pattern):
        values, sizes = table(number)
        magnitude = np.abs(features[rows]) @ sizes
        for low in range(0, len(rows), size):
            part = slice(low, low + size)
            tile = buffer[: len(rows[part])]
            np.matmul(features[rows[part]], values, out=tile)
            yield Tile(rows[part], tile, magnitude[part])


def tile_records(draws: int) -> int:
    return max(1, TILE_VALUES // draws)


def patterns_of(pattern: Codes) -> tuple[Codes, Ints, Ints]:
    """Patterns that occur, in order, the positions of their records, (record,), and where those of each begin and end."""
    order = pattern.argsort(kind="stable")
    ordered = pattern[order]
    starts = np.ones(len(order) + 1, dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=starts[1:-1])
    bounds = starts.nonzero()[0]
    return ordered[bounds[:-1]], order.astype(np.int64, copy=False), bounds.astype(np.int64, copy=False)


def by_pattern(pattern: Codes) -> Iterator[tuple[Ints, int]]:
    present, order, bounds = patterns_of(pattern)
    for number, start, stop in zip(present.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield order[start:stop], number


def log_lik_of(tiles: Iterator[Tile], draws: int, records: int) -> Floats:
    """Log likelihood (draw, record), from tiles."""
    out = np.empty((draws, records))
    for rows, values, _ in tiles:
        out[:, rows] = values.T
    return out


def extremes_of(tiles: Iterator[Tile], records: int) -> Extremes:
    """Extremes over draws, widened by the evaluation's rounding error, so that bounds are never too small."""
    highest, lowest = np.empty(records), np.empty(records)
    for rows, values, magnitude in tiles:
        slack = ROUNDING * magnitude
        highest[rows] = values.max(axis=1) + slack
        lowest[rows] = values.min(axis=1) - slack
    return Extremes(highest, lowest)


# A log likelihood is the product of a record's six features with a draw's six coefficients. With Numba, a compiled loop is
# five times as fast as NumPy's product. Its import costs half a second, which pays from a billion record-draws per process.
# It is imported, and the loop compiled or read from its cache, at the first call: only processes that fit a model pay.
BLOCK = 256
"""Records per block; their features and extremes fit the first-level cache, however many draws there are."""


def extremes(features: Floats, table: Floats) -> tuple[Floats, Floats]:
    """The largest and smallest Σ_k φ_k(i) T_k(s) over draws s, (record,) each.

    `features` is φ (6, record), whose first row is ones, and `table` is T (6, draw). The result is undefined for records
    with a NaN value.
    """
    highest, lowest = np.full(features.shape[1], -np.inf), np.full(features.shape[1], np.inf)
    _scanner()(features, table, highest, lowest)
    return highest, lowest


@cache  # a search of the import path takes as long as the bounds of a thousand records
def _scanner() -> Callable[[Floats, Floats, Floats, Floats], object]:
    return _compiled() if installed("numba") else _multiply


def _multiply(features: Floats, table: Floats, highest: Floats, lowest: Floats) -> None:
    """Sets the extremes in place, by a matrix product for half a tile of records at a time."""
    rows, size = np.ascontiguousarray(features.T), max(1, tile_records(table.shape[1]) // 2)
    buffer = np.empty((size, table.shape[1]))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        tile = np.matmul(rows[part], table, out=buffer[: len(rows[part])])
        tile.max(axis=1, out=highest[part])
        tile.min(axis=1, out=lowest[part])


def _scan(features: Floats, table: Floats, highest: Floats, lowest: Floats) -> None:
    """Updates the extremes in place: block by block, with two draws at a time over all records of a block.

    The records fill the lanes of the vector unit. An odd last draw is processed twice.
    """
    records, last = features.shape[1], table.shape[1] - 1
    for start in range(0, records, BLOCK):
        stop = min(start + BLOCK, records)
        u, v = features[1, start:stop], features[2, start:stop]
        uu, uv, vv = features[3, start:stop], features[4, start:stop], features[5, start:stop]
        high, low = highest[start:stop], lowest[start:stop]
        for s in range(0, last + 1, 2):
            t = min(s + 1, last)
            a0, a1, a2, a3, a4, a5 = table[0, s], table[1, s], table[2, s], table[3, s], table[4, s], table[5, s]
            b0, b1, b2, b3, b4, b5 = table[0, t], table[1, t], table[2, t], table[3, t], table[4, t], table[5, t]
            for i in range(stop - start):
                f = a0 + a1 * u[i] + a2 * v[i] + a3 * uu[i] + a4 * uv[i] + a5 * vv[i]
                g = b0 + b1 * u[i] + b2 * v[i] + b3 * uu[i] + b4 * uv[i] + b5 * vv[i]
                above = f if f > high[i] else high[i]
                below = f if f < low[i] else low[i]
                high[i] = g if g > above else above
                low[i] = g if g < below else below


@cache
def _compiled() -> Callable[[Floats, Floats, Floats, Floats], object]:
    """`_scan` in machine code, cached beside this file or in the user's cache folder, or not at all.

    The option `contract` allows a product and a sum as one operation with one rounding; nothing is reordered.
    """
    from numba import njit

    def scan(storing: bool) -> Callable[[Floats, Floats, Floats, Floats], object]:
        signature = "void(f8[:,::1], f8[:,::1], f8[::1], f8[::1])"
        return njit(signature, cache=storing, nogil=True, fastmath={"contract"})(_scan)

    try:
        return scan(storing=True)
    except (RuntimeError, OSError):
        return scan(storing=False)
