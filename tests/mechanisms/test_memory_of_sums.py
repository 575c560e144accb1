"""Memory of passes that sum many tables: it is in the plan, a bound holds for every round, and blocks do not add to it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import BlockRecorder, Pass, visit_blocks
from dpdist.job.loading import parse_job
from dpdist.mechanisms.marginals.post import Network
from dpdist.mechanisms.marginals.query import TableSums, next_tables
from dpdist.mechanisms.marginals.spec import MOST_NETWORK_CELLS
from dpdist.mechanisms.parts import builder_of
from dpdist.planning.blocks import BYTES_PER_SUM

BLOCKS = 12


def text(sizes: list[int], mechanism: str, more: str = "") -> str:
    names = [f"c{k}" for k in range(len(sizes))]
    columns = "".join(
        f"  {name}: {{bounds: [0, {size - 1}], whole: true, outside: clip}}\n"
        for name, size in zip(names, sizes, strict=True)
    )
    return (
        f'dataset: many\nperiod: "1"\ncolumns:\n{columns}outcome: [{", ".join(names)}]\n'
        f"mechanism: {{{mechanism}}}\nbudget: {{epsilon: '1'}}\ntables: [{{name: t, statistics: [count]}}]\n{more}"
    )


def network(sizes: list[int], mechanism: str = "name: marginals, select: privbayes, degree: 3") -> Network:
    job = parse_job(text(sizes, mechanism))
    model = builder_of(job).build(job, Crosstab({}, {}, np.array([100]), (), ()), slice(0, 1))
    assert isinstance(model, Network)
    return model


@pytest.mark.parametrize("sizes", [[2, 3, 4, 5, 6], [50, 40, 2, 2, 90, 7], [9_000, 2, 2, 2], [12] * 8])
def test_no_round_sums_more_than_the_bound(sizes: list[int]) -> None:
    """Every round on a hundred random paths. Control: where it is large, the bound is not far above the largest."""
    model, rng, largest = network(sizes), np.random.default_rng(1), 0
    for _ in range(100):
        met = [0]
        while len(met) < len(sizes):
            keys = next_tables(model.sizes, met, model.parents, MOST_NETWORK_CELLS)
            largest = max(largest, model.cells(keys))
            met.append(int(rng.choice([k for k in range(len(sizes)) if k not in met])))
    assert largest <= model.most_sums
    assert model.most_sums <= max(20 * largest, 100_000)


def blocks(columns: int, number: int) -> list[Records]:
    rng, n = np.random.default_rng(3), 50
    made = [rng.integers(0, 10, (n, columns)).astype(float) for _ in range(number)]
    return [Records.of_outcomes(each) for each in made]


def peak(model: Network, number: int) -> tuple[int, Floats]:
    """Peak of traced memory, in bytes, of a pass over so many blocks, and its sums."""
    keys = tuple((a, b, c) for a in range(8) for b in range(a) for c in range(b))
    own, parts = model.measuring(keys), blocks(8, number)
    tracemalloc.start()
    total = visit_blocks(Pass(TableSums(own), "sum"), parts, [{} for _ in parts], [BlockRecorder()] * number)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, total


def test_blocks_do_not_add_to_the_memory_of_a_pass() -> None:
    """Control: results of all blocks together would take more than the whole pass."""
    model = network([10] * 8)
    (few, _), (many, total) = peak(model, 3), peak(model, BLOCKS)
    assert many <= 1.1 * few
    assert many <= BYTES_PER_SUM * len(total)
    assert BLOCKS * total.nbytes > many
    assert total.sum() == pytest.approx(56 * 50 * BLOCKS * 2.0**20)


def test_a_plan_that_cannot_hold_the_tables_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Control: the same file and memory with smaller tables is a plan."""
    rng = np.random.default_rng(1)
    pd.DataFrame({f"c{k}": rng.integers(0, 20, 200) for k in range(12)}).to_parquet(tmp_path / "file.parquet")
    memory = "runtime: {memory_per_worker: 450MiB}\n"
    large, small = (text([20] * 12, f"name: marginals, select: privbayes, degree: {degree}", memory) for degree in (3, 1))
    with pytest.raises(JobError, match="memory_per_worker") as told:
        dpdist.validate(large, input=tmp_path / "file.parquet")
    assert "merge levels" in str(told.value)
    dpdist.validate(small, input=tmp_path / "file.parquet")
