"""Every published table is measured: its cells are sums of the groups of one measured set."""

from __future__ import annotations

import numpy as np

from dpdist.packages.workload import PackageTable, Workload

SIZES = (2, 4, 8, 2, 3)
BASE = np.array([[c // 4, c // 2, c, s, a] for c in range(8) for s in range(2) for a in range(3)])
"""Regions, states and counties, nested, by two further columns."""


def drawn(rng: np.random.Generator) -> tuple[PackageTable, ...]:
    """One to four tables, half of them with a universe of one level."""
    tables = []
    for number in range(rng.integers(1, 5)):
        by = tuple(sorted(rng.choice(5, rng.integers(1, 4), replace=False).tolist()))
        column = int(rng.integers(5))
        universe = ((column, (int(rng.integers(SIZES[column])),)),) if rng.random() < 0.5 else ()
        tables.append(PackageTable(f"table {number}", by, universe=universe))
    return tuple(tables)


def covers(workload: Workload, measured: tuple[int, ...], table: PackageTable) -> bool:
    published, group = workload.published(table).toarray(), workload.groups(measured)
    return all(bool((published[:, group == k] == published[:, group == k][:, :1]).all()) for k in range(group.max() + 1))


def test_cells_of_every_table_are_sums_of_one_measured_sets_groups() -> None:
    """Hierarchies and universes included. Control: without its first measured set some packages lack a table."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(300):
        tables = drawn(rng)
        workload = Workload(BASE, SIZES, np.full(len(BASE), 9.0), tables, nested=((0, 1, 2),))
        measured = workload.measured
        assert all(any(covers(workload, by, table) for by in measured) for table in tables), tables
        missed += not all(any(covers(workload, by, table) for by in measured[1:]) for table in tables)
    assert missed > 100
