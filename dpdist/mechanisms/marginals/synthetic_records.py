"""Synthetic records from agreeing tables, with raked weights.

Columns are filled in order, each given its parents: the columns of its table that are already filled. Let g records
have the same levels of the parents, and let a level have probability p. Then g p records get the level, rounded down or
up. Weights are then scaled to the wanted tables.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.marginals.fitting import FittedTables, Marginal

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
        for cell, wanted in wanted_by_cell:
            current = np.bincount(cell, weights=weight, minlength=len(wanted))
            there = current > 0.0
            worst = max(worst, float(np.abs(current - wanted)[there].max(initial=0.0)))
            weight *= np.divide(wanted, current, out=np.zeros_like(current), where=there)[cell]
        if worst <= CLOSE * fitted.total:
            break
    total = weight.sum()
    return np.asarray(weight * (fitted.total / total)) if total > 0.0 else np.full(number, fitted.total / number)
