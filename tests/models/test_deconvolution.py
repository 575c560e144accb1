"""Cells that share a histogram: their own shape is told from what sets them apart, and totals are not the mixture's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.records import TOTAL, Floats
from dpdist.mechanisms.reference_tables import protect
from dpdist.mechanisms.reference_tables.clipping import Blur, Cell
from dpdist.mechanisms.reference_tables.histogram_bins import Bins
from dpdist.mechanisms.reference_tables.smoothing import smoothed

Named = Callable[[str], AbstractContextManager[None]]
STATES = [f"S{k:02d}" for k in range(24)]
JOB = """
dataset: apart
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  state: {{levels: {states}}}
  miles: {{bounds: [0, 200000], outside: clip}}
  weight: {{bounds: [1, 20000], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: reference_tables}}
budget: {{epsilon: "1"}}
reference: {{histogram: {{epsilon: "0.3"}}}}
tables:
  - {{name: one, by: [state], margins: true, statistics: [count, {{mean: miles}}]}}
runtime: {{executor: serial}}
"""
WEIGHTS = Bins.within(1.0, 20000.0, atoms=False)


def spread(apart: float, n: int = 500) -> pd.DataFrame:
    """States of one law of weights and of miles, at scales whose logarithms have deviation `apart`."""
    rng = np.random.default_rng(8)
    level, state = apart * rng.standard_normal((2, len(STATES))), np.repeat(np.arange(len(STATES)), n)
    weight = np.exp(5.0 + level[0][state] + 0.4 * rng.standard_normal(len(state)))
    miles = np.exp(8.5 + level[1][state] / 2.0 + 0.6 * rng.standard_normal(len(state)))
    return pd.DataFrame({"state": np.array(STATES)[state], "weight": weight, "miles": np.minimum(miles, 2e5)})


def errors(folder: Path, rows: pd.DataFrame, noise_of: Named) -> pd.Series:
    """Published less direct counts, in direct standard errors, of the states and of all."""
    folder.mkdir()
    rows.to_parquet(folder / "now.parquet")
    with noise_of("apart"):
        dpdist.run(dpdist.parse_job(JOB.format(folder=folder, states=STATES)), folder / "ws")
    table = pd.read_parquet(folder / "ws" / "public" / "tables" / "one.parquet")
    counts = table[(table["estimator"] == "parameters") & (table["statistic"] == "count")].set_index("state")["estimate"]
    weight = rows["weight"].groupby(rows["state"])
    direct, squares = weight.sum(), weight.apply(lambda own: float((own**2).sum()))
    direct[TOTAL], squares[TOTAL] = direct.sum(), squares.sum()
    return (counts - direct) / np.sqrt(squares - direct**2 / len(rows))


def test_a_grand_total_is_not_that_of_the_mixture_of_its_cells(
    tmp_path: Path, noise_of: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: under the group's histogram as every cell's shape, the same noise puts the total far too high."""
    found = errors(tmp_path / "new", spread(0.8), noise_of)
    monkeypatch.setattr(protect, "deconvolved", lambda known, counts, told, model, sums: told)
    before = errors(tmp_path / "old", spread(0.8), noise_of)
    assert abs(found[TOTAL]) < 3.0
    assert found.abs().max() < 4.0
    assert found.abs().median() < 0.5
    assert before[TOTAL] > 20.0


def test_cells_that_are_alike_stay_near_their_direct_counts(tmp_path: Path, noise_of: Named) -> None:
    found = errors(tmp_path / "alike", spread(0.0), noise_of)
    assert found.abs().median() < 0.3
    assert found.abs().max() < 2.0


def test_a_law_is_found_under_its_mixture() -> None:
    """Counts of a lognormal law at four scales, without noise. Control: their own deviation is the mixture's."""
    shape, scales = 0.4, np.array([-1.2, -0.4, 0.4, 1.2])
    middle = np.log(WEIGHTS.at(np.arange(len(WEIGHTS.left)), np.full(len(WEIGHTS.left), 0.5)))
    rng = np.random.default_rng(1)
    drawn = np.exp(5.0 + scales[:, None] + shape * rng.standard_normal((4, 20_000)))
    counts = np.bincount(WEIGHTS.number(drawn.ravel()), minlength=len(middle)).astype(float)
    points = np.exp(middle)
    mixing = np.zeros((len(middle), len(middle)))
    for scale in scales:
        np.add.at(mixing, (WEIGHTS.number(points * np.exp(scale)), np.arange(len(middle))), 0.25)

    def deviation(matrix: Floats | None) -> float:
        share, _ = smoothed(counts, counts.sum(), 1.0, WEIGHTS, matrix)
        return float(np.sqrt(share @ (middle - share @ middle) ** 2))

    assert deviation(mixing) == pytest.approx(shape, rel=0.15)
    assert deviation(None) > 2.0 * shape


def test_errors_hold_half_of_what_the_shape_tells_beyond_the_limits() -> None:
    """Exactly, where histograms have no noise; and nothing where limits hold every value."""
    weight, outcome = np.array([1.0, 2.0, 9.0]), np.array([10.0, 20.0, 70.0])
    blur = Blur(weight, np.zeros((3, 3)), outcome, np.zeros((3, 3)))
    cell = Cell(weight, outcome, 0.0, 100.0, scaled=True, records=3, blur=blur)
    mean, observed = (1 * 10 + 2 * 20 + 9 * 70) / 12, (1 * 10 + 2 * 20 + 9 * 40) / 12
    of_weight, of_outcome = np.sqrt(cell.blurred((20.0, 3.0, 20.0)))
    assert of_weight == pytest.approx(0.5 * (1.0 - (1 + 2 + 3) / 12))
    assert of_outcome == pytest.approx(0.5 * (mean - observed))
    assert (cell.blurred((50.0, 9.0, 50.0)) == 0.0).all()
