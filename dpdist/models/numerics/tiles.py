"""Evaluates log densities of records under many draws tile by tile, so that all records × draws are never stored.

A density may be a dot product of features of the record and functions of the parameters. It is then computed by a matrix
product for every pattern, a combination of predictor levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.protocol import Extremes

TILE_VALUES = 128_000
"""Number of records × draws in a tile: 1 MB of float64 fits the second-level cache."""
ROUNDING = 16.0 * float(np.finfo(float).eps)
"""Relative error allowed for a sum of up to six terms; it multiplies the sum of the terms' sizes.

Terms are formed from logarithms and log gamma functions, which err by a few units in the last place.
"""


class Tile(NamedTuple):
    """The log likelihood of some records: their positions, and values (record, draw) in an array that is reused.

    `magnitude` (record,) is the largest sum, over draws, of the sizes of a record's terms. The rounding error is
    proportional to it.
    """

    rows: Ints
    values: Floats
    magnitude: Floats


class Table(NamedTuple):
    """Functions of the parameters that multiply a record's features, (feature, draw), with the sizes of their terms.

    A function is a sum of terms. The sizes (feature,) bound these terms, because a function's rounding error is
    proportional to them.
    """

    values: Floats
    magnitude: Floats

    @classmethod
    def of(cls, *terms: Floats | float, formed_from: Floats | float = 0.0) -> Table:
        """A table whose rows err by units in the last place; `formed_from` is the size of the terms of the first row."""
        values = np.vstack(np.broadcast_arrays(*terms))
        magnitude = np.abs(values).max(axis=1)
        magnitude[0] = max(magnitude[0], np.max(formed_from))
        return cls(values, magnitude)


def products(pattern: Codes, features: Floats, draws: int, table: Callable[[int], Table]) -> Iterator[Tile]:
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


def by_pattern(pattern: Codes) -> Iterator[tuple[Ints, int]]:
    """Yields, for each pattern that occurs, the positions of its records and its number."""
    order = np.argsort(pattern, kind="stable")
    edges = np.flatnonzero(np.diff(pattern[order])) + 1
    for rows in np.split(order, edges):
        if len(rows):
            yield rows, int(pattern[rows[0]])


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
