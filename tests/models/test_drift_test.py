"""Noisy sums against what the reference predicts: who has drifted is named, and errors then hold a drift of shape."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.clipping import Cell
from dpdist.mechanisms.reference_tables.clipping_intervals import Noise, choose
from dpdist.mechanisms.reference_tables.clipping_inversion import ClippingInversion, invert_clipping
from dpdist.mechanisms.reference_tables.drift_test import DRIFTED, shape_bias
from dpdist.mechanisms.reference_tables.sensitivity import UNIT, Limits

NOISE = Noise(2.0, 2.0)
CELLS, SIZE = 60, 900
BOUNDS = (0.0, 1e9)


def sample(rng: np.random.Generator) -> tuple[Floats, Floats]:
    weight = np.exp(rng.normal(4.0, 1.0, SIZE))
    return weight, np.exp(rng.normal(10.0, 0.7, SIZE))


def released(power: float, scale: float, seed: int) -> tuple[ClippingInversion, list[Cell], Floats]:
    """Cells whose weights are to a power and times a scale; with the direct estimates of log mean weights."""
    rng = np.random.default_rng(seed)
    cells = [Cell.of(*sample(rng), BOUNDS) for _ in range(CELLS)]
    chosen = [choose([cell], SIZE, NOISE) for cell in cells]
    limits = Limits(
        *(np.array([getattr(each, name) for each in chosen], float).reshape(CELLS, -1)[:, 0] for name in Limits._fields)
    )
    now = [(scale * w**power, y) for w, y in (sample(rng) for _ in range(CELLS))]
    cell = np.repeat(np.arange(CELLS), SIZE)
    v, c = limits.clipped(cell, *(np.concatenate(column) for column in zip(*now, strict=True)))
    sums = np.column_stack([np.bincount(cell, 1.0 - v), np.bincount(cell, v * c)]) + rng.laplace(0.0, 1.0, (CELLS, 2))
    found = invert_clipping(cells, limits, UNIT * sums, np.full(CELLS, float(SIZE)), NOISE, shrinkage=True)
    return found, cells, np.log([w.mean() for w, _ in now])


@pytest.mark.long
def test_a_file_of_the_references_law_drifts_in_few_cells() -> None:
    """A chance of .001 by cell and variable if errors were normal; at most 6 of 480 here (Poisson of .48: below 1e-5)."""
    away = [np.abs(released(1.0, 1.0, seed)[0].departure) > DRIFTED for seed in range(4)]
    assert np.sum(away) <= 6


@pytest.mark.parametrize(("power", "scale"), [(1.0, 1.5), (1.1, 1.0)])
def test_cells_that_drifted_are_seen(power: float, scale: float) -> None:
    found, _, _ = released(power, scale, 5)
    assert (np.abs(found.departure[:, 0]) > DRIFTED).mean() > 0.9
    assert (np.abs(found.departure[:, 1]) > DRIFTED).mean() < 0.1


def test_a_drift_of_shape_is_in_the_errors_of_the_cells_that_show_one() -> None:
    """Nominal 90 % intervals around the current file's own mean weight. Control: without the bias they hold far fewer."""
    found, cells, direct = released(1.1, 1.0, 7)
    error = np.log(found.estimate[:, 0]) - direct
    whole = found.sampling[:, 0, 0] + found.noise[:, 0, 0]
    away = np.abs(found.departure).max(axis=1) > DRIFTED
    assert away.mean() > 0.9
    bias = np.array(
        [shape_bias(cell, (s, g), own)[0] for cell, (s, g), own in zip(cells, found.scale, _limits(7), strict=True)]
    )
    held, without = (np.abs(error) <= 1.645 * np.sqrt(each) for each in (whole, np.maximum(whole - bias**2, 1e-12)))
    assert held.mean() > without.mean()
    assert held.mean() >= 0.8


def _limits(seed: int) -> list[tuple[float, float, float]]:
    rng = np.random.default_rng(seed)
    cells = [Cell.of(*sample(rng), BOUNDS) for _ in range(CELLS)]
    chosen = [choose([cell], SIZE, NOISE) for cell in cells]
    return [(each.centre[0], each.cap, each.reach[0]) for each in chosen]


def test_without_a_drift_of_shape_there_is_no_bias() -> None:
    cell = Cell.of(np.full(50, 3.0), np.linspace(1.0, 2.0, 50), BOUNDS)
    assert shape_bias(cell, (0.2, 0.0), (1.5, 60.0, 10.0))[0] == pytest.approx(0.0, abs=1e-9)
