"""Estimates how weights depend on outcomes in a group of cells that share histograms (METHODS §7b).

This is post-processing of noisy sums. Separate histograms of weights and of outcomes do not show their dependence. Points
paired at random would be independent. But where the sampling probability grows with the outcome, large outcomes have small
weights. Then the part of a mean beyond the clipping interval would be too large. The noisy sums give the weighted mean of
clipped outcomes in the whole group. So weights and outcomes are paired by a normal copula whose correlation gives this
mean. The distance from the mean under independence is first shrunk for noise (James & Stein). Neither histogram changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.clipping_intervals import Noise
from dpdist.mechanisms.reference_tables.sensitivity import Limits

STRONGEST = 0.95
"""Largest absolute correlation of normal scores."""
BISECTIONS = 20


def all_paired(
    summary: Sequence[Sequence[Cell]], limits: Limits, sums: Floats, count: Floats, noise: Noise
) -> list[list[Cell]]:
    """Cells of every outcome, paired by `paired`; `limits` and `sums` (cell, 1 + outcome) have all outcomes."""
    return [
        paired(cells, Limits(limits.centre[:, k], limits.cap, limits.reach[:, k]), sums[:, [0, 1 + k]], count, noise)
        for k, cells in enumerate(summary)
    ]


def paired(cells: Sequence[Cell], limits: Limits, sums: Floats, count: Floats, noise: Noise) -> list[Cell]:
    """Cells whose weights are paired with their outcomes. `sums` (cell, 2) are noisy Σ(1 − v) and Σvc, in records, over
    `count` records; they and `limits` belong to one outcome. Cells without histograms or without a weight are returned
    unchanged.
    """
    found = list(cells)
    groups = np.array([cell.group for cell in cells])
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        first = cells[rows[0]]
        if first.blur is None or not first.weighted:
            continue
        own = Limits(*(each[rows] for each in limits))
        weight = _weights(first, own, count[rows] - sums[rows, 0], sums[rows, 1], noise)
        for k in rows.tolist():
            found[k] = replace(cells[k], weight=weight)
    return found


def _weights(cell: Cell, limits: Limits, held: Floats, product: Floats, noise: Noise) -> Floats:
    """The cell's weights in the order of its outcomes; `held` and `product` are noisy Σv and Σvc, (cell,)."""
    ranks = (pd.Series(own).rank().to_numpy() for own in (cell.outcome, cell.weight))
    of_outcome, of_weight = (scipy.special.ndtri((rank - 0.5) / len(rank)) for rank in ranks)
    ordered = np.sort(cell.weight)
    distinct, which = np.unique(np.column_stack(limits), axis=0, return_inverse=True)
    scale = limits.cap * held.clip(0.0)

    def weights(correlation: float) -> Floats:
        score = correlation * of_outcome + (1.0 - correlation**2) ** 0.5 * of_weight
        found = np.empty(len(ordered))
        found[np.argsort(score, kind="stable")] = ordered
        return found

    def means(weight: Floats) -> Floats:
        found = []
        for centre, cap, reach in distinct.tolist():
            seen = np.clip(cell.outcome, centre - reach, centre + reach)
            found.append(np.average(seen, weights=np.minimum(weight, cap)))
        return np.array(found)[which.reshape(-1)]

    alone = means(cell.weight)
    told = float(limits.cap @ (limits.reach * product) + scale @ limits.centre)
    of_noise = (limits.cap * limits.reach) ** 2 * noise.product + (limits.cap * (limits.centre - alone)) ** 2 * noise.weight
    apart = told - float(scale @ alone)
    apart *= max(0.0, 1.0 - float(of_noise.sum()) / max(apart**2, np.finfo(float).tiny))
    low, high = -STRONGEST, STRONGEST
    for _ in range(BISECTIONS if apart else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if float(scale @ (means(weights(middle)) - alone)) < apart else (low, middle)
    return weights((low + high) / 2.0) if apart else cell.weight
