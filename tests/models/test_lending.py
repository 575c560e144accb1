"""Small-area borrowing: by size and by likeness, without a threshold, named by cell, and with its own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.records import UNIT
from dpdist.reference.borrowing import complete, mixed
from dpdist.reference.clipping import Cell
from dpdist.reference.inversion import invert_clipping
from dpdist.reference.limits import Limits, Noise, choose

Named = Callable[[str], AbstractContextManager[None]]
BOUNDS = (0.0, 1e6)


def cell(seed: int, n: int, deviation: float = 0.5) -> Cell:
    """Records of a lognormal law whose weights tell nothing of outcomes."""
    rng = np.random.default_rng(seed)
    return Cell.of(np.exp(rng.normal(3.0, 0.4, n)), np.minimum(np.exp(rng.normal(9.0, deviation, n)), 1e6), BOUNDS)


def population(n: int, deviation: float) -> list[Cell]:
    """Ten large cells of one law, and one of `n` records of a law of this deviation."""
    return [*(cell(seed, 4000) for seed in range(10)), cell(99, n, deviation)]


def test_a_cell_unlike_the_others_keeps_its_own_records() -> None:
    """Its mean was that of the others' shape, 10 % off with 900 records."""
    *_, own = cells = population(900, 1.4)
    found = complete(cells)[-1]
    assert found.borrowed < 0.1
    assert found.mean == pytest.approx(own.mean, rel=0.02)


def test_a_small_cell_like_the_others_borrows_the_more_the_smaller_it_is() -> None:
    others, shares = population(4000, 0.5)[:-1], []
    for n in (30, 300, 4000):
        shares.append(np.mean([complete([*others, cell(seed, n)])[-1].borrowed for seed in range(20, 28)]))
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.1


def test_the_share_has_no_threshold() -> None:
    """A record more or less around 1,000 changes next to nothing."""
    one, other = (complete(population(n, 0.8))[-1].borrowed for n in (999, 1000))
    assert abs(one - other) < 0.05


def test_errors_hold_how_unlike_the_borrowed_shape_is() -> None:
    """Exactly: the share borrowed times the unlikeness, in the mean. Control: a cell of its own has no more than before."""
    own, other = cell(1, 400), cell(2, 400)
    chosen = choose([own], 400, Noise(8.0, 8.0))
    limits = Limits(*(np.array([value]) for value in (chosen.centre[0], chosen.cap, chosen.reach[0])))
    v, q = own.statistics(0.0, 0.0, (chosen.centre[0], chosen.cap, chosen.reach[0]))
    sums, count = 400.0 * UNIT * np.array([[1.0 - v, q]]), np.array([400.0])

    def variance(held: Cell) -> float:
        return float(invert_clipping([held], limits, sums, count, Noise(8.0, 8.0), True).sampling[0, 1, 1])

    near, far = (mixed(own, other, 0.5, unlike) for unlike in (0.0, 0.2))
    moved = invert_clipping([far], limits, sums, count, Noise(8.0, 8.0), True).scale[0, 1]
    grown = far.growth(float(moved))
    assert variance(far) - variance(near) == pytest.approx((0.5 * 0.2 * far.mean_rate * grown) ** 2, rel=1e-9)
    assert mixed(own, other, 1.0, 0.2) is own


JOB = """
dataset: borrowed
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  kind: {{levels: {kinds}}}
  miles: {{bounds: [0, 1000000], outside: clip}}
survey: {{weight: weight}}
outcome: miles
mechanism: {{name: reference_tables}}
budget: {{epsilon: "1"}}
reference: {{path: {folder}/then.parquet}}
tables:
  - {{name: one, by: [kind], statistics: [count, {{mean: miles}}]}}
runtime: {{executor: serial}}
"""


def test_the_statement_names_every_cell_that_borrows_and_how_much(tmp_path: Path, noise_of: Named) -> None:
    """Control: the same cells with many records each borrow nothing, and nothing is named."""
    kinds = ["a", "b", "c", "d"]

    def said(name: str, sizes: tuple[int, ...]) -> dict[str, object]:
        folder = tmp_path / name
        folder.mkdir()
        for file, seed in (("now", 5), ("then", 6)):
            rng, kind = np.random.default_rng(seed), np.repeat(np.arange(4), sizes)
            rows = {"kind": np.array(kinds)[kind], "weight": np.exp(rng.normal(3.0, 0.4, len(kind)))}
            deviation = np.array([0.4, 0.8, 1.2, 0.6])[kind]
            rows["miles"] = np.minimum(np.exp(9.0 + deviation * rng.standard_normal(len(kind))), 1e6)
            pd.DataFrame(rows).to_parquet(folder / f"{file}.parquet")
        with noise_of("borrowed"):
            dpdist.run(dpdist.parse_job(JOB.format(folder=folder, kinds=kinds)), folder / "ws")
        return dict(json.loads((folder / "ws" / "public" / "statement.json").read_text()))

    shares = said("small", (3000, 3000, 3000, 60))["borrowing"]
    assert isinstance(shares, dict)
    assert 0.0 < shares["miles"]["d"] <= 1.0
    assert "in_words" in shares
    assert "borrowing" not in said("large", (6000, 6000, 6000, 6000))


def drawn(rng: np.random.Generator, field: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and outcomes of one field; 30 % of the outcomes are 0, and the rest have a Pareto tail."""
    outcome = np.where(rng.random(n) < 0.3, 0.0, 2e4 * (1.0 + 0.03 * field) * (rng.pareto(2.5, n) + 1.0))
    return np.exp(rng.normal(4.0 + 0.05 * field, 0.6, n)), np.minimum(outcome, 1e6)


def errors_of_samples(records: int, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors of (log mean weight, mean outcome) against the law, with standard errors that use, and do not use, similar
    cells: (sample, field, 2) each. Twelve fields have this many reference records and 1,000 current ones, at ε = .5."""
    fields, noise = range(12), Noise(8.0, 8.0)
    truth = np.array([_means(*drawn(np.random.default_rng([9, field]), field, 400_000)) for field in fields])
    errors: list[np.ndarray] = []
    widths: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for sample in range(samples):
        rng = np.random.default_rng([5, sample])
        now = [drawn(rng, field, 1_000) for field in fields]
        cells = complete([Cell.of(*drawn(rng, field, records), BOUNDS) for field in fields])
        chosen = [choose([one], 1_000, noise) for one in cells]
        limits = Limits(*(np.array(c) for c in zip(*((c.centre[0], c.cap, c.reach[0]) for c in chosen), strict=True)))
        clipped = [limits.clipped(np.full(1_000, field), *now[field]) for field in fields]
        sums = UNIT * (np.array([[(1 - v).sum(), (v * c).sum()] for v, c in clipped]) + rng.laplace(0.0, 2.0, (12, 2)))
        for kind, of_cells in zip(widths, (cells, [replace(one, similar=None) for one in cells]), strict=True):
            inverted = invert_clipping(of_cells, limits, sums, np.full(12, 1_000.0), noise, shrinkage=True)
            variance = np.diagonal(inverted.sampling + inverted.noise, axis1=1, axis2=2) + inverted.common**2
            kind.append(np.sqrt(variance))
        errors.append(np.column_stack([np.log(inverted.estimate[:, 0]), inverted.estimate[:, 1]]) - truth)
    return np.array(errors), np.array(widths[0]), np.array(widths[1])


def _means(weight: np.ndarray, outcome: np.ndarray) -> tuple[float, float]:
    return float(np.log(weight.mean())), float(np.average(outcome, weights=weight))


@pytest.mark.parametrize("records", [10, 30])
def test_intervals_on_a_small_reference_hold_its_own_error(records: int) -> None:
    """Nominal .90, and .93 and .89 of 40 samples at 10 records. A sample's share has a standard deviation of .15, so 16
    samples hold below .80 with odds under .01. Control: without similar cells, as before, .54 and .43 were held."""
    errors, wide, narrow = errors_of_samples(records, 16)
    held, held_before = ((np.abs(errors) <= 1.645 * width).mean(axis=(0, 1)) for width in (wide, narrow))
    assert held.min() >= 0.80, held
    assert held_before.max() <= {10: 0.75, 30: 0.82}[records], held_before


def test_intervals_on_a_large_reference_are_as_wide_as_without_similar_cells() -> None:
    """Paired, and below 3 % in the mean; no random chance is left, as both are of the same samples."""
    _, wide, narrow = errors_of_samples(1_000, 4)
    assert np.abs(np.mean(wide / narrow, axis=(0, 1)) - 1.0).max() < 0.03
