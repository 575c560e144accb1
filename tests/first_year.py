"""Simulated files that first releases are hard on: weights by class, zeros with a Pareto tail, heaps, a kind of its own.

Every file has 20,000 records in eight kinds of four regions, an outcome `income`, and a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

RECORDS, KINDS, REGIONS = 20_000, 8, 4
TEMPLATE = """
dataset: first
period: "1"
{paths}columns:
  kind: {{levels: [k0, k1, k2, k3, k4, k5, k6, k7]}}
  region: {{levels: [r0, r1, r2, r3]}}
  income: {{bounds: [0, {top}], outside: clip}}
  weight: {{bounds: [{low}, {high}], outside: clip}}
survey: {{weight: weight}}
{strata}outcome: income
mechanism: {{name: tables}}
budget: {{epsilon: "{epsilon}", adjacency: substitution}}
{reference}tables: [{{name: incomes, by: [kind, region], statistics: [{statistics}]}}]
runtime: {{executor: serial}}
"""


class SimulatedFile(NamedTuple):
    """How a file is drawn, and public bounds of its outcome and weight."""

    draw: Callable[[np.random.Generator, np.ndarray], tuple[np.ndarray, np.ndarray]]
    top: int
    weights: tuple[float, float]


def _income(rng: np.random.Generator, kind: np.ndarray) -> np.ndarray:
    return np.exp(rng.normal(10.2 + 0.05 * kind, 0.6))


def _weight(rng: np.random.Generator, kind: np.ndarray) -> np.ndarray:
    return np.exp(rng.normal(4.0 + 0.05 * kind, 0.5))


def _classes(rng: np.random.Generator, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of eight classes from 3 to 37,000."""
    return _income(rng, kind), np.geomspace(8.0, 12_000.0, KINDS)[kind] * np.exp(rng.normal(0.0, 0.4, len(kind)))


def _zeros(rng: np.random.Generator, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half have nothing; the others' tail is Pareto's, with infinite variance."""
    pareto = 10_000.0 * (1.0 - rng.random(len(kind))) ** (-1.0 / 1.8)
    return np.where(rng.random(len(kind)) < 0.5, 0.0, pareto), _weight(rng, kind)


def _heaped(rng: np.random.Generator, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Most answers are multiples of 6,000, others of 1,000."""
    step = np.where(rng.random(len(kind)) < 0.7, 6_000.0, 1_000.0)
    return np.round(_income(rng, kind) / step) * step, _weight(rng, kind)


def _odd_kind(rng: np.random.Generator, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last kind has a sixteenth of the others' income and half of their weights."""
    odd = kind == KINDS - 1
    return np.where(odd, 0.06, 1.0) * _income(rng, kind), np.where(odd, 0.5, 1.0) * _weight(rng, kind)


FILES = {
    "classes": SimulatedFile(_classes, 400_000, (3, 37_000)),
    "zeros": SimulatedFile(_zeros, 2_000_000, (1, 1_000)),
    "heaped": SimulatedFile(_heaped, 400_000, (1, 1_000)),
    "odd kind": SimulatedFile(_odd_kind, 400_000, (1, 1_000)),
}


def rows_of(name: str, seed: int) -> pd.DataFrame:
    """Records of a file. Kinds are the rarer the later; the seed names the period or the sample."""
    rng, size = np.random.default_rng(seed), np.geomspace(1.0, 0.15, KINDS)
    kind, region = rng.choice(KINDS, RECORDS, p=size / size.sum()), rng.choice(REGIONS, RECORDS, p=[0.4, 0.3, 0.2, 0.1])
    income, weight = FILES[name].draw(rng, kind)
    columns = {"kind": np.char.add("k", kind.astype(str)), "region": np.char.add("r", region.astype(str))}
    low, high = FILES[name].weights
    return pd.DataFrame(columns | {"income": np.clip(income, 0.0, FILES[name].top), "weight": np.clip(weight, low, high)})


def job_text(
    name: str,
    paths: str = "",
    reference: str = "",
    epsilon: str = "1",
    strata: str = "",
    statistics: str = "count, {mean: income}",
) -> str:
    """A job of a file; other settings are those of nobody who knows the file."""
    low, high = FILES[name].weights
    given = {"paths": paths, "reference": reference, "epsilon": epsilon, "strata": strata, "statistics": statistics}
    return TEMPLATE.format(**given, top=FILES[name].top, low=low, high=high)
