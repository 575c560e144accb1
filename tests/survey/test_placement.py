"""Two streamed passes over a file give what sorting it in memory would give."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.survey import census as censuses, csv_file, source as sources
from dpdist.survey.census import Census, place, take_census
from dpdist.survey.csv_file import CsvSource
from dpdist.survey.source import ParquetSource, Source

LEVELS: dict[str, tuple[Any, ...]] = {"field": ("med", "arts", "law"), "degree": (3, 1, 2), "citizen": (True, False)}
TYPES = {
    "field": pa.string(),
    "degree": pa.int32(),
    "citizen": pa.bool_(),
    "status": pa.string(),
    "salary": pa.float64(),
    "weight": pa.float64(),
    "town": pa.string(),
}


def make_job(**changes: Any) -> Job:
    said: dict[str, Any] = {
        "dataset": "tiny",
        "period": "2020",
        "columns": {
            **{name: {"levels": levels, "missing": "drop"} for name, levels in LEVELS.items()},
            "salary": {"bounds": [10, 100], "missing": "drop", "zeros": "drop", "outside": "clip"},
        },
        "universe": [{"column": "status", "keep": ["employed", "retired"]}],
        "survey": {"weight": "weight", "design_strata": ["citizen"], "psu": "town"},
        "strata": ["field"],
        "outcome": "salary",
        "model": {"family": "lognormal", "predictors": ["degree"]},
        "mechanism": {"name": "weighted"},
        "budget": {"epsilon": "1"},
        "tables": [{"name": "t", "by": ["degree", "citizen"], "statistics": ["count"]}],
    }
    return Job.model_validate(said | changes)


@contextmanager
def batches_of(rows: int) -> Iterator[None]:
    """Batches as small as the formats allow, so that every file spans many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_ROWS", rows)
        patch.setattr(censuses, "TALLIES", 2)
        patch.setattr(csv_file, "CSV_BLOCK_BYTES", 64 + 16 * rows)
        yield


def write(folder: Path, rows: pd.DataFrame, kind: str) -> Source:
    if kind == "csv":
        path = folder / "survey.csv"
        rows.to_csv(path, index=False)
        return CsvSource(path)
    arrays = {name: pa.array(rows[name].tolist(), type=TYPES[name], from_pandas=True) for name in rows}
    if kind == "dictionary":
        arrays = {k: v.dictionary_encode() if TYPES[k] in (pa.string(), pa.int32()) else v for k, v in arrays.items()}
    path = folder / "survey.parquet"
    pq.write_table(pa.table(arrays), path, row_group_size=4)
    return ParquetSource(path)


row = st.fixed_dictionaries(
    {
        "field": st.sampled_from([*LEVELS["field"], None]),
        "degree": st.sampled_from([*LEVELS["degree"], None]),
        "citizen": st.sampled_from([*LEVELS["citizen"], None]),
        "status": st.sampled_from(["employed", "retired", "student", None]),
        "salary": st.sampled_from([None, 0.0, 5.0, 10.0, 33.25, 34.5, 100.0, 250.0]),
        "weight": st.sampled_from([0.5, 1.0, 2.25, 8.0]),
        "town": st.sampled_from(["a", "b", "10", "9"]),
    }
)


@dataclass(frozen=True)
class Expected:
    """The oracle: the file filtered and sorted in memory."""

    removed: dict[str, int]
    records: pd.DataFrame
    """Kept records in frame order with `record` and a code per category."""


def oracle(job: Job, rows: pd.DataFrame) -> Expected:
    left = rows.copy()
    left["record"] = np.arange(len(left))
    removed: dict[str, int] = {}

    def drop(where: pd.Series, what: str) -> None:
        nonlocal left
        if where.any():
            removed[what] = int(where.sum())
        left = left[~where]

    for keep in job.universe:
        drop(~left[keep.column].isin(keep.keep), f"{keep.column}: outside the universe")
    drop(left["salary"].isna(), "salary: missing, dropped")
    drop(left["salary"] == 0, "salary: zeros, dropped")
    low, high = job.outcome_column.bounds or (0.0, 0.0)
    outside = (left["salary"] < low) | (left["salary"] > high)
    if outside.any():
        removed["salary: outside its bounds, clipped"] = int(outside.sum())
    left["salary"] = left["salary"].astype(float).clip(low, high)
    further = [name for name, column in job.columns.items() if column.missing == "drop" and name not in job.categories]
    for name in [*job.categories, *further]:
        drop(left[name].isna(), f"{name}: missing, dropped")
    for name in job.categories:
        left[f"{name} code"] = [LEVELS[name].index(level) for level in left[name]]
    by = [f"{name} code" for name in job.categories]
    return Expected(removed, left.sort_values(by, kind="stable") if by else left)


def read(job: Job, source: Source) -> tuple[Census, Records]:
    census = take_census(job, source)
    with tempfile.TemporaryDirectory() as scratch:
        placed = vars(place(job, source, census, Path(scratch)))
        return census, Records(**{name: np.array(values) for name, values in placed.items()})


def assert_equal(job: Job, expected: Expected, census: Census, records: Records) -> None:
    mine, crosstab = expected.records, census.crosstab
    assert census.removed == expected.removed
    np.testing.assert_array_equal(records.record, mine["record"])
    np.testing.assert_array_equal(records.outcome, mine["salary"].to_numpy(dtype=float))
    np.testing.assert_array_equal(records.weight, mine["weight"].to_numpy(dtype=float))
    np.testing.assert_array_equal(records.row, crosstab.expand())
    for name in job.categories:
        np.testing.assert_array_equal(crosstab.codes[name][records.row], mine[f"{name} code"])
    codes = [mine[f"{name} code"] for name in job.categories]
    assert len(crosstab) == (len(set(zip(*codes, strict=True))) if codes else 1)
    if job.survey.psu:
        assert census.psu_levels == tuple(sorted(set(mine["town"])))
        assert [census.psu_levels[code] for code in records.psu] == mine["town"].tolist()
    else:
        assert census.psu_levels == ()
        assert set(records.psu) == {-1}
    assert census.constant == constant_strata(job, mine)


def constant_strata(job: Job, records: pd.DataFrame) -> tuple[str, ...]:
    groups = records.groupby([f"{name} code" for name in job.strata]) if job.strata else [((), records)]
    flat = [(key, g["salary"].nunique() == 1 or g["weight"].nunique() == 1) for key, g in groups]
    labels = [" / ".join(str(LEVELS[n][c]) for n, c in zip(job.strata, key, strict=True)) or "all" for key, _ in flat]
    return tuple(label for label, (_, same) in zip(labels, flat, strict=True) if same)


SHAPES: list[dict[str, Any]] = [
    {},
    {"strata": ["degree", "field"], "model": {"family": "lognormal", "predictors": ["citizen"]}},
    {"strata": [], "survey": {"weight": "weight"}, "universe": [{"column": "citizen", "keep": [True]}]},
    {
        "strata": [],
        "model": {"family": "lognormal"},
        "survey": {"weight": "weight"},
        "tables": [{"name": "t", "statistics": ["count"]}],
        "universe": [{"column": "degree", "keep": [1, 2]}, {"column": "field", "keep": ["law", "med"]}],
    },
]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(row, min_size=1, max_size=40),
    shape=st.sampled_from([0, 1, 3]),
    kind=st.sampled_from(["plain", "dictionary", "csv"]),
    size=st.integers(1, 9),
)
def test_a_file_in_many_batches_becomes_the_records_of_a_stable_sort(
    rows: list[dict[str, Any]], shape: int, kind: str, size: int
) -> None:
    check_against_oracle(make_job(**SHAPES[shape]), pd.DataFrame(rows, dtype=object), kind, size)


@settings(max_examples=10, deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=20), kind=st.sampled_from(["plain", "dictionary", "csv"]))
def test_a_universe_may_name_a_boolean_column(rows: list[dict[str, Any]], kind: str) -> None:
    check_against_oracle(make_job(**SHAPES[2]), pd.DataFrame(rows, dtype=object), kind, 4)


def check_against_oracle(job: Job, table: pd.DataFrame, kind: str, size: int) -> None:
    expected = oracle(job, table)
    with tempfile.TemporaryDirectory() as folder, batches_of(size):
        source = write(Path(folder), table, kind)
        if expected.records.empty:
            with pytest.raises(DataError, match="no record is left"):
                take_census(job, source)
        else:
            assert_equal(job, expected, *read(job, source))


def clean(rows: int, seed: int = 0) -> pd.DataFrame:
    """A file that no rule touches."""
    rng = np.random.default_rng(seed)
    drawn = {name: [levels[i] for i in rng.integers(len(levels), size=rows)] for name, levels in LEVELS.items()}
    return pd.DataFrame(
        {
            **drawn,
            "status": "employed",
            "salary": rng.uniform(20, 90, rows).round(3),
            "weight": rng.uniform(1, 9, rows).round(3),
            "town": rng.choice(["a", "b", "c"], rows),
        }
    )


@pytest.mark.parametrize("kind", ["plain", "dictionary", "csv"])
def test_how_a_file_is_cut_into_batches_changes_nothing(tmp_path: Path, kind: str) -> None:
    job, source = make_job(), write(tmp_path, clean(60), kind)
    found = []
    for size in (1, 7, 65_536):
        with batches_of(size):
            assert len([b for b in source.batches(["salary"]) if b.num_rows]) > 2 or size > 7
            found.append(read(job, source))
    for census, records in found[1:]:
        assert census.psu_levels == found[0][0].psu_levels
        np.testing.assert_array_equal(census.crosstab.count, found[0][0].crosstab.count)
        for mine, other in zip(vars(records).values(), vars(found[0][1]).values(), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_parquet_plain_and_encoded_and_csv_give_the_same_records(tmp_path: Path) -> None:
    job, rows = make_job(), clean(100)
    _, first = read(job, write(tmp_path, rows, "plain"))
    for kind in ("dictionary", "csv"):
        for mine, other in zip(vars(read(job, write(tmp_path, rows, kind))[1]).values(), vars(first).values(), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_progress_counts_every_row_in_both_passes(tmp_path: Path) -> None:
    job, source = make_job(), write(tmp_path, clean(50), "plain")
    counted: list[int] = []
    with batches_of(8):
        census = take_census(job, source, counted.append)
        place(job, source, census, tmp_path, counted.append)
    assert sum(counted) == 100
    assert census.rows == 50


def test_the_census_writes_nothing(tmp_path: Path) -> None:
    source = write(tmp_path, clean(50), "plain")
    take_census(make_job(), source)
    assert [path.name for path in tmp_path.iterdir()] == ["survey.parquet"]


def test_problems_of_different_batches_are_told_together_with_rows_of_the_file(tmp_path: Path) -> None:
    rows = clean(40)
    rows.loc[[5, 17, 33, 39], "weight"] = -1.0
    rows.loc[21, "field"] = "golf"
    with batches_of(4), pytest.raises(DataError) as caught:
        take_census(make_job(), write(tmp_path, rows, "plain"))
    said = {p.where: (p.count, p.places) for p in caught.value.problems}
    assert said == {"weight": (4, ("row 6", "row 18", "row 34")), "field": (1, ("row 22",))}


def test_a_record_outside_the_universe_may_hold_anything(tmp_path: Path) -> None:
    rows = clean(10)
    rows.loc[3, ["status", "weight", "salary", "field"]] = ["student", -1.0, -1.0, "golf"]
    census, records = read(make_job(), write(tmp_path, rows, "plain"))
    assert census.removed == {"status: outside the universe": 1}
    assert sorted(records.record) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def changed(rows: pd.DataFrame, at: Sequence[int], column: str, value: object) -> pd.DataFrame:
    rows = rows.astype(object)
    rows.loc[list(at), column] = value
    return rows


def only(rows: pd.DataFrame, **levels: object) -> pd.DataFrame:
    """Records without some combinations, so that a change can bring in a new one."""
    return rows[(rows[list(levels)] == pd.Series(levels)).all(axis=1)].reset_index(drop=True)


HALF = pd.concat([only(clean(200), field="med"), only(clean(200), field="law")], ignore_index=True)
LAST_OF_MED = int((HALF["field"] == "med").sum()) - 1

CHANGES: dict[str, pd.DataFrame] = {
    "a record more": pd.concat([HALF, HALF.iloc[[0]]]),
    "a record less": HALF.iloc[:-1],
    "no record": HALF.iloc[:0],
    "half the records": HALF.iloc[::2],
    "a record in another combination": changed(HALF, [0], "field", "law"),
    "records change places": changed(changed(HALF, [0], "field", "law"), [len(HALF) - 1], "field", "med"),
    "all of a combination move to one never seen": changed(HALF, range(LAST_OF_MED + 1), "field", "arts"),
    "a level that is now missing": changed(HALF, [0], "citizen", None),
    "a weight that is now negative": changed(HALF, [0], "weight", -1.0),
    "a salary that is now missing": changed(HALF, [0], "salary", None),
    "a record that left the universe": changed(HALF, [0], "status", "student"),
    "a PSU never seen": changed(HALF, [0], "town", "z"),
}


@pytest.mark.parametrize("kind", ["plain", "csv"])
@pytest.mark.parametrize("after", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_between_the_passes_is_refused(tmp_path: Path, kind: str, after: pd.DataFrame) -> None:
    job, source = make_job(), write(tmp_path, HALF, kind)
    census = take_census(job, source)
    write(tmp_path, after, kind)
    with pytest.raises(DataError, match="changed while it was read"):
        place(job, source, census, tmp_path)


@pytest.mark.parametrize(("before", "after"), [("med", "law"), ("law", "med")])
def test_a_file_whose_records_all_move_to_combinations_never_seen_is_refused(
    tmp_path: Path, before: str, after: str
) -> None:
    first = only(clean(200), field=before, degree=1, citizen=True)
    job, source = make_job(), write(tmp_path, first, "plain")
    census = take_census(job, source)
    assert len(census.crosstab) == 1
    write(tmp_path, first.assign(field=after), "plain")
    with pytest.raises(DataError, match="changed while it was read"):
        place(job, source, census, tmp_path)


def test_a_file_that_stays_the_same_is_not_refused(tmp_path: Path) -> None:
    job, source = make_job(), write(tmp_path, HALF, "plain")
    census = take_census(job, source)
    write(tmp_path, HALF, "plain")
    assert len(place(job, source, census, tmp_path)) == len(HALF)
