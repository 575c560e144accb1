"""Orders the columns of a tree of pairs: every column after its parent, the column beside it that was filled before."""

from __future__ import annotations

from collections.abc import Collection

from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.records import Filling


def filling(columns: int, pairs: Collection[Marginal]) -> list[Filling]:
    """The columns, each with the pair that joins it to its parent; the first column of each tree has none."""
    found: list[Filling] = []
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
            found += [(child, (parent, child) if (parent, child) in pairs else (child, parent)) for child in beside]
    return found
