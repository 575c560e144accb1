"""Laws of `tables` over random populations, each with a control that breaks it. Errors are in direct standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from table_populations import Population, Release, base_cells, model_of, release, tables_of

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.bounds import within_bounds


def test_residuals_of_the_reference_are_those_of_other_records() -> None:
    """Of heavy weights in crosses of one record, in the median over 4 populations: the mean is within .3 standard errors of
    0, and the deviation within 15 % of that in another sample. Control: with the record's own influence in the scale, the
    mean is beyond .3, and what limits hide would be overstated by as much.
    """
    means, ratios, controls = [], [], []
    for seed in range(4):
        case: dict[str, Any] = {"weights": "wide", "kinds": ["income"], "records": (3_000, 3_000), "sparse": False}
        population = Population.of(seed, **case, sizes=(15, 9, 6, 6, 4, 3), number=6, drift="none")
        files = population.files()
        prediction = model_of(population.public, files, 1.0).system.prediction
        base = base_cells(files.current.codes)[1]
        shown = prediction.residuals[:, 0] * prediction.at_reference[:, 1, 0]
        new = files.current.weight - prediction.means[base, 0]
        unit = files.reference.weight.std() / np.sqrt(len(shown))
        means.append(shown.mean() / unit)
        ratios.append(shown.std() / new.std())
        inside = prediction.places >= 0
        own = prediction.residuals[inside, 0] * prediction.spread[prediction.places[inside], 0]
        controls.append(own.mean() / unit)
    assert abs(np.median(means)) <= 0.3
    assert abs(np.median(ratios) - 1.0) <= 0.15
    assert abs(np.median(controls)) > 0.3


def test_base_cells_within_bounds_keep_the_sums_of_tables() -> None:
    """Two tables' cells over noisy rare outcomes. Control: base cells cut at their bounds lose sums."""
    rng = np.random.default_rng(0)
    rows, columns = (part.ravel() for part in np.indices((12, 15)))
    size = rng.uniform(1.0, 50.0, len(rows))
    truth = size * (rng.random(len(rows)) < 0.2) * 0.3
    tables = [rows, columns]
    noise = rng.normal(0.0, 2.0, len(rows))
    # Noise that no table's cell shows, so that bounds allow all sums.
    noise -= (noise.reshape(12, 15).mean(axis=1)[rows] + noise.reshape(12, 15).mean(axis=0)[columns]) - noise.mean()
    values, predicted = truth + noise, 0.06 * size
    inside = within_bounds(values, np.zeros(len(rows)), size, predicted, tables)
    assert (inside >= 0.0).all()
    assert (inside <= size * (1.0 + 1e-12)).all()

    def lost(found: Floats) -> float:
        sums = [np.bincount(cell, weights=found) - np.bincount(cell, weights=values) for cell in tables]
        return float(max(np.abs(one).max() for one in sums))

    assert lost(inside) <= 0.02 * truth.sum() / 12
    assert lost(np.clip(values, 0.0, size)) > 0.2 * truth.sum() / 12


def assert_within_bounds(found: Release) -> None:
    """Base cells within public bounds, and sums of a table's cells that add up to those of all records."""
    sums, (least, most) = found.sums, found.model.public_weights
    assert np.isfinite(sums).all()
    count, size = sums[:, 0], found.model.count
    assert (count >= least * size * (1.0 - 1e-9)).all()
    assert (count <= most * size * (1.0 + 1e-9)).all()
    for total, (low, high) in zip(sums[:, 1:].T, found.model.bounds, strict=True):
        slack = 1e-9 * np.maximum(abs(low), abs(high)) * count
        assert (total >= low * count - slack).all()
        assert (total <= high * count + slack).all()
    for by in found.model.measured:
        cell = found.model.workload.groups(by)
        of_cells = np.column_stack([np.bincount(cell, weights=part) for part in sums.T]).sum(axis=0)
        assert of_cells == pytest.approx(sums.sum(axis=0), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "case",
    [
        {"records": (30, 400)},
        {"records": (400, 1)},
        {"records": (2, 40), "sizes": (1,), "number": 1},
        {"records": (300, 300), "weights": "constant", "kinds": ["rare yes"]},
        {"records": (400, 400), "sizes": (200, 2), "number": 2},
        {"records": (20, 900), "sizes": (60, 3), "number": 2, "sparse": True},
        {"records": (500, 500), "kinds": ["rare amount", "balance"], "weights": "two sizes"},
    ],
    ids=["small reference", "one record", "two records of reference", "constant", "200 levels", "levels unseen", "rare"],
)
def test_odd_populations_are_released_within_bounds(case: dict[str, Any]) -> None:
    population = Population.of(1, **{"sizes": (4, 3), "number": 2, "drift": "none", **case})
    found = release(population.public, population.files(), 1.0)
    assert_within_bounds(found)
    for by in tables_of(population.public):
        compared = found.comparison(by)
        assert np.isfinite(compared.published.values).all()
        assert np.isfinite(compared.published.errors).all()
