"""For `reference_tables`: lets several small cells share one noisy sum if noise would drown them (METHODS §7b).

Cells that share a sum are a unit. A unit's statistics give one scale of weights and one of outcomes; cells keep their
shapes and means relative to each other. The reference alone decides what is collapsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.reference.borrowing import alike
from dpdist.reference.clipping import Cell
from dpdist.reference.inversion import LEAST_VARIANCE, ClippingInversion

FEWEST = 4.0
"""A cell is collapsed if its number of reference records is below this multiple of the squared noise scale."""
COLLAPSED_POINTS = 2_000
"""Approximate number of points that represent a unit."""


class Spread(NamedTuple):
    """Figures of cells, from the figures of their units.

    - `estimate` (cell, 2): mean weight and mean outcome.
    - `sampling`, `noise` (cell, 2, 2): covariances of (log mean weight, mean outcome), which the cells of a unit share.
    - `alone` (cell, 2, 2): the cell's own covariance, from sampling of its reference and from drift apart from its unit.
    - `common` (cell, 2): standard deviations of an error that all cells share.
    - `tail` (cell, 2): standard deviations of the error from the tails of histograms.
    """

    estimate: Floats
    sampling: Floats
    noise: Floats
    alone: Floats
    common: Floats
    tail: Floats


def fewest(scales: tuple[Fraction, Fraction]) -> float:
    """Smallest number of reference records of a cell that is not collapsed.

    `scales` are the scales of the noise, in units of 1/UNIT.
    """
    return FEWEST * (float(max(scales)) / UNIT) ** 2


def collapsed(cells: Sequence[Cell], codes: Codes, few: float) -> Ints:
    """The unit of every cell, (cell,), numbered in the order of the units' first cells.

    A cell of `few` reference records or more is a unit itself. Smaller cells are collapsed from the smallest, with
    similar cells first and then with the rest. A unit never mixes multiplied and shifted outcomes. Cells with shapes
    from histograms stay alone: similar cells already share a histogram.
    """
    records, first = np.array([cell.records for cell in cells]), np.arange(len(cells))
    small, group = (records < few) & [cell.blur is None for cell in cells], alike(cells, codes)
    for scaled in (False, True):
        kind = small & (np.array([cell.scaled for cell in cells]) == scaled)
        units, left = list[list[int]](), list[list[int]]()
        for number in np.unique(group[kind]):
            for unit in _gathered([[k] for k in np.flatnonzero(kind & (group == number)).tolist()], records, few):
                (units if records[unit].sum() >= few else left).append(unit)
        for unit in units + _gathered(left, records, few):
            first[unit] = min(unit)
    return np.asarray(np.unique(first, return_inverse=True)[1])


def _gathered(parts: list[list[int]], records: Ints, few: float) -> list[list[int]]:
    """Joins parts (lists of cells), the smallest first, until a unit has `few` records; the last may have more or fewer."""
    units: list[list[int]] = []
    for part in sorted(parts, key=lambda part: int(records[part].sum())):
        if units and records[units[-1]].sum() < few:
            units[-1] += part
        else:
            units.append(list(part))
    if len(units) > 1 and records[units[-1]].sum() < few:
        units[-2:] = [units[-2] + units[-1]]
    return units


def pooled(cells: Sequence[Cell], share: Floats) -> Cell:
    """Several cells as one; each contributes points in proportion to its share of the records, `share` (cell,)."""
    if len(cells) == 1:
        return cells[0]
    weights, outcomes = [], []
    for cell, part in zip(cells, share / share.sum(), strict=True):
        size = max(1, round(COLLAPSED_POINTS * part))
        order = np.lexsort((cell.weight, cell.outcome))
        taken = order[((np.arange(size) + 0.5) / size * len(order)).astype(np.int64)]
        weights.append(cell.weight[taken] * (cell.mean_weight / cell.weight[taken].mean()))
        outcomes.append(cell.outcome[taken])
    both = np.concatenate(weights), np.concatenate(outcomes)
    records, scaled = sum(cell.records for cell in cells), all(cell.scaled for cell in cells)
    return replace(cells[0], weight=both[0], outcome=both[1], records=records, scaled=scaled, borrowed=0.0)


def spread(inversion: ClippingInversion, cells: Sequence[Cell], units: Sequence[Cell], unit: Ints) -> Spread:
    """Converts figures of units to figures of their cells; a unit of one cell is unchanged."""
    alone = np.bincount(unit)[unit] == 1
    rows = []
    for cell, single, number in zip(cells, alone, unit, strict=True):
        whole, (s, g) = units[number], inversion.scale[number]
        if single:
            errors = inversion.sampling[number], inversion.noise[number], np.zeros((2, 2))
            rows.append((inversion.estimate[number], *errors, inversion.common[number], inversion.tail[number]))
            continue
        moving = replace(cell, scaled=whole.scaled)
        share = moving.movable[int(g > 0)] / max(whole.movable[int(g > 0)], LEAST_VARIANCE)
        rate = np.diag([1.0, moving.mean_rate / max(whole.mean_rate, LEAST_VARIANCE) if moving.scaled else share])
        g = g if moving.scaled else share * g * whole.unit / moving.unit
        direct, now = moving.direct_influence(), np.diag([1.0, moving.growth(g)])
        separate = direct.T @ direct / len(direct) / cell.records
        separate += np.diag(inversion.drift[number] * [1.0, moving.mean_rate**2])
        separate += np.diag([0.0, cell.of_unlikeness])
        separate = now @ separate @ now
        estimate = np.array([moving.mean_weight * np.exp(s), moving.mean_at(g)])
        shared = rate @ inversion.sampling[number] @ rate, rate @ inversion.noise[number] @ rate
        rows.append((estimate, *shared, separate, rate @ inversion.common[number], rate @ inversion.tail[number]))
    return Spread(*(np.array(column) for column in zip(*rows, strict=True)))
