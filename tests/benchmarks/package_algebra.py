"""Processor time and peak memory of a package's algebra by size, without mechanism, products and noise of the engine:

    python tests/benchmarks/package_algebra.py [--sizes 1e3 100t 1e4 1e5]

*package* chooses limits, parts of the budget and centres. *predicted* has the errors of every published figure.
*learned* has the estimates from noisy measurements. `100t` has 100 tables over ten columns. Every size has a process of
its own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))

import numpy as np
from simulated_package import BOUNDS, PURE, Survey, noisy

from dpdist.core.records import Ints
from dpdist.core.this_process import single_threaded
from dpdist.packages.estimates import base_estimates
from dpdist.packages.package import Reference, package
from dpdist.packages.posterior import learned
from dpdist.packages.strategy import PerTable
from dpdist.packages.workload import PackageTable, Workload


class Size(NamedTuple):
    """Levels of the columns, the number of tables, pairs of columns first, and of records."""

    levels: tuple[int, ...]
    tables: int
    records: int


SIZES = {
    "1e3": Size((12, 8, 6, 5, 4), 10, 20_000),
    "100t": Size((2, 2, 2, 3, 3, 4, 4, 5, 5, 6), 100, 30_000),
    "1e4": Size((60, 50, 40, 5), 6, 100_000),
    "1e5": Size((300, 200, 50, 5), 6, 100_000),
}


def simulated(size: Size) -> tuple[Workload, Reference, Survey]:
    """A file and a reference of as many records, with weights and outcomes by main effects."""
    rng, columns = np.random.default_rng(1), range(len(size.levels))
    effects = [[rng.normal(0.0, spread, number) for number in size.levels] for spread in (0.7, 0.3, 0.25)]
    shares = [np.exp(effect) / np.exp(effect).sum() for effect in effects[0]]

    def drawn() -> tuple[Ints, Survey]:
        n = size.records
        codes = np.column_stack([rng.choice(len(share), n, p=share) for share in shares])
        logs = [sum(effect[k][codes[:, k]] for k in columns) for effect in effects[1:]]
        weight = 20.0 * np.exp(logs[0]) * rng.gamma(3.0, 1 / 3, n)
        outcome = 60.0 * np.exp(logs[1]) * rng.gamma(6.0, 1 / 6, n)
        return codes, Survey(np.zeros(n, dtype=np.int64), weight, np.clip(outcome, *BOUNDS))

    (codes, file), (of_reference, earlier) = drawn(), drawn()
    whole, cell = np.unique(np.concatenate([codes, of_reference]), axis=0, return_inverse=True)
    current, past = np.split(cell.reshape(-1), [len(codes)])
    place = np.full(len(whole), -1)
    occurring, place_of_current = np.unique(current, return_inverse=True)
    place[occurring] = np.arange(len(occurring))
    held = place[past] >= 0
    sets = [*combinations(columns, 2), *sorted(combinations(columns, 3), key=lambda by: prod(size.levels[k] for k in by))]
    tables = tuple(PackageTable(str(by), by) for by in sets[: size.tables])
    count = np.bincount(place_of_current).astype(np.float64)
    reference = Reference(place[past][held], earlier.weight[held], earlier.outcome[held])
    return Workload(whole[occurring], size.levels, count, tables), reference, file._replace(cell=place_of_current)


def timed(name: str) -> str:
    """A line of the table: one size's amounts, processor seconds by stage, and peak memory."""
    workload, reference, file = simulated(SIZES[name])
    published = sum(workload.published(table).shape[0] for table in workload.tables)
    with single_threaded():
        moments = [time.process_time()]
        made = package(workload, reference, [BOUNDS], PURE.law, PerTable())
        moments.append(time.process_time())
        made.predicted()
        moments.append(time.process_time())
        x = noisy(made, PURE, file, np.random.default_rng(3))
        base_estimates(learned(made.posterior, x), x, [BOUNDS])
        moments.append(time.process_time())
    seconds = "".join(f"{one:11.1f}" for one in np.diff(moments))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{name:6}{published:11,}{len(made.posterior.measured):9,}{len(workload):9,}{seconds}{peak:9.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    print(f"{'':6}{'published':>11}{'sums':>9}{'cells':>9}{'package':>11}{'predicted':>11}{'learned':>11}{'GiB':>9}")
    for name in parser.parse_args(arguments).sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            print(alone.submit(timed, name).result(), flush=True)


if __name__ == "__main__":
    main()
