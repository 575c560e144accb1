"""Noisy figures that a mechanism releases, as `measurements.parquet` lists them; its `measured.py` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.words import ReleaseView
from dpdist.models.outcome import OutcomeModel

UNIT = 2**20
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
NO_LIMITS = (None, None, None)
SUM_OF_A = "the sum of a = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_B = "the sum of b = a (clip(y, c - R, c + R) - c) / R, with y the outcome, c the centre and R the half_width"
SUM_OF_ABSENT = "the sum of 1 - v, v = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_V = "the sum of v, v = min(w, U) / U, with w the weight and U the weight_cap; 1 without weights"


class Figures(NamedTuple):
    """Noisy figures of one kind: `cells` are levels by column; values and `limits` are by (cell, statistic)."""

    cells: Sequence[dict[str, str]]
    statistics: Sequence[str]
    values: Floats
    scales: Sequence[Fraction | None]
    limits: Callable[[int, int], tuple[float | None, float | None, float | None]]
    unit: float = UNIT
    law: str = LAPLACE
    table: str | None = None
    units: Sequence[int] | None = None
    """Number of the sum that a cell is part of; unset: every cell has its own."""
    sensitivity: float | None = None
    """Unset: scale times ε."""


def cells_of(release: ReleaseView, model: OutcomeModel, stratum: int) -> list[dict[str, str]]:
    """Levels of every pattern of a stratum, of the columns that do not vary within one."""
    frame, own = release.frame, release.frame.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: frame.codes[name][own] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(frame.levels[name][codes[name][row]]) for name in constant} for row in first]
