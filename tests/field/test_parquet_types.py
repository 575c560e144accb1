"""Columns as Polars, DuckDB, Spark and pandas store them, and folders of Parquet: the same records as plain ones."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.survey.census import place, take_census
from dpdist.survey.source import Source, open_source

JOB = """
dataset: types
period: "2024"
columns:
  region: {levels: [n, s]}
  code: {levels: [1, 2, 3]}
  income: {bounds: [0, 20000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
public_frame: {accepted: test}
tables:
  - {name: pay, by: [region, code], statistics: [count, {mean: income}]}
"""
RECORDS = 600


def people() -> pa.Table:
    rng = np.random.default_rng(13)
    return pa.table(
        {
            "region": rng.choice(["n", "s"], RECORDS).tolist(),
            "code": rng.integers(1, 4, RECORDS),
            "income": (rng.gamma(2, 900, RECORDS) + 0.37).round(2),
            "weight": rng.uniform(5, 50, RECORDS).round(4),
        }
    )


def decimals(digits: int, places: int, bits: int = 128) -> Callable[[pa.ChunkedArray], pa.Array]:
    kind = pa.decimal128(digits, places) if bits == 128 else pa.decimal256(digits, places)
    return lambda values: pa.array([Decimal(f"{value:.{places}f}") for value in values.to_pylist()], kind)


def cast(kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.Array]:
    return lambda values: pc.cast(values, kind).combine_chunks()


def enumerated(entries: list[str | None], places: Callable[[str, int], int]) -> Callable[[pa.ChunkedArray], pa.Array]:
    """A dictionary with these entries, in which `places` gives the entry of every row's value."""

    def encoded(values: pa.ChunkedArray) -> pa.Array:
        index = [places(value, row) for row, value in enumerate(values.to_pylist())]
        return pa.DictionaryArray.from_arrays(pa.array(index, pa.uint32()), pa.array(entries))

    return encoded


def run_ends(values: pa.ChunkedArray) -> pa.Array:
    return pc.run_end_encode(values.combine_chunks())


STORED: dict[str, dict[str, Callable[[pa.ChunkedArray], pa.Array]]] = {
    "decimal(2, 0) codes": {"code": decimals(2, 0)},
    "decimal(3, 1) codes": {"code": decimals(3, 1)},
    "decimal(38, 0) codes": {"code": decimals(38, 0)},
    "decimal(12, 2) outcome": {"income": decimals(12, 2)},
    "decimal(40, 2) outcome": {"income": decimals(40, 2, 256)},
    "decimal(9, 4) weight": {"weight": decimals(9, 4)},
    "all decimals": {"code": decimals(2, 0), "income": decimals(12, 2), "weight": decimals(9, 4)},
    "views of texts": {"region": cast(pa.string_view())},
    "large texts": {"region": cast(pa.large_string())},
    "dictionary": {"region": lambda values: values.combine_chunks().dictionary_encode()},
    "dictionary of large texts": {
        "region": lambda values: pc.cast(values, pa.large_string()).combine_chunks().dictionary_encode()
    },
    "dictionary of views": {
        "region": lambda values: pa.DictionaryArray.from_arrays(
            pa.array([int(value == "s") for value in values.to_pylist()], pa.uint8()),
            pa.array(["n", "s"], pa.string_view()),
        )
    },
    "dictionary with an entry twice": {
        "region": enumerated(["n", "s", "n", "s"], lambda v, i: int(v == "s") + 2 * (i % 2))
    },
    "dictionary with unused entries": {"region": enumerated(["z", None, "s", "n"], lambda v, i: 2 + int(v == "n"))},
    "dictionary of numbers": {name: lambda v: v.combine_chunks().dictionary_encode() for name in ("code", "income")},
    "run ends of texts": {"region": run_ends},
    "run ends of numbers": {"code": run_ends, "weight": run_ends},
    "small integers": {"code": cast(pa.uint8())},
    "floats of codes": {"code": cast(pa.float64())},
    "half floats of codes": {"code": cast(pa.float16())},
}


def stored(table: pa.Table, forms: dict[str, Callable[[pa.ChunkedArray], pa.Array]]) -> pa.Table:
    for name, form in forms.items():
        table = table.set_column(table.schema.get_field_index(name), name, form(table[name]))
    return table


def records(job: Job, source: Source, folder: Path) -> list[np.ndarray]:
    census = take_census(job, source)
    folder.mkdir()
    placed = place(job, source, census, folder)
    return [np.array(values) for values in (placed.record, placed.row, placed.outcomes, placed.weight)]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


UNWRITTEN = ("run ends of texts", "run ends of numbers", "half floats of codes", "dictionary of views")
"""Types that Arrow writes into no Parquet file; nor does it a dictionary with a null."""


@pytest.mark.parametrize("form", STORED)
def test_a_column_is_read_whatever_its_type_in_a_table_and_in_a_file(form: str, tmp_path: Path) -> None:
    """To the last bit, as decimals are the nearest floats; a table in memory has a fingerprint, too. Of a file also
    against the same records as CSV. Control: other records.
    """
    job, table = parse_job(JOB), people()
    given = stored(table, STORED[form])
    source = open_source(job, given)
    found = records(job, source, tmp_path / "a")
    assert same(found, records(job, open_source(job, table), tmp_path / "b"))
    assert len(source.fingerprint()) == 64
    if form not in (*UNWRITTEN, "dictionary with unused entries"):
        pq.write_table(given, tmp_path / "stored.parquet")
        assert same(found, records(job, open_source(job, tmp_path / "stored.parquet"), tmp_path / "c"))
    table.to_pandas().to_csv(tmp_path / "plain.csv", index=False)
    assert same(found, records(job, open_source(job, tmp_path / "plain.csv"), tmp_path / "d"))
    assert not same(found, records(job, open_source(job, table.slice(1)), tmp_path / "e"))


@pytest.mark.parametrize("kind", ["table", "frame", "dictionary", "run ends"])
def test_truth_values_are_an_outcome_of_ones_and_zeros(kind: str, tmp_path: Path) -> None:
    job = parse_job(JOB.replace("[0, 20000]", "[0, 1]"))
    truth = pc.greater(people()["income"], 1500)
    table = people().set_column(2, "income", truth)
    given = {"table": table, "frame": table.to_pandas(), "dictionary": table, "run ends": table}[kind]
    if kind in ("dictionary", "run ends"):
        encode = run_ends if kind == "run ends" else lambda values: values.combine_chunks().dictionary_encode()
        given = stored(table, {"income": encode})
    numbers = people().set_column(2, "income", truth.cast(pa.int8()))
    expected = records(job, open_source(job, numbers), tmp_path / "b")
    assert same(records(job, open_source(job, given), tmp_path / "a"), expected)


def test_fractions_of_a_decimal_are_no_level() -> None:
    given = people().set_column(1, "code", pc.add(people()["code"], 0.5))
    with pytest.raises(DataError, match="code: the file contains values that are not among the declared levels"):
        take_census(parse_job(JOB), open_source(parse_job(JOB), stored(given, {"code": decimals(3, 1)})))


@pytest.mark.parametrize("values", [pa.array([b"n"] * RECORDS), pa.array([["n"]] * RECORDS), pa.nulls(RECORDS)])
@pytest.mark.parametrize("use", ["region", "psu", "universe"])
def test_a_type_that_is_not_read_is_refused_by_name(values: pa.Array, use: str) -> None:
    text = JOB
    if use != "region":
        add = ("weight: weight", "weight: weight, psu: further") if use == "psu" else ("tables:", UNIVERSE)
        text = text.replace(*add)
    name = "region" if use == "region" else "further"
    table = people().set_column(0, "region", values) if use == "region" else people().append_column("further", values)
    with pytest.raises(DataError, match=rf"{name}: (wrong type|missing values)|no record is left"):
        take_census(parse_job(text), open_source(parse_job(text), table))


UNIVERSE = "universe: [{column: further, keep: [n]}]\ntables:"


class Foreign:
    """A frame of another library, as Polars' is: Arrow may take its columns, texts as views."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_a_frame_of_another_library_is_read(tmp_path: Path) -> None:
    job = parse_job(JOB)
    given: Any = Foreign(stored(people(), STORED["views of texts"]))
    expected = records(job, open_source(job, people()), tmp_path / "b")
    assert same(records(job, open_source(job, given), tmp_path / "a"), expected)


FOLDERS = {
    "by texts": ["region"],
    "by codes": ["code"],
    "by both": ["region", "code"],
}


def partitioned(table: pa.Table, by: list[str], folder: Path) -> None:
    pq.write_to_dataset(table, folder, partition_cols=by)


def sums(job: Job, source: Source) -> dict[tuple[Any, ...], tuple[int, float]]:
    """Records and the sum of weighted outcomes of every cell."""
    found = dict[tuple[Any, ...], tuple[int, float]]()
    for batch in source.batches(["region", "code", "income", "weight"]):
        for region, code, income, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            number, total = found.get((region, code), (0, 0.0))
            found[region, code] = (number + 1, total + income * weight)
    assert sum(number for number, _ in found.values()) == take_census(job, source).crosstab.count.sum() == source.rows
    return {cell: (number, round(total, 6)) for cell, (number, total) in found.items()}


@pytest.mark.parametrize("by", FOLDERS)
@pytest.mark.parametrize("name", ["people", "people.parquet"])
def test_a_folder_with_columns_in_its_subfolders_is_one_file(by: str, name: str, tmp_path: Path) -> None:
    """With notes of the programs that write such folders. Control: a file taken out changes the fingerprint."""
    job = parse_job(JOB)
    partitioned(people(), FOLDERS[by], tmp_path / name)
    for note in ("_SUCCESS", "_common_metadata", ".part-0.parquet.crc"):
        (tmp_path / name / note).write_bytes(b"")
    source = open_source(job, tmp_path / name)
    assert sums(job, source) == sums(job, open_source(job, people()))
    before = source.fingerprint()
    assert before == open_source(job, tmp_path / name).fingerprint()
    sorted((tmp_path / name).rglob("*.parquet"))[0].unlink()
    assert before != open_source(job, tmp_path / name).fingerprint()


def test_files_of_a_folder_follow_each_other_by_name_and_may_have_wider_types(tmp_path: Path) -> None:
    job, table = parse_job(JOB), people()
    (folder := tmp_path / "people").mkdir()
    pq.write_table(stored(table.slice(0, 200), {"code": cast(pa.int8())}), folder / "part-0.parquet")
    pq.write_table(stored(table.slice(200, 200), STORED["floats of codes"]), folder / "part-1.pq")
    pq.write_table(stored(table.slice(400), STORED["dictionary"]), folder / "part-2")
    expected = records(job, open_source(job, table), tmp_path / "b")
    assert same(records(job, open_source(job, folder), tmp_path / "a"), expected)


def test_values_of_subfolders_are_texts_where_they_are_no_plain_numbers(tmp_path: Path) -> None:
    """01 stays 01, a blank and an accent are read, and the mark of no value is a missing value."""
    text = JOB.replace("levels: [n, s]", "levels: ['01', 'São Paulo'], missing: drop")
    for number, name in enumerate(["01", "S%C3%A3o%20Paulo", "__HIVE_DEFAULT_PARTITION__"]):
        (folder := tmp_path / "people" / f"region={name}").mkdir(parents=True)
        pq.write_table(people().slice(100 * number, 100).drop_columns("region"), folder / "0.parquet")
    crosstab = take_census(parse_job(text), open_source(parse_job(text), tmp_path / "people")).crosstab
    assert np.bincount(crosstab.codes["region"], weights=crosstab.count).tolist() == [100, 100]


def test_a_column_of_a_subfolder_may_stand_in_the_file_too(tmp_path: Path) -> None:
    """Control: with other values there, the file is refused by name."""
    job = parse_job(JOB)
    for region in ("n", "s"):
        (folder := tmp_path / "people" / f"region={region}").mkdir(parents=True)
        pq.write_table(people().filter(pc.equal(people()["region"], region)), folder / "0.parquet")
    assert sums(job, open_source(job, tmp_path / "people")) == sums(job, open_source(job, people()))
    (tmp_path / "people" / "region=s").rename(tmp_path / "people" / "region=x")
    with pytest.raises(DataError, match=r"records of region=x/0.parquet have values of 'region' that differ"):
        take_census(job, open_source(job, tmp_path / "people"))


def _without_a_column(folder: Path) -> None:
    pq.write_table(people().drop_columns("code"), folder / "b.parquet")


def _of_another_type(folder: Path) -> None:
    pq.write_table(people().set_column(1, "code", people()["code"].cast(pa.string())), folder / "b.parquet")


def _deeper(folder: Path) -> None:
    (folder / "year=2020").mkdir()
    pq.write_table(people(), folder / "year=2020" / "b.parquet")


REFUSED: dict[str, Callable[[Path], object]] = {
    "b.parquet has no column 'code', and other files have": _without_a_column,
    "column 'code' is int64 in other files, and string in b.parquet": _of_another_type,
    "files that are not Parquet: notes.txt": lambda folder: (folder / "notes.txt").write_text("x"),
    "b.parquet(.|\n)*not a readable Parquet file": lambda folder: (folder / "b.parquet").write_bytes(b"x"),
    "subfolders whose columns differ from those of a.parquet": _deeper,
    "a table of Delta Lake": lambda folder: (folder / "_delta_log").mkdir(),
    "a folder without Parquet files": lambda folder: (folder / "a.parquet").unlink(),
}


@pytest.mark.parametrize("told", REFUSED)
def test_a_folder_that_is_no_file_is_refused_by_name(told: str, tmp_path: Path) -> None:
    (folder := tmp_path / "people").mkdir()
    pq.write_table(people(), folder / "a.parquet")
    REFUSED[told](folder)
    with pytest.raises(DataError, match=told) as refused:
        take_census(parse_job(JOB), open_source(parse_job(JOB), folder))
    assert "a folder of Parquet files" in refused.value.text()


FRAMES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "categories in another order": ("", lambda rows: rows["region"].astype("category").cat.set_categories(["s", "x", "n"])),
    "texts of Arrow": ("", lambda rows: rows["region"].astype(pd.ArrowDtype(pa.string()))),
    "texts": ("", lambda rows: rows["region"].astype(object)),
    "whole numbers with gaps": ("[0, 1]", lambda rows: (rows["region"] == "s").astype("Int64")),
    "categories of floats": ("[0, 1]", lambda rows: (rows["region"] == "s").astype(float).astype("category")),
    "truth values": ("[false, true]", lambda rows: (rows["region"] == "s").astype("boolean")),
    "categories of truth values": ("[false, true]", lambda rows: (rows["region"] == "s").astype("category")),
}


@pytest.mark.parametrize("form", FRAMES)
def test_a_column_is_read_whatever_its_type_in_a_data_frame(form: str, tmp_path: Path) -> None:
    levels, column = FRAMES[form]
    frame = people().to_pandas()
    job = parse_job(JOB.replace("[n, s]", levels or "[n, s]"))
    expected = records(parse_job(JOB), open_source(parse_job(JOB), frame), tmp_path / "b")
    assert same(records(job, open_source(job, frame.assign(region=column(frame))), tmp_path / "a"), expected)
