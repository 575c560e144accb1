"""Jobs of many tables under `tables`: more sums than a dense covariance can hold, in bounded time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sized_package import people, sized_job

import dpdist
from dpdist.core.errors import JobError
from dpdist.core.keys import Key
from dpdist.core.progress import silent
from dpdist.core.records import Floats
from dpdist.job import Runtime
from dpdist.ledger.book import Ledger
from dpdist.mechanisms.tables import posterior
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.planning import making
from dpdist.planning.making import make_plan
from dpdist.planning.plan import sizes


def job_of(folder: Path, levels: Sequence[int], tables: int, columns: int, records: int, epsilon: str = "40") -> Path:
    """A job with the first so many tables of so many columns."""
    names = [f"c{number}" for number in range(len(levels))]
    by = list(combinations(names, columns))[:tables]
    budget = {"epsilon": epsilon, "adjacency": "substitution"}
    return sized_job(folder, levels, by, records, mechanism={"name": "tables"}, publish="always", budget=budget)


def errors_of(folder: Path, levels: Sequence[int], records: int) -> dict[str, np.ndarray]:
    """|published - direct| in published standard errors, of counts and means of cells of 20 records at least."""
    direct, found = people(levels, records, 1, 1), dict[str, list[float]](count=[], mean=[])
    for path in sorted((folder / "work" / "public" / "tables").glob("*.parquet")):
        table = pd.read_parquet(path)
        columns = [name for name in table.columns if name.startswith("c") and name[1:].isdigit()]
        table = table[(table["estimator"] == "parameters") & (table[columns] != "Total").all(axis=1)]
        cells = direct.assign(wy=direct["w"] * direct["y0"]).groupby(columns, observed=True)
        sums = cells[["w", "wy"]].sum().assign(records=cells.size())
        sums.index = sums.index.set_levels([level.astype(str) for level in sums.index.levels])
        for statistic, figure in (("count", sums["w"]), ("mean", sums["wy"] / sums["w"])):
            rows = table[table["statistic"] == statistic].set_index(columns)
            both = rows.loc[figure[sums["records"] >= 20].index]
            found[statistic].extend(np.abs(both["estimate"] - figure[both.index]) / both["standard_error"])
    return {name: np.array(values) for name, values in found.items()}


def test_parts_of_what_is_large_give_the_same_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed for some records and cells at a time, and forgotten between stages: a plan keeps parts of the budget
    alone. Control: other noise.
    """
    job = job_of(tmp_path, (4, 3, 3), 3, 2, 600)

    def published(name: str, key: int) -> Floats:
        dpdist.run(job, tmp_path / name, study=Key(bytes([key]) * 32).child("study"))
        tables = [pd.read_parquet(path) for path in sorted((tmp_path / name / "public" / "tables").glob("*.parquet"))]
        return pd.concat(tables)[["estimate", "standard_error"]].to_numpy(dtype=np.float64)

    whole, other = published("whole", 1), published("other", 2)
    settings = {
        "cells.LARGE": 1,
        "redrawn_cells.CELLS_AT_ONCE": 5,
        "measurements.LARGE": 1,
        "table_law.RECORDS_AT_ONCE": 50,
    }
    for name, value in settings.items():
        monkeypatch.setattr(f"dpdist.mechanisms.tables.{name}", value)
    kept, forget = list[tuple[bool, bool]](), ResidualCells.forget_errors

    def forgotten(model: ResidualCells) -> None:
        parts = model.plan.asked.parts
        forget(model)
        kept.append((model.plan.asked.parts == parts, "at_equal" in model.plan.__dict__))

    monkeypatch.setattr(ResidualCells, "forget_errors", forgotten)
    assert published("parts", 1) == pytest.approx(whole, rel=1e-9, nan_ok=True)
    assert kept == [(True, False)]
    assert other != pytest.approx(whole, rel=1e-3, nan_ok=True)


@pytest.mark.long
def test_a_job_of_40_tables_is_released_by_products_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals hold direct figures: errors in published standard errors are at most 1 in the median.

    Published errors hold the sample's, which figures do not have here, so that they are below the normal's .67.
    """
    levels = (4, 4, 3, 3, 3, 2, 2, 2)
    monkeypatch.setattr(posterior, "MOST_DENSE", 1_000)
    job = job_of(tmp_path, levels, 40, 3, 1_500)
    model = make_plan(dpdist.load_job(job), None, silent).model
    assert isinstance(model, ResidualCells)
    assert len(model.measured) == 40
    assert model.sums > 1_000
    solved, sides = posterior.solved, list[int]()

    def counted(times: Callable[[Floats], Floats], diagonal: Floats, right: Floats, *more: Any) -> Floats:
        sides.append(right.size // len(right))
        return solved(times, diagonal, right, *more)

    monkeypatch.setattr(posterior, "solved", counted)
    dpdist.run(job, tmp_path / "work")
    assert 1 in sides
    assert sum(sides) >= 2 * posterior.FEWEST_DRAWS
    for values in errors_of(tmp_path, levels, 1_500).values():
        assert len(values) > 300
        assert np.median(values) <= 0.8
        assert (values <= 4.0).mean() > 0.99


def test_sums_beyond_what_is_supported_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = dpdist.load_job(job_of(tmp_path, (3, 4), 1, 2, 200))
    model = make_plan(job, None, silent).model
    assert isinstance(model, ResidualCells)
    assert not model.too_large
    monkeypatch.setattr("dpdist.mechanisms.tables.cells.MOST_SUMS", model.sums - 1)
    assert model.too_large == f"{model.sums} sums to measure, and 'tables' permits {model.sums - 1}"


def test_a_job_that_memory_cannot_hold_is_refused_before_its_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker's memory, or without workers by this machine's. Control: with enough of it, the job has a plan."""
    path = job_of(tmp_path, (3, 4), 1, 2, 200)
    serial = dpdist.load_job(path)
    needed = make_plan(serial, None, silent).driver_bytes
    shown = f"{-(-needed // 2**20):,} MiB"
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    ledger.begin()
    monkeypatch.setenv("DPDIST_LEDGER", ledger.name)
    monkeypatch.setattr(making, "container_memory", lambda: needed - 1)
    with pytest.raises(JobError, match=f"the run needs {shown}, this machine has"):
        dpdist.run(serial, tmp_path / "work")
    workers = Runtime(executor="dask", workers=2, memory_per_worker=needed - 1)
    with pytest.raises(JobError, match=f"needs {shown}, a worker has"):
        dpdist.run(serial.model_copy(update={"runtime": workers}), tmp_path / "work")
    assert len(ledger.entries()) == 1
    monkeypatch.setattr(making, "container_memory", lambda: needed)
    assert make_plan(serial, None, silent).model.sums == 26


def test_a_plan_says_how_sums_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = dpdist.load_job(job_of(tmp_path, (3, 4), 1, 2, 200))
    text = "26 noisy sums determine 12 base cells ({})"  # two of each cell and of all records
    assert sizes(make_plan(job, None, silent))["estimation"] == text.format("one matrix factorisation")
    monkeypatch.setattr("dpdist.mechanisms.tables.costs.MOST_DENSE", 25)
    assert sizes(make_plan(job, None, silent))["estimation"] == text.format("conjugate gradients")


MEASURED = """
import json, resource, sys, time
import numpy as np
import scipy
import dpdist
from dpdist.core.errors import JobError
from dpdist.core.this_process import single_threaded

with single_threaded():
    matrix, start = np.eye(2_000) + 1e-3, time.process_time()
    for _ in range(5):
        scipy.linalg.cholesky(matrix)
    unit, start = time.process_time() - start, time.process_time()
    dpdist.run(sys.argv[1], sys.argv[2])
print(json.dumps([(time.process_time() - start) / unit, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
"""A run's processor time in five Cholesky factors of 2,000 rows, and its peak memory in MiB."""


@pytest.mark.slow
def test_100_tables_take_bounded_time_and_memory(tmp_path: Path) -> None:
    """46,800 sums over 12,000 base cells, published and evaluated. A dense covariance of them alone has 17.5 GB."""
    job = job_of(tmp_path, (20, 10, 8, 6, 5, 4, 3, 3, 2, 2), 100, 3, 12_000, "4")
    model = make_plan(dpdist.load_job(job), None, silent).model
    assert isinstance(model, ResidualCells)
    assert len(model.measured) == 100
    assert model.sums > 40_000
    command = [sys.executable, "-c", MEASURED, str(job), str(tmp_path / "work")]
    ratio, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert peak <= 2_000
    assert ratio <= 300.0
    # The projection is not below what the run took, nor four times as much.
    assert peak <= model.cost(12_000).bytes / 2**20 <= 4.0 * peak
