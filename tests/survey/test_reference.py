"""A reference under the current file's frame: where its records stand, and when it is the current file itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.survey.census import take_census
from dpdist.survey.reference_file import in_rows, open_reference, records_of
from dpdist.survey.same_file import hashed
from dpdist.survey.source import ParquetSource

JOB = Job.model_validate(
    {
        "dataset": "test",
        "period": "2",
        "columns": {
            "field": {"levels": ["a", "b", "c"]},
            "sex": {"levels": ["f", "m"]},
            "area": {"levels": ["x", "y"]},
            "status": {"levels": ["on", "off"]},
            "y": {"bounds": [0, 1000]},
        },
        "universe": [{"column": "status", "keep": ["on"]}],
        "survey": {"weight": "w", "design_strata": ["area"]},
        "strata": ["field"],
        "outcome": "y",
        "model": {"family": "lognormal", "predictors": ["sex"], "prior": {"name": "proper"}},
        "mechanism": {"name": "centred"},
        "budget": {"epsilon": "1"},
        "reference": {"path": "before.parquet"},
        "sampler": {"name": "stan"},
        "tables": [{"name": "t", "by": ["field", "sex"], "statistics": ["count"]}],
    }
)
NOW = "a f x, a f y, a m x, b f x, b m y, b m y"
BEFORE = "c f x, b m x, a f y, a m y, b f y, b f x, b m y off, a f x"


def table(rows: str, start: float = 1.0) -> pa.Table:
    """Records "field sex area [off]"; outcomes and weights count upwards."""
    said = [[*row.split(), "on"][:4] for row in rows.split(", ")]
    columns = {name: [row[k] for row in said] for k, name in enumerate(("field", "sex", "area", "status"))}
    numbers = np.arange(len(said)) + start
    return pa.table({**columns, "y": numbers, "w": numbers * 10})


def source(path: Path, table: pa.Table) -> ParquetSource:
    pq.write_table(table, path)
    return ParquetSource(path)


def job(path: Path) -> Job:
    assert JOB.reference is not None
    return JOB.model_copy(update={"reference": JOB.reference.model_copy(update={"path": str(path)})})


def test_records_stand_under_rows_of_the_current_frame_with_their_stratum_and_predictors(tmp_path: Path) -> None:
    """By hand: area is no predictor, so any row of field and sex serves; field c and status off are left out."""
    now, before = source(tmp_path / "now.parquet", table(NOW)), source(tmp_path / "before.parquet", table(BEFORE, 101.0))
    said = job(before.path)
    crosstab = take_census(said, now).crosstab
    found = open_reference(said, now, crosstab)
    records = in_rows(found, records_of(said, found, tmp_path))
    levels = {name: np.array(crosstab.levels[name])[crosstab.codes[name][records.row]] for name in ("field", "sex")}
    placed = {int(y): f"{f} {s}" for y, f, s in zip(records.outcome, levels["field"], levels["sex"], strict=True)}
    assert placed == {102: "b m", 103: "a f", 104: "a m", 105: "b f", 106: "b f", 108: "a f"}
    assert np.array_equal(records.weight, records.outcome * 10)
    assert (np.diff(records.row) >= 0).all()
    assert found.records == 7
    counts = found.counts(crosstab)
    assert np.array_equal(counts, np.bincount(records.row, minlength=len(crosstab)))


@pytest.mark.parametrize(
    ("rows", "missing"), [("a f x, b f x, b m y", "field = a and sex = m"), ("a f x, a m x", "field = b")]
)
def test_a_combination_that_the_reference_lacks_is_named(rows: str, missing: str, tmp_path: Path) -> None:
    now, before = source(tmp_path / "now.parquet", table(NOW)), source(tmp_path / "before.parquet", table(rows, 101.0))
    said = job(before.path)
    with pytest.raises(DataError, match=missing):
        open_reference(said, now, take_census(said, now).crosstab)


def test_a_column_that_the_job_does_not_read_does_not_make_another_file(tmp_path: Path) -> None:
    """And a record outside the universe does not either."""
    now = source(tmp_path / "now.parquet", table(NOW))
    more = pa.concat_tables([table(NOW), table("c f x off", 900.0)]).append_column("note", pa.array(list("abcdefg")))
    before = source(tmp_path / "before.parquet", more)
    said = job(before.path)
    assert np.array_equal(np.sort(hashed(said, now).record), np.sort(hashed(said, before).record))
    with pytest.raises(DataError, match="it is the current file"):
        open_reference(said, now, take_census(said, now).crosstab)


@pytest.mark.parametrize("values", [900_000, 200])
def test_of_large_files_the_records_of_some_values_are_compared(
    values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as fit, the same values of both files; the current file is found out all the same."""
    monkeypatch.setattr("dpdist.survey.reference_file.LARGEST", 500)
    rng = np.random.default_rng(3)
    rows = ", ".join(NOW.split(", ")[k % 6] for k in range(4000))

    def drawn() -> pa.Table:
        y = pa.array(rng.integers(1, values + 1, 4000) / values * 999.0)
        return table(rows).set_column(4, "y", y).set_column(5, "w", pa.array(np.ones(4000)))

    current, other = drawn(), drawn()
    now, before = source(tmp_path / "now.parquet", current), source(tmp_path / "before.parquet", other)
    part = source(tmp_path / "part.parquet", current.take(np.arange(3900)))
    said = job(before.path)
    crosstab = take_census(said, now).crosstab
    own, its = hashed(said, now, largest=500), hashed(job(part.path), part, largest=500)
    assert 125 < len(own.record) <= 500
    assert own.divisor > 1
    assert np.isin(its.thinned(own.divisor).record, own.record).all()
    assert open_reference(said, now, crosstab).records == 4000
    with pytest.raises(DataError, match="it is the current file"):
        open_reference(job(part.path), now, crosstab)


def test_likeness_of_records_that_are_alike_anyway_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """A small file of coarse values lies within a large one without being it."""
    rng = np.random.default_rng(0)

    def coarse(size: int, values: int) -> pa.Table:
        rows = ", ".join(NOW.split(", ")[k % 6] for k in range(size))
        return table(rows).set_column(4, "y", pa.array(rng.permutation(size) % values + 1.0)).set_column(
            5, "w", pa.array(np.ones(size))
        )  # fmt: skip

    now, before = source(tmp_path / "now.parquet", coarse(30, 200)), source(tmp_path / "before.parquet", coarse(6000, 50))
    said = job(before.path)
    crosstab = take_census(said, now).crosstab
    shared = np.isin(hashed(said, now).record, hashed(said, before).record).mean()
    assert shared > 0.9
    assert open_reference(said, now, crosstab).records == 6000


@pytest.mark.parametrize("kept", ["all but the last", "all but one within", "shuffled, all but eight"])
def test_a_reference_that_is_the_current_file_but_for_a_few_coarse_records_is_refused(kept: str, tmp_path: Path) -> None:
    """Records of 50 values in four combinations, unlike no others: only how often each stands in both files tells."""
    rng = np.random.default_rng(0)
    rows = ", ".join(NOW.split(", ")[k % 6] for k in range(600))
    whole = table(rows).set_column(4, "y", pa.array(rng.integers(1, 51, 600) * 1.0)).set_column(
        5, "w", pa.array(np.ones(600))
    )  # fmt: skip
    which = {
        "all but the last": np.arange(599),
        "all but one within": np.delete(np.arange(600), 200),
        "shuffled, all but eight": rng.permutation(600)[:592],
    }
    now, before = source(tmp_path / "now.parquet", whole), source(tmp_path / "before.parquet", whole.take(which[kept]))
    said = job(before.path)
    with pytest.raises(DataError, match="it is the current file"):
        open_reference(said, now, take_census(said, now).crosstab)
