"""Simulates populations on which mechanisms with a reference are tested, and draws samples from them.

The population `smooth` meets the assumptions of these mechanisms, and each of the others breaks one of them.

The samples are informative: inclusion probabilities are proportional to a unit's `size`, which may depend on its outcome
`y`. Units are in a `cell`. For each population there is a job with one table by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from dpdist.core.records import Codes, Floats, Ints

PopulationName = Literal["smooth", "weight_atoms", "heavy_tails", "small_cells", "top_coded"]
UNITS = 200_000
CELLS: Mapping[PopulationName, int] = {
    "smooth": 12,
    "weight_atoms": 12,
    "heavy_tails": 12,
    "small_cells": 18,
    "top_coded": 12,
}
TOP_CODE = 150_000.0
BOUND = 1_000_000.0
ATOMS = np.array([80.0, 30.0, 8.0, 3.0, 1.0])
"""Weights of five types of unit, as multiples of the smallest weight."""
NOISE = 0.4
"""Standard deviation of the noise in log size, given the outcome."""


def population(name: PopulationName, rng: np.random.Generator, units: int = UNITS) -> pd.DataFrame:
    """Columns cell, y and size."""
    cell, y, size = _LAWS[name](rng, units)
    return pd.DataFrame({"cell": np.array(levels(name))[cell], "y": np.minimum(y, bound(name)), "size": size})


def levels(name: PopulationName) -> list[str]:
    return [f"c{number:02d}" for number in range(CELLS[name])]


def bound(name: PopulationName) -> float:
    """The outcome's upper public bound."""
    return TOP_CODE if name == "top_coded" else BOUND


def population_job(name: PopulationName) -> dict[str, Any]:
    """A job of the population's samples, as a file has it; a study replaces its mechanism."""
    return {
        "dataset": name,
        "period": "simulated",
        "columns": {"cell": {"levels": levels(name)}, "y": {"bounds": [0.0, bound(name)], "outside": "clip"}},
        "survey": {"weight": "weight"},
        "outcome": "y",
        "mechanism": {"name": "reference_tables"},
        "budget": {"epsilon": "1"},
        "reference": {"path": "another sample"},
        "tables": [{"name": "cells", "by": ["cell"], "statistics": ["count", {"mean": "y"}]}],
    }


def informative_size(y: Floats, rng: np.random.Generator) -> Floats:
    """(y + ȳ/2)·exp(.4 z) with z normal; positive where y = 0 too."""
    return np.asarray((y + y.mean() / 2.0) * np.exp(NOISE * rng.standard_normal(len(y))))


def inclusion(size: Floats, n: int) -> Floats:
    """min(1, c·size), (unit,), with c so that they sum to n. Raises `ValueError` unless n < units."""
    if n >= len(size):
        raise ValueError(f"a sample of {n:,} from {len(size):,} units leaves none out: take a smaller one")
    certain = np.zeros(len(size), dtype=bool)
    while True:
        chance = np.where(certain, 1.0, (n - certain.sum()) * size / size[~certain].sum())
        over = chance > 1.0
        if not over.any():
            return chance
        certain |= over


def systematic(chance: Floats, rng: np.random.Generator) -> Ints:
    """Positions of a systematic sample in random order, (sampled,)."""
    order = rng.permutation(len(chance))
    steps = rng.random() + np.cumsum(chance[order])
    before = np.concatenate([[steps[0] - chance[order[0]]], steps[:-1]])
    return np.sort(order[np.floor(steps) > np.floor(before)])


Law = Callable[[np.random.Generator, int], tuple[Codes, Floats, Floats]]


def _evenly(rng: np.random.Generator, units: int) -> tuple[Codes, Floats]:
    """Cells of similar sizes, and each unit's cell effect on the log outcome."""
    cell = rng.integers(0, 12, units).astype(np.int32)
    return cell, 0.3 * rng.standard_normal(12)[cell]


def _smooth(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Lognormal outcomes and smooth weights, as models assume."""
    cell, typical = _evenly(rng, units)
    y = np.exp(10.5 + typical + 0.6 * rng.standard_normal(units))
    return cell, y, informative_size(y, rng)


def _weight_atoms(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Five types of unit, their weights up to 80-fold apart; outcomes grow as weights fall. No table shows types."""
    cell, typical = _evenly(rng, units)
    kind = rng.choice(5, units, p=(sampled := np.array([0.35, 0.25, 0.2, 0.12, 0.08]) * ATOMS) / sampled.sum())
    y = np.exp(9.5 + 0.4 * kind + typical + 0.7 * rng.standard_normal(units))
    return cell, y, np.exp(0.5 * rng.standard_normal(12))[cell] / ATOMS[kind]


def _heavy_tails(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """A quarter of zeros; other outcomes have an sd of 1.5 in logarithms, and sizes depend little on them."""
    cell, typical = _evenly(rng, units)
    y = np.exp(9.0 + typical + 1.5 * rng.standard_normal(units)) * (rng.random(units) > 0.25)
    return cell, y, informative_size(y, rng) ** 0.3


def _small_cells(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Sizes 28-fold apart; one cell in six has much smaller outcomes, one in three a wider law."""
    share = np.repeat([2500.0, 300.0, 90.0], 6)
    cell = rng.choice(18, units, p=share / share.sum()).astype(np.int32)
    spread = np.where(cell % 3 == 0, 1.1, 0.5)
    z = rng.standard_normal(units)
    y = np.exp(10.0 + 0.3 * (cell % 5) - 2.0 * (cell % 6 == 5) + spread * z)
    noise = 0.5 * z + np.sqrt(0.75) * rng.standard_normal(units)
    return cell, y, np.exp((0.3 + 0.3 * (cell % 2)) * noise - 0.2 * (cell % 4))


def _top_coded(rng: np.random.Generator, units: int) -> tuple[Codes, Floats, Floats]:
    """Left-skewed outcomes in thousands; three in ten at the top-code."""
    cell, typical = _evenly(rng, units)
    y = np.exp(11.6 + typical + 0.5 * (2.0 - rng.standard_gamma(4.0, units) / 2.0))
    y = np.clip(np.round(y, -3), 1e3, TOP_CODE)
    return cell, y, informative_size(y, rng)


_LAWS: Mapping[PopulationName, Law] = {
    "smooth": _smooth,
    "weight_atoms": _weight_atoms,
    "heavy_tails": _heavy_tails,
    "small_cells": _small_cells,
    "top_coded": _top_coded,
}
DESCRIBED: Mapping[PopulationName, str] = {
    "smooth": "lognormal outcomes, smooth weights",
    "weight_atoms": "five distinct weights in a cell, eightyfold apart",
    "heavy_tails": "a quarter of zeros, tails of sd 1.5 in logarithms",
    "small_cells": "18 cells 28-fold apart in size, some unlike the others",
    "top_coded": "left-skewed outcomes in whole thousands, many at the top-code",
}
