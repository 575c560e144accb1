"""Costs of packages of tables, measured and projected, and the constants of `dpdist/packages/cost.py` for this machine:

    python tests/benchmarks/package_costs.py [--sizes 9]

Every size is one serial run in a process, measured by its processor seconds and its peak memory. New constants have the
least relative squares of all sizes, none below 0.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sized_package import sets_of_columns, sized_job

import dpdist
from dpdist.mechanisms.table_package.post import PackageCells
from dpdist.packages.cost import Amounts, peak_bytes, processor_seconds
from dpdist.packages.large import projected_bytes


class Size(NamedTuple):
    """Levels of columns, number of tables, records, outcomes."""

    levels: tuple[int, ...]
    tables: int
    records: int
    outcomes: int = 1


SIZES = (
    Size((4, 4, 4), 3, 3_000),
    Size((4, 4, 4), 3, 300_000),
    Size((5, 5, 5, 5), 10, 10_000),
    Size((5, 5, 5, 5), 10, 10_000, 2),
    Size((2,) * 6, 35, 6_000),
    Size((4,) * 5, 20, 6_000),
    Size((12, 12, 12), 4, 20_000),
    Size((80, 80), 1, 30_000),
    Size((10,) * 4, 10, 50_000),
)


class Measured(NamedTuple):
    """A run's amounts, bytes projected for large matrices, processor seconds and peak bytes, beside those projected."""

    amounts: Amounts
    sparse_bytes: int
    seconds: float
    peak: float
    projected_seconds: float
    projected_peak: float


def measured(folder: Path, size: Size) -> Measured:
    """A run of this size in a process of its own."""
    folder.mkdir(parents=True)
    job = sized_job(folder, size.levels, sets_of_columns(len(size.levels), size.tables), size.records, size.outcomes)
    model = dpdist.plan(str(job)).model
    assert isinstance(model, PackageCells)
    amounts = Amounts.of(model.workload, 2 * size.records, model.tried)
    line = [sys.executable, "-m", "dpdist", "run", str(job), "--workspace", str(folder / "made"), "--quiet"]
    process = subprocess.Popen(line, env=os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise RuntimeError(f"the run of {size} ended with {process.returncode}")
    projected = processor_seconds(amounts), peak_bytes(amounts, model.workload)
    sparse = projected_bytes(model.workload) if amounts.sparse else 0
    return Measured(amounts, sparse, usage.ru_utime + usage.ru_stime, 1024.0 * usage.ru_maxrss, *projected)


def fitted(runs: Sequence[Measured]) -> tuple[Amounts, Amounts]:
    """Seconds and bytes by amount with the least relative squares."""
    amounts = np.array([run.amounts for run in runs])
    seconds = np.array([run.seconds for run in runs])
    taken = [Amounts._fields.index(name) for name in ("run", "records", "figures", "entries")]
    held = np.array([max(run.peak - run.sparse_bytes, 0.5 * run.peak) for run in runs])
    constants = []
    for kept, values in ((range(len(Amounts._fields) - 1), seconds), (taken, held)):
        scale = np.maximum(amounts[:, list(kept)].max(axis=0), 1.0)
        made = np.zeros(len(Amounts._fields))
        made[list(kept)] = nnls(amounts[:, list(kept)] / scale / values[:, None], np.ones(len(runs)))[0] / scale
        constants.append(Amounts(*made.tolist()))
    return constants[0], constants[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="number of sizes, the first ones")
    runs = []
    print(f"{'levels':24}{'tables':>8}{'records':>10}{'outcomes':>10}{'seconds':>10}{'ratio':>8}{'MiB':>8}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(SIZES[: parser.parse_args().sizes]):
            run = measured(Path(folder) / str(number), size)
            runs.append(run)
            shown = f"{size.levels!s:24}{size.tables:8}{size.records:10,}{size.outcomes:10}"
            time = f"{run.seconds:10.1f}{run.projected_seconds / run.seconds:8.2f}"
            print(f"{shown}{time}{run.peak / 2**20:8.0f}{run.projected_peak / run.peak:8.2f}", flush=True)
    for name, constants in zip(("SECONDS", "BYTES"), fitted(runs), strict=True):
        print(f"{name} = Amounts({', '.join(f'{one:.2g}' for one in constants)})")


if __name__ == "__main__":
    main()
