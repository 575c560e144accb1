"""Small-area borrowing: how much of an estimate is a cell's own, by size and by likeness."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats

KNOWN_VARIANCE = 1e-12
"""Variance below which values are taken as known."""
SMALLEST = 1e-300
"""Variance that a division by it survives."""


class Shrunk(NamedTuple):
    """Weights of cells' own values, shrunken values, what they are shrunk to, and A."""

    kept: Floats
    values: Floats
    mean: float
    drift: float


def shrunk(values: Floats, sampling: Floats, noise: Floats) -> Shrunk:
    """A by moments (DerSimonian & Laird)."""
    known = np.maximum(sampling + noise, KNOWN_VARIANCE)
    weight = 1.0 / known
    share, excess = weight / weight.sum(), values - np.average(values, weights=weight)
    room = float((weight * (1.0 - share)).sum())
    drift = (
        max(0.0, (float((weight * excess**2).sum()) - (len(values) - 1)) / room)
        if room > KNOWN_VARIANCE * weight.sum()
        else 0.0
    )
    mean = float(np.average(values, weights=1.0 / (drift + known)))
    kept = (drift + known - noise) / (drift + known)
    return Shrunk(kept, mean + kept * (values - mean), mean, drift)


class Composite(NamedTuple):
    """Weight of every cell's own records, (cell,), and the mean squared error of the composite estimate, (cell,)."""

    own: Floats
    error: Floats
    unlike: Floats
    """Deviation of a cell from what it borrows, (cell,)."""


def composite(apart: Floats, sampling: Floats) -> Composite:
    """Own and borrowed estimates mixed by precision: the own one's weight is 1 − V/max(V + τ², d²).

    `apart` d is own less borrowed, and `sampling` V the variance that sampling gives to it; both (cell,). How unlike cells
    are, τ², follows from the moments of all of them (DerSimonian & Laird). A cell that lies farther away than others are
    unlike counts by its own difference: so borrowing moves no estimate by more than its own sampling error.
    Infinite V is a cell without records: it borrows all, with the error τ². Not a number in d says the same.
    """
    known = np.isfinite(sampling)
    unlike = shrunk(apart[known], np.zeros(int(known.sum())), sampling[known]).drift if known.any() else 0.0
    own, error = np.zeros(len(apart)), np.full(len(apart), unlike)
    variance = np.maximum(np.maximum(unlike + sampling[known], apart[known] ** 2), SMALLEST)
    own[known] = 1.0 - sampling[known] / variance
    error[known] = own[known] * sampling[known]
    far = np.full(len(apart), np.sqrt(unlike))
    far[known] = np.sqrt(variance - sampling[known])
    return Composite(own, error, far)
