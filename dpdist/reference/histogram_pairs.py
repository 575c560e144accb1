"""For `reference_tables.post`: pairs weights with outcomes in cells that share histograms, from noisy sums.

Separate histograms do not show how weight and outcome depend on each other. The noisy sums give the weighted mean of
clipped outcomes in the group. The pairs follow the normal copula that gives this weighted mean. First, the difference
between this mean and the mean under independence is shrunk for noise (James & Stein). Both histograms keep their
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import Floats
from dpdist.reference.clipping import Cell
from dpdist.reference.limits import Limits, Noise

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
    """The cells, with weights paired with outcomes; cells without histograms or without a weight are unchanged.

    `sums` (cell, 2) are noisy Σ(1 − v) and Σvc, in records, over `count` records. `sums` and `limits` belong to one
    outcome.
    """
    cells_now = list(cells)
    groups = np.array([cell.group for cell in cells])
    for number in np.unique(groups):
        rows = np.flatnonzero(groups == number)
        first = cells[rows[0]]
        if first.blur is None or not first.weighted:
            continue
        group_limits = Limits(*(values[rows] for values in limits))
        weight = _weights(first, group_limits, count[rows] - sums[rows, 0], sums[rows, 1], noise)
        for k in rows.tolist():
            cells_now[k] = replace(cells[k], weight=weight)
    return cells_now


def _weights(cell: Cell, limits: Limits, held: Floats, product: Floats, noise: Noise) -> Floats:
    """The cell's weights, reordered to pair with its outcomes; `held` and `product` are noisy Σv and Σvc, (cell,)."""
    ranks = (pd.Series(values).rank().to_numpy() for values in (cell.outcome, cell.weight))
    of_outcome, of_weight = (scipy.special.ndtri((rank - 0.5) / len(rank)) for rank in ranks)
    ordered = np.sort(cell.weight)
    distinct, which = np.unique(np.column_stack(limits), axis=0, return_inverse=True)
    scale = limits.cap * held.clip(0.0)

    def weights(correlation: float) -> Floats:
        score = correlation * of_outcome + (1.0 - correlation**2) ** 0.5 * of_weight
        paired = np.empty(len(ordered))
        paired[np.argsort(score, kind="stable")] = ordered
        return paired

    def means(weight: Floats) -> Floats:
        clipped_means = []
        for centre, cap, reach in distinct.tolist():
            seen = np.clip(cell.outcome, centre - reach, centre + reach)
            clipped_means.append(np.average(seen, weights=np.minimum(weight, cap)))
        return np.array(clipped_means)[which.reshape(-1)]

    alone = means(cell.weight)
    seen = float(limits.cap @ (limits.reach * product) + scale @ limits.centre)
    of_noise = (limits.cap * limits.reach) ** 2 * noise.product + (limits.cap * (limits.centre - alone)) ** 2 * noise.weight
    excess = seen - float(scale @ alone)
    excess *= max(0.0, 1.0 - float(of_noise.sum()) / max(excess**2, np.finfo(float).tiny))
    low, high = -STRONGEST, STRONGEST
    for _ in range(BISECTIONS if excess else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if float(scale @ (means(weights(middle)) - alone)) < excess else (low, middle)
    return weights((low + high) / 2.0) if excess else cell.weight
