"""Files of SAS, Stata and SPSS are read as the same records in Parquet are, in chunks; missing values can be a level."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyreadstat
import pytest

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError, JobError
from dpdist.job import Job
from dpdist.job.data import NOT_REPORTED, Column
from dpdist.job.loading import parse_job
from dpdist.release import run
from dpdist.survey import typed_file
from dpdist.survey.census import place, take_census
from dpdist.survey.source import open_file, open_source

FILES = Path(__file__).parent / "files"
JOB = """
dataset: people
period: "2024"
columns:
  region: {levels: [Öst, Väst]}
  sex: {levels: [1, 2]}
  income: {bounds: [0, 1000000], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {path: earlier.parquet}
tables: [{name: t, by: [region, sex], statistics: [count, {mean: income}]}]
runtime: {executor: serial}
"""
WRITERS = {
    ".dta": pyreadstat.write_dta,
    ".sav": pyreadstat.write_sav,
    ".zsav": lambda crosstab, path: pyreadstat.write_sav(crosstab, path, compress=True),
    ".xpt": pyreadstat.write_xport,
}


def people(seed: int = 1, records: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "region": rng.choice(["Öst", "Väst"], records),
            "sex": rng.integers(1, 3, records),
            "income": np.exp(rng.normal(10.3, 0.5, records)).round(),
            "weight": rng.uniform(5.0, 60.0, records).round(1),
            "unused": rng.integers(0, 9, records),
        }
    )


def records(job: Job, path: Path, folder: Path) -> Records:
    source = open_source(job, path)
    return place(job, source, take_census(job, source), folder)


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("chunk", [65_536, 7])
def test_a_file_of_a_statistical_program_has_the_records_of_its_twin_in_parquet(
    suffix: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the chunks; control: another file of the same law has other records."""
    monkeypatch.setattr(typed_file, "CHUNK_ROWS", chunk)
    job = parse_job(JOB)
    WRITERS[suffix](people(), str(tmp_path / f"people{suffix}"))
    people().to_parquet(tmp_path / "people.parquet")
    people(2).to_parquet(tmp_path / "others.parquet")
    found = []
    for name in (f"people{suffix}", "people.parquet", "others.parquet"):
        (folder := tmp_path / f"of-{name}").mkdir()
        found.append(records(job, tmp_path / name, folder))
    for name in ("record", "row", "outcomes", "weight"):
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name)), name
    assert not np.array_equal(found[1].outcome, found[2].outcome)


def test_input_and_reference_of_statistical_programs_make_a_release(tmp_path: Path) -> None:
    pyreadstat.write_sav(people(1), str(tmp_path / "current.sav"))
    pyreadstat.write_dta(people(2), str(tmp_path / "earlier.dta"))
    job = parse_job(JOB.replace("earlier.parquet", str(tmp_path / "earlier.dta")))
    release = run(job, tmp_path / "ws", input=tmp_path / "current.sav", counted=False)
    table = release.tables["t"]
    assert len(table[table["statistic"] == "count"]) > 0
    said = json.loads((tmp_path / "ws" / "public" / "manifest.json").read_text(encoding="utf-8"))
    assert not {"encoding", "separator"} & set(said["job"]["reference"])


def test_the_file_that_is_its_own_reference_is_refused_in_another_format(tmp_path: Path) -> None:
    people(1).to_parquet(tmp_path / "current.parquet")
    pyreadstat.write_dta(people(1), str(tmp_path / "earlier.dta"))
    job = parse_job(JOB.replace("earlier.parquet", str(tmp_path / "earlier.dta")))
    with pytest.raises(DataError, match="it is the current file, or contains records from it"):
        run(job, tmp_path / "ws", input=tmp_path / "current.parquet", counted=False)


def test_a_file_of_sas_is_read_and_its_dates_are_numbers(tmp_path: Path) -> None:
    """iris of SAS, as the package haven ships it: 150 flowers of three kinds."""
    path = tmp_path / "iris.sas7bdat"
    path.write_bytes(gzip.decompress((FILES / "iris.sas7bdat.gz").read_bytes()))
    source = open_file(path)
    assert list(source.columns)[-1] == "Species"
    frame = pa.Table.from_batches(source.batches(source.columns)).to_pandas()
    assert source.rows == len(frame) == 150
    assert frame["Species"].value_counts().tolist() == [50, 50, 50]
    assert frame.iloc[:, 0].mean() == pytest.approx(5.8433333)


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few at a time, whatever the file's size: memory is bounded by a chunk of them."""
    pyreadstat.write_sav(people(records=1_000), str(tmp_path / "people.sav"))
    asked, real = [], pyreadstat.read_sav

    def watched(path: str, **how: object) -> object:
        asked.append((how.get("usecols"), how.get("row_limit")))
        return real(path, **how)

    monkeypatch.setattr(pyreadstat, "read_sav", watched)
    monkeypatch.setattr(typed_file, "CHUNK_VALUES", 200)
    sizes = [batch.num_rows for batch in open_file(tmp_path / "people.sav").batches(["income", "sex"])]
    assert (sum(sizes), max(sizes)) == (1_000, 100)
    assert set(map(str, asked[1:])) == {"(['income', 'sex'], 100)"}


@pytest.mark.parametrize("suffix", [*WRITERS, ".sas7bdat"])
def test_a_damaged_file_is_refused_with_cause_and_remedy(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"people{suffix}"
    path.write_bytes(b"region,sex\nzxq-canary,1\n" * 50)
    with pytest.raises(DataError) as refused:
        open_source(parse_job(JOB), path)
    (found,) = refused.value.problems
    assert found.fault == f"not a readable {suffix} file"
    assert "Parquet or CSV" in found.remedy
    assert "canary" not in refused.value.text()


def test_without_pyreadstat_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.dta").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyreadstat", None)
    with pytest.raises(DataError, match=r"need pyreadstat.*\n.*\n.*pip install 'dpdist\[formats\]'"):
        open_source(parse_job(JOB), tmp_path / "people.dta")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".sav"])
@pytest.mark.parametrize("levels", ["[1, 2]", "{range: [1, 2]}", '["1", "2"]'])
def test_missing_values_can_be_a_level_of_their_own(suffix: str, levels: str, tmp_path: Path) -> None:
    """In every format; control: without the rule they are refused, and the remedy names it."""
    frame = people().assign(sex=people()["sex"].where(np.arange(400) % 4 > 0))
    path = tmp_path / f"people{suffix}"
    {".parquet": frame.to_parquet, ".csv": lambda at: frame.to_csv(at, index=False, float_format="%.16g")}.get(
        suffix, lambda at: pyreadstat.write_sav(frame, str(at))
    )(path)
    text = JOB.replace("[1, 2]", levels)
    job = parse_job(text.replace(f"sex: {{levels: {levels}", f"sex: {{levels: {levels}, missing: category"))
    counted = take_census(job, open_source(job, path)).crosstab
    number = np.bincount(counted.codes["sex"], weights=counted.count)
    assert counted.levels["sex"] == ("1", "2", NOT_REPORTED)
    assert number.tolist() == [*frame["sex"].value_counts().sort_index().tolist(), 100]
    if levels != '["1", "2"]' or suffix == ".csv":
        with pytest.raises(DataError, match=r"missing values[^\n]*\n.*\n.*columns.sex.missing: category"):
            take_census(strict := parse_job(text), open_source(strict, path))


def test_a_level_of_missing_values_is_published(tmp_path: Path) -> None:
    for seed, name in ((1, "current"), (2, "earlier")):
        frame = people(seed)
        frame.assign(sex=frame["sex"].where(np.arange(400) % 4 > 0)).to_parquet(tmp_path / f"{name}.parquet")
    text = JOB.replace("earlier.parquet", str(tmp_path / "earlier.parquet"))
    job = parse_job(text.replace("sex: {levels: [1, 2]", "sex: {levels: [1, 2], missing: category"))
    table = run(job, tmp_path / "ws", input=tmp_path / "current.parquet", counted=False).tables["t"]
    assert set(table["sex"]) == {"1", "2", NOT_REPORTED, "Total"}


def test_a_range_of_levels_is_the_list_of_its_numbers() -> None:
    listed = Column(levels=list(range(1, 256)))  # type: ignore[arg-type]
    assert Column.model_validate({"levels": {"range": [1, 255]}}) == listed
    assert Column.model_validate({"levels": [{"range": [1, 254]}, 255]}) == listed
    assert Column.model_validate_json(listed.model_dump_json()) == listed


@pytest.mark.parametrize("levels", ["{range: [2, 1]}", "{range: [1, 1e9]}", "{range: [1]}", "{from: 1}", "{range: [a, b]}"])
def test_a_range_that_is_none_is_refused(levels: str) -> None:
    with pytest.raises(JobError, match=r"a range of at most 100,000 whole numbers"):
        parse_job(JOB.replace("[1, 2]", levels))


def test_levels_with_numbers_are_answered_by_codes() -> None:
    with pytest.raises(JobError, match=r"codes: \{'No': 0, 'Yes': 1\}"):
        parse_job(JOB.replace("[1, 2]", '{"No": 0, "Yes": 1}'))


@pytest.mark.parametrize("key", ["encoding: latin-9x", 'encoding: "rot13"', 'separator: "x"'])
def test_an_unknown_encoding_or_separator_is_refused(key: str) -> None:
    with pytest.raises(JobError, match=r"latin-1|';'"):
        parse_job(JOB + f"input: {{path: people.csv, {key}}}")


def test_a_column_with_bounds_has_no_level_of_missing_values() -> None:
    with pytest.raises(JobError, match="missing: category is for a column with levels"):
        parse_job(JOB.replace("outside: clip", "outside: clip, missing: category"))
