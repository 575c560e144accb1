"""The public frame survives being written as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings, strategies as st

from dpdist.core.records import Crosstab, Level
from dpdist.estimation.crosstab_table import crosstab_from_table, crosstab_table

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
LEVELS = st.one_of(
    st.lists(st.text(max_size=6), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4, unique=True),
    st.just([True, False]),
)


@st.composite
def frames(draw: st.DrawFn) -> Crosstab:
    levels: dict[str, tuple[Level, ...]] = {
        name: tuple(values)
        for name, values in draw(st.dictionaries(NAMES.filter(lambda n: n != "count"), LEVELS, max_size=3)).items()
    }
    combinations = st.tuples(*(st.integers(0, len(values) - 1) for values in levels.values()))
    rows = sorted(draw(st.sets(combinations, min_size=1, max_size=6)))
    count = draw(st.lists(st.integers(1, 2**40), min_size=len(rows), max_size=len(rows)))
    codes = {name: np.array([row[i] for row in rows], dtype=np.int32) for i, name in enumerate(levels)}
    strata = tuple(name for name in levels if draw(st.booleans()))
    design = tuple(name for name in levels if draw(st.booleans()))
    return Crosstab(codes, levels, np.array(count, dtype=np.int64), strata, design)


def assert_same(mine: Crosstab, other: Crosstab) -> None:
    assert list(mine.levels.items()) == list(other.levels.items())
    assert [[type(level) for level in levels] for levels in mine.levels.values()] == [
        [type(level) for level in levels] for levels in other.levels.values()
    ]
    assert (mine.strata, mine.design_strata) == (other.strata, other.design_strata)
    np.testing.assert_array_equal(mine.count, other.count)
    assert mine.count.dtype == np.int64
    for name, codes in other.codes.items():
        np.testing.assert_array_equal(mine.codes[name], codes)
        assert mine.codes[name].dtype == np.int32
    assert mine.stratum_labels == other.stratum_labels
    np.testing.assert_array_equal(mine.stratum, other.stratum)
    np.testing.assert_array_equal(mine.design_stratum, other.design_stratum)


@settings(max_examples=80, deadline=None)
@given(frames())
def test_a_frame_comes_back_from_its_table(crosstab: Crosstab) -> None:
    assert_same(crosstab_from_table(crosstab_table(crosstab)), crosstab)


def example(**levels: tuple[Any, ...]) -> Crosstab:
    codes = {name: np.arange(2, dtype=np.int32) for name in levels}
    return Crosstab(codes, levels, np.array([3, 4], dtype=np.int64), tuple(levels)[:1], tuple(levels)[1:])


def test_a_frame_comes_back_from_a_parquet_file(tmp_path: Path) -> None:
    crosstab = example(field=("law", "ärts"), year=(2020, 1999), citizen=(True, False))
    pq.write_table(crosstab_table(crosstab), tmp_path / "frame.parquet")
    assert_same(crosstab_from_table(pq.read_table(tmp_path / "frame.parquet")), crosstab)


def test_a_table_tells_levels_as_they_are_and_how_many_records_share_them() -> None:
    table = crosstab_table(example(field=("law", "arts"), year=(2020, 1999)))
    assert table.to_pylist() == [
        {"field": "law", "year": 2020, "count": 3},
        {"field": "arts", "year": 1999, "count": 4},
    ]


def test_levels_that_no_record_has_are_kept() -> None:
    crosstab = example(field=("law", "arts", "med"))
    assert crosstab_from_table(crosstab_table(crosstab)).levels == {"field": ("law", "arts", "med")}


def test_a_frame_without_categories_is_one_row() -> None:
    crosstab = Crosstab({}, {}, np.array([5], dtype=np.int64), (), ())
    again = crosstab_from_table(crosstab_table(crosstab))
    assert_same(again, crosstab)
    assert (len(again), again.stratum_labels) == (1, ("all",))
