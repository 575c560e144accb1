"""Cells and margins are what grouping the records one by one would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import given, settings, strategies as st

from dpdist.core.records import TOTAL, Cells, Crosstab, cross, split_by

LEVELS: dict[str, tuple[Any, ...]] = {"field": ("med", "arts", "law"), "year": (3, 1), "citizen": (True, False)}


def crosstab_of(records: pd.DataFrame) -> Crosstab:
    """The frame of records given as codes."""
    counts = records.groupby(list(LEVELS)).size().reset_index(name="n")
    codes = {name: counts[name].to_numpy(dtype=np.int32) for name in LEVELS}
    return Crosstab(codes, LEVELS, counts["n"].to_numpy(dtype=np.int64), ("field",), ())


records = st.lists(
    st.tuples(*(st.integers(0, len(levels) - 1) for levels in LEVELS.values())), min_size=1, max_size=40
).map(lambda rows: pd.DataFrame(rows, columns=list(LEVELS)))
groupings = st.lists(st.sampled_from(list(LEVELS)), unique=True, max_size=3)


def labelled(drawn: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({name: [str(levels[code]) for code in drawn[name]] for name, levels in LEVELS.items()})


@settings(max_examples=60, deadline=None)
@given(drawn=records, by=groupings, margins=st.booleans())
def test_every_cell_and_margin_counts_the_records_that_grouping_finds(
    drawn: pd.DataFrame, by: list[str], margins: bool
) -> None:
    crosstab = crosstab_of(drawn)
    cells = cross(crosstab, by, margins)
    found = dict(zip(cells.labels, cells.membership @ crosstab.count, strict=True))
    text = labelled(drawn)
    expected = {label: sum_of(text, by, label) for label in cells.labels}
    assert found == expected
    axes = [[str(level) for level in LEVELS[name]] + [TOTAL] * margins for name in by]
    assert len(cells) == len(found) == np.prod([len(axis) for axis in axes], dtype=int)


def sum_of(text: pd.DataFrame, by: list[str], label: tuple[str, ...]) -> int:
    """Records of a cell by pandas: grouped by the columns that are not totals."""
    kept = [(name, level) for name, level in zip(by, label, strict=True) if level != TOTAL]
    if not kept:
        return len(text)
    sizes = text.groupby([name for name, _ in kept]).size()
    key = tuple(level for _, level in kept)
    return int(sizes.get(key if len(key) > 1 else key[0], 0))


@settings(max_examples=30, deadline=None)
@given(drawn=records, by=groupings, margins=st.booleans())
def test_every_record_falls_into_the_same_number_of_cells(drawn: pd.DataFrame, by: list[str], margins: bool) -> None:
    crosstab = crosstab_of(drawn)
    cells = cross(crosstab, by, margins)
    assert cells.per_record == (2 ** len(by) if margins else 1)
    np.testing.assert_array_equal(
        np.asarray(cells.membership.sum(axis=0)).ravel(), np.full(len(crosstab), cells.per_record)
    )


@settings(max_examples=30, deadline=None)
@given(drawn=records, by=groupings)
def test_without_margins_the_cells_are_those_of_the_table_with_margins_that_name_no_total(
    drawn: pd.DataFrame, by: list[str]
) -> None:
    crosstab = crosstab_of(drawn)
    whole, inner = cross(crosstab, by, True), cross(crosstab, by, False)
    kept = [i for i, label in enumerate(whole.labels) if TOTAL not in label]
    assert [whole.labels[i] for i in kept] == list(inner.labels)
    assert (whole.membership[kept].toarray() == inner.membership.toarray()).all()


def test_cells_come_in_the_declared_order_of_levels_with_the_total_last() -> None:
    crosstab = crosstab_of(pd.DataFrame([(0, 0, 0), (2, 1, 1)], columns=list(LEVELS)))
    assert cross(crosstab, ["year", "citizen"], True).labels == (
        ("3", "True"),
        ("3", "False"),
        ("3", TOTAL),
        ("1", "True"),
        ("1", "False"),
        ("1", TOTAL),
        (TOTAL, "True"),
        (TOTAL, "False"),
        (TOTAL, TOTAL),
    )


@settings(max_examples=40, deadline=None)
@given(drawn=records, by=groupings, margins=st.booleans(), groups=groupings)
def test_cells_split_by_a_grouping_are_the_cells_of_each_group(
    drawn: pd.DataFrame, by: list[str], margins: bool, groups: list[str]
) -> None:
    crosstab = crosstab_of(drawn)
    cells = cross(crosstab, by, margins)
    group, labels = crosstab.group(groups)
    pairs, cell, of = split_by(cells, group)
    found = {(int(c), int(g)): n for c, g, n in zip(cell, of, pairs @ crosstab.count, strict=True)}
    expected = {
        (c, g): float(n)
        for c, row in enumerate(cells.membership.toarray())
        for g in range(len(labels))
        if (n := crosstab.count[(row > 0) & (group == g)].sum())
    }
    assert found == expected
    assert len(found) == len(cell), "every pair once"


def test_splitting_loses_no_record_and_adds_none() -> None:
    crosstab = crosstab_of(
        pd.DataFrame([(f, y, c) for f in range(3) for y in range(2) for c in range(2)], columns=list(LEVELS))
    )
    cells: Cells = cross(crosstab, ["field", "year"], True)
    pairs, cell, _ = split_by(cells, crosstab.group(["citizen"])[0])
    again = np.bincount(cell, weights=pairs @ crosstab.count, minlength=len(cells))
    np.testing.assert_array_equal(again, cells.membership @ crosstab.count)
