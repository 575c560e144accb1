"""Makes synthetic records of all columns from a tree of tables: levels by systematic sampling, and raked weights.

Each column is filled given its parent, a column that shares a table with it. Among g records with one level of the
parent, a level of probability p gets g p records, rounded down or up. Weights start equal. They are scaled, table by
table, until the records' tables equal the tree's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.weighted_marginals.tree import Marginal, Tree

ROUNDS, CLOSE = 100, 1e-10
"""Rounds of scaling weights to tables, and the tolerance relative to the total."""


def drawn(tree: Tree, number: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Codes (record, column) and weights (record,) of the requested number of records; weights sum to the tree's total."""
    codes = np.full((number, len(tree.margins)), -1, dtype=np.int64)
    for column, parent in order(len(tree.margins), list(tree.pairs)):
        if parent is None:
            codes[:, column] = rng.permutation(laid_out(tree.margins[column], number, rng))
            continue
        key = (parent, column) if (parent, column) in tree.pairs else (column, parent)
        table = tree.pairs[key] if key[0] == parent else tree.pairs[key].T
        for level in np.unique(codes[:, parent]):
            own = np.flatnonzero(codes[:, parent] == level)
            codes[own, column] = rng.permutation(laid_out(table[level], len(own), rng))
    return codes, raked(tree, codes)


def order(columns: int, pairs: Sequence[Marginal]) -> list[tuple[int, int | None]]:
    """The columns with their parents, every column after its parent; the first column of each tree has none."""
    found: list[tuple[int, int | None]] = []
    met = set[int]()
    for root in range(columns):
        if root in met:
            continue
        met.add(root)
        found.append((root, None))
        waiting = [root]
        while waiting:
            parent = waiting.pop(0)
            beside = sorted({*(b for a, b in pairs if a == parent), *(a for a, b in pairs if b == parent)} - met)
            met.update(beside)
            waiting += beside
            found += [(child, parent) for child in beside]
    return found


def laid_out(counts: Floats, number: int, rng: np.random.Generator) -> Ints:
    """Levels of `number` records in the proportions of counts, by systematic sampling: each is rounded down or up."""
    total = counts.sum()
    share = counts / total if total > 0.0 else np.full(len(counts), 1.0 / len(counts))
    ends = np.cumsum(share)
    points = (np.arange(number) + rng.random()) / number
    return np.minimum(np.searchsorted(ends / ends[-1], points, side="right"), len(counts) - 1).astype(np.int64)


def raked(tree: Tree, codes: Ints) -> Floats:
    """Non-negative weights under which the records' tables equal the tree's, and which sum to the tree's total.

    If a cell has no record, the tables are as near as scaling can bring them.
    """
    number = len(codes)
    weight = np.full(number, tree.total / number)
    cells = [(codes[:, a] * tree.pairs[a, b].shape[1] + codes[:, b], tree.pairs[a, b].ravel()) for a, b in tree.pairs]
    paired = {column for key in tree.pairs for column in key}
    cells += [(codes[:, k], each) for k, each in enumerate(tree.margins) if k not in paired]
    for _ in range(ROUNDS):
        worst = 0.0
        for cell, wanted in cells:
            held = np.bincount(cell, weights=weight, minlength=len(wanted))
            there = held > 0.0
            worst = max(worst, float(np.abs(held - wanted)[there].max(initial=0.0)))
            weight *= np.divide(wanted, held, out=np.zeros_like(held), where=there)[cell]
        if worst <= CLOSE * tree.total:
            break
    left = weight.sum()
    return np.asarray(weight * (tree.total / left)) if left > 0.0 else np.full(number, tree.total / number)
