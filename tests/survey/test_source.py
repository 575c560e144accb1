"""Sources: the same records from Parquet, CSV and a simulator, streamed; files that cannot be read are refused by name."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.survey import csv_file, source as sources
from dpdist.survey.csv_file import CsvSource
from dpdist.survey.source import ParquetSource, SimulatedSource, Source, open_source

ROWS = pd.DataFrame(
    {
        "sex": ["f", "m", None, "f, or m", "ü"] * 20,
        "salary": [1.5, 2.0, 3.25, None, 1e5] * 20,
        "unused": range(100),
    }
)
SIMULATE = {"kind": "doctorates", "population": 2000, "sample": 100, "seed": 1}


def make_job(**input: Any) -> Job:
    return Job.model_validate(
        {
            "dataset": "tiny",
            "period": "2020",
            "input": input,
            "columns": {"salary": {"bounds": [0, 1e6]}},
            "survey": {"weight": "weight"},
            "outcome": "salary",
            "model": {"family": "lognormal"},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "1"},
            "tables": [{"name": "t", "statistics": ["count"]}],
        }
    )


def write(folder: Path, name: str) -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(ROWS.to_csv(index=False).encode()))
    elif name.endswith(".csv"):
        ROWS.to_csv(path, index=False)
    else:
        ROWS.to_parquet(path)
    return path


def together(source: Source, columns: list[str]) -> dict[str, list[Any]]:
    return pa.Table.from_batches(source.batches(columns)).to_pydict()


KINDS = {"survey.parquet": ParquetSource, "survey": ParquetSource, "survey.csv": CsvSource, "survey.CSV": CsvSource}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_kind_of_a_file_is_told_by_its_name(tmp_path: Path, name: str, kind: type) -> None:
    (tmp_path / name).write_bytes(write(tmp_path, "x.csv" if kind is CsvSource else "x.parquet").read_bytes())
    source = open_source(make_job(path=str(tmp_path / name)))
    assert isinstance(source, kind)
    assert source.text_only == (kind is CsvSource)
    assert source.truth is None


@pytest.mark.parametrize("name", ["survey.parquet", "survey.csv"])
def test_a_file_is_streamed_in_batches(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(make_job(path=str(write(tmp_path, name))))
    whole = together(source, ["sex", "salary"])
    monkeypatch.setattr(sources, "BATCH_ROWS", 7)
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", 100)
    assert len(list(source.batches(["sex"]))) > 10
    assert together(source, ["sex", "salary"]) == whole


def test_every_value_of_a_csv_is_text(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("state,flag,day\n01,true,2020-01-01\n10,1,x\n")
    assert together(CsvSource(path), ["state", "flag", "day"]) == {
        "state": ["01", "10"],
        "flag": ["true", "1"],
        "day": ["2020-01-01", "x"],
    }


@pytest.mark.parametrize("missing", ["", "NA", "NaN", "nan", "null", "NULL"])
def test_usual_marks_of_a_missing_value_in_csv_are_missing(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "codes.csv"
    path.write_text(f"a,b\nx,1\n{missing},2\n")
    assert together(CsvSource(path), ["a"]) == {"a": ["x", None]}


def test_a_path_given_to_the_run_comes_before_the_job(tmp_path: Path) -> None:
    path = write(tmp_path, "survey.parquet")
    for job in (make_job(path="nowhere.parquet"), make_job(simulate=SIMULATE), make_job()):
        assert open_source(job, path).name == str(path)


def test_a_file_is_identified_by_its_content_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "survey.parquet")
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    os.utime(copy, (1, 1))
    digest = ParquetSource(path).fingerprint()
    assert digest == ParquetSource(copy).fingerprint() == hashlib.sha256(path.read_bytes()).hexdigest()
    copy.write_bytes(path.read_bytes() + b"\0")
    assert CsvSource(copy).fingerprint() != digest


def test_a_simulated_survey_is_identified_by_its_settings() -> None:
    first = open_source(make_job(simulate=SIMULATE))
    assert isinstance(first, SimulatedSource)
    assert first.fingerprint() == open_source(make_job(simulate=SIMULATE)).fingerprint()
    others = [{"seed": 2}, {"sample": 99}, {"population": 1999}, {"sd": 0.41}, {"noise_sd": 0.41}]
    prints = {open_source(make_job(simulate=SIMULATE | other)).fingerprint() for other in others}
    assert len(prints | {first.fingerprint()}) == 6


def test_a_simulated_survey_streams_its_sample_and_keeps_the_truth() -> None:
    source = open_source(make_job(simulate=SIMULATE))
    found = together(source, ["weight", "sex"])
    assert list(found) == ["weight", "sex"]
    assert len(found["sex"]) == 100
    assert source.truth is not None
    assert source.truth.count.sum() == 2000


@pytest.mark.parametrize("rows", [0, 1])
def test_a_parquet_file_of_no_or_one_record_can_be_read(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "small.parquet"
    pq.write_table(pa.Table.from_pandas(ROWS.iloc[:rows]), path)
    assert sum(b.num_rows for b in ParquetSource(path).batches(["sex"])) == ParquetSource(path).rows == rows


def test_an_error_in_a_file_does_not_quote_it(tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    path.write_text("a,b\nx,1\ncanary,2,3\n")
    with pytest.raises(DataError) as caught:
        list(CsvSource(path).batches(["a"]))
    assert "canary" not in caught.value.text(show_values=False)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_list_of_many_row_groups_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass over the file opens it by the list that is already there, and asks for all small groups at once."""
    table = pa.table({"a": np.arange(500), "b": np.arange(500.0)})
    pq.write_table(table, tmp_path / "groups.parquet", row_group_size=1)
    opened, asked = list[bool](), list[object]()

    class Counted(pq.ParquetFile):
        def __init__(self, path: Path, metadata: object = None) -> None:
            opened.append(metadata is None)
            super().__init__(path, metadata=metadata)

        def iter_batches(self, *args: object, **named: object) -> object:
            asked.append(args)
            return super().iter_batches(*args, **named)

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    source = ParquetSource(tmp_path / "groups.parquet")
    assert (source.rows, list(source.columns)) == (500, ["a", "b"])
    for _ in range(3):
        assert pa.Table.from_batches(source.batches(["a"])).column("a").to_pylist() == list(range(500))
    assert (opened.count(True), opened.count(False), len(asked)) == (1, 3, 3)
