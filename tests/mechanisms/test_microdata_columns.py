"""Other columns of a public reference in the records beside a strict table: whole donors, and nothing of them measured."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest
from public_files import statement_of
from strict_survey import JOB, Named, job, survey

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.job.loading import find_job, parse_job
from dpdist.storage.tables import rows_at

COPIED = ["id", "age", "region", "since", "tenured"]
LISTED = ("\ntables:", f"\nmicrodata: {{columns: [{', '.join(COPIED)}]}}\ntables:")
DRAWN = ["field", "sex", "salary", "weight"]


def wider(seed: int) -> pd.DataFrame:
    """A survey with columns beside the table's: a number of each record, an age that goes with the salary, a region with
    gaps, a day, a yes or no."""
    rows, rng = survey(seed), np.random.default_rng(seed + 50)
    age = np.round(25.0 + 4.0 * np.log1p(rows["salary"]) / 10.0 * rng.uniform(0.8, 1.2, len(rows))).astype(np.int16)
    region = np.array(["north", "south", None], dtype=object)[rng.choice(3, len(rows), p=[0.6, 0.3, 0.1])]
    day = [datetime.date(1990, 1, 1) + datetime.timedelta(days=int(d)) for d in rng.integers(0, 9000, len(rows))]
    more = {"id": np.arange(len(rows)), "age": age, "region": region, "since": day, "tenured": rng.random(len(rows)) < 0.3}
    return rows.assign(**more)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wider")
    survey(1, drift=1.1).to_parquet(folder / "now.parquet")
    wider(2).to_parquet(folder / "before.parquet")
    wider(2).to_csv(folder / "before.csv", index=False)
    return folder


def both(files: Path, folder: Path, keys_of: Named, noise_of: Named, strata: str = "") -> tuple[Path, Path]:
    """Public folders of one release under one key and noise, with the columns and without."""
    found = []
    for name, edit in (("with", LISTED), ("without", ("", ""))):
        said = job(files, edit=edit).model_dump(mode="json") | ({"strata": [strata]} if strata else {})
        with keys_of("copied"), noise_of("copied"):
            found.append(dpdist.run(type(job(files)).model_validate(said), folder / name))
    return found[0], found[1]


@pytest.mark.parametrize("strata", ["", pytest.param("field", marks=pytest.mark.long)])
def test_a_synthetic_record_has_one_donors_columns_beside_that_donors_weight_and_outcome(
    files: Path, tmp_path: Path, keys_of: Named, noise_of: Named, strata: str
) -> None:
    """The donor is known by its number: cell and copied values are its own, its salary is moved by a rising function, its
    weight by one factor for records of a cell with the same salary. Nothing else of the release has changed.
    Control: donors of neighbouring records have other values."""
    public, plain = both(files, tmp_path, keys_of, noise_of, strata)
    made, before = pd.read_parquet(public / "synthetic" / "set-1.parquet"), wider(2)
    donor = before.iloc[made["id"].to_numpy()].reset_index(drop=True)
    assert list(made.columns) == [*DRAWN, *COPIED]
    assert made["id"].nunique() > 0.3 * len(before)
    for name in ("field", "sex", *COPIED):
        pd.testing.assert_series_equal(made[name].astype(object), donor[name].astype(object), check_names=False)
    in_order = np.lexsort((made["salary"], donor["salary"]))
    within = made["field"].astype(str) if strata else pd.Series("all", index=made.index)
    for level in within.unique():
        own = in_order[(within == level).to_numpy()[in_order]]
        assert (np.diff(made["salary"].to_numpy()[own]) >= 0).all()
    ratio = (made["weight"] / donor["weight"]).groupby([made["field"], made["sex"], donor["salary"]], observed=True)
    assert (ratio.max() / ratio.min()).max() == pytest.approx(1.0, rel=1e-9)
    assert (made["age"] != np.roll(donor["age"], 1)).mean() > 0.2, "control"
    pd.testing.assert_frame_equal(made[DRAWN], pd.read_parquet(plain / "synthetic" / "set-1.parquet"))
    for name in ("tables/salaries.parquet", "released/set-1.json"):
        assert (public / name).read_bytes() == (plain / name).read_bytes()


def test_copied_columns_stand_in_every_format_and_in_both_codebooks(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts with gaps, days, whole numbers, yes or no: as Stata, SPSS and CSV on the Web have them."""
    said = {"formats": ["csv", "dta", "sav", "ddi"], "columns": {"region": {"label": "Region"}}}
    made = job(files, edit=LISTED).model_dump(mode="json") | {"presentation": said}
    public = Path(dpdist.run(type(job(files)).model_validate(made), tmp_path / "ws"))
    records = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    for path, read in (("set-1.dta", pyreadstat.read_dta), ("set-1.sav", pyreadstat.read_sav)):
        frame, meta = read(str(public / "synthetic" / path))
        assert list(frame["id"]) == list(records["id"])
        assert list(frame["age"]) == list(records["age"])
        assert list(frame["tenured"]) == list(records["tenured"].astype(int))
        assert list(frame["region"].fillna("")) == list(records["region"].fillna(""))
        assert list(pd.to_datetime(frame["since"])) == list(pd.to_datetime(records["since"]))
        assert meta.column_names_to_labels["region"] == "Region"
    from csvw import TableGroup  # takes long, for few tests

    group = TableGroup.from_file(public / "codebook.json")
    monkeypatch.chdir(public)
    (table,) = [each for each in group.tables if str(each.url) == "synthetic/set-1.csv"]
    rows = list(table.iterdicts(strict=True))  # a column that the codebook lacks is a warning, and fails
    assert [row["region_7"] or "" for row in rows] == list(records["region"].fillna(""))
    assert 'name="since"' in (public / "codebook.xml").read_text(encoding="utf-8")


def test_the_statement_says_what_is_measured_and_what_is_copied(
    files: Path, tmp_path: Path, keys_of: Named, noise_of: Named
) -> None:
    public, plain = both(files, tmp_path, keys_of, noise_of)
    said, usual = (statement_of(each) for each in (public, plain))
    assert said["microdata"]["measured"] == DRAWN
    assert said["microdata"]["copied"] == COPIED
    assert "Copied columns were not measured on the current file" in said["microdata"]["in_words"]
    (line,) = [text for text in said["public"] if "donors.parquet" in text]
    assert all(name in line for name in COPIED)
    assert "microdata" not in usual, "control"


def test_the_columns_decide_the_result_and_are_published_with_the_job(files: Path) -> None:
    """A run with others does not resume this one's workspace. Control: the same columns."""
    said, others = job(files, edit=LISTED), job(files)
    assert said.identity == job(files, edit=LISTED).identity != others.identity
    assert (said.public["microdata"], others.public["microdata"]) == ({"columns": COPIED}, {"columns": []})


def test_values_of_a_csv_reference_are_copied_as_texts(files: Path, tmp_path: Path) -> None:
    folder = Path(dpdist.run(job(files, edit=LISTED, reference="before.csv"), tmp_path / "ws"))
    made = pd.read_parquet(folder / "synthetic" / "set-1.parquet")
    texts = pd.read_csv(files / "before.csv", dtype=str).iloc[made["id"].astype(int)].reset_index(drop=True)
    for name in COPIED:
        pd.testing.assert_series_equal(made[name].astype(object), texts[name].astype(object), check_names=False)
    assert made["region"].isna().any()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_column_that_the_reference_lacks_is_refused_with_those_that_it_has(
    files: Path, tmp_path: Path, suffix: str
) -> None:
    """Control: the current file has none of them, and is released all the same."""
    said = job(files, edit=("\ntables:", "\nmicrodata: {columns: [age, wage]}\ntables:"), reference=f"before.{suffix}")
    with pytest.raises(DataError) as refused:
        dpdist.run(said, tmp_path / "ws")
    (problem,) = refused.value.problems
    assert (problem.where, problem.fault) == ("wage", "missing column")
    assert "age, region, since, tenured" in problem.allowed
    assert "microdata.columns" in problem.remedy
    assert refused.value.source.endswith(f"before.{suffix}")
    assert not (tmp_path / "ws").exists()
    assert not set(COPIED) & set(pd.read_parquet(files / "now.parquet"))


def test_columns_that_are_no_single_values_or_stand_twice_are_refused(files: Path, tmp_path: Path) -> None:
    before = pa.Table.from_pandas(wider(2))
    listed = before.append_column("children", pa.array([[1, 2]] * len(before)))
    pq.write_table(listed, files / "nested.parquet")
    pq.write_table(before.append_column("age", before.column("age")), files / "twice.parquet")
    for name, column, found in (("nested", "children", "wrong type"), ("twice", "age", "appears twice")):
        edit = ("\ntables:", f"\nmicrodata: {{columns: [{column}]}}\ntables:")
        with pytest.raises(DataError, match=found) as refused:
            dpdist.validate(job(files, edit=edit, reference=f"{name}.parquet"))
        assert [problem.where for problem in refused.value.problems] == [column]


LEAVE = "\nmicrodata: {columns: [age]}"
OTHER = "outcome: salary\nmodel: {family: lognormal, predictors: [field, sex]}\nmechanism: {name: weighted_e}"
FIT = "outcome: salary\nmechanism: {name: tables}"
PATH = 'path: {files}/before.parquet, period: "2020", provenance: public-use file of 2020'
WRONG = {
    "no donors": ((FIT, OTHER + LEAVE), "does not copy further columns of a reference", "tables}"),
    "an earlier release": (
        (PATH, "release: earlier"),
        "an earlier release has no columns but field, sex, salary, weight",
        "path",
    ),
    "histograms": (
        (PATH, 'histogram: {epsilon: "1/3"}'),
        "histograms have no columns but field, sex, salary, weight",
        "path",
    ),
    "twice": (("[age]", "[age, age]"), "'age' is named twice", "delete one"),
    "in the table": (("[age]", "[age, sex]"), "'sex' is in the synthetic records already", "leave it out"),
    "the outcome": (("[age]", "[salary]"), "'salary' is in the synthetic records already", "leave it out"),
    "the design": (
        ("weight: weight}", "weight: weight, psu: age}"),
        "'age' belongs to the sample's design",
        "leave it out",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_columns_that_cannot_be_copied_are_refused_as_the_job_is_read(files: Path, wrong: str) -> None:
    (old, new), found, remedy = WRONG[wrong]
    old = old.format(files=files) if "{files}" in old else old
    text = JOB.format(
        folder=files, current="now.parquet", reference="before.parquet", epsilon="1", adjacency="substitution"
    ).replace("\ntables:", f"{LEAVE}\ntables:")
    parse_job(text)
    assert old in text
    with pytest.raises(JobError) as refused:
        parse_job(text.replace(old, new).replace(LEAVE, "", int(wrong == "no donors")))
    own = [problem for problem in refused.value.problems if problem.where.startswith("microdata")]
    assert [problem for problem in own if found in problem.fault and remedy in problem.remedy], refused.value


@pytest.mark.parametrize("rows", [[], [4], [999, 0, 512, 511, 7], list(range(999, -1, -1))])
def test_rows_of_a_file_come_in_the_order_in_which_they_are_named(tmp_path: Path, rows: list[int]) -> None:
    """From a file of many row groups; a gap stays one."""
    whole = pa.table({"number": np.arange(1000), "text": [None if k % 7 == 0 else f"t{k}" for k in range(1000)]})
    pq.write_table(whole, tmp_path / "file.parquet", row_group_size=64)
    found = rows_at(tmp_path / "file.parquet", np.array(rows, dtype=np.int64))
    assert found.to_pylist() == [whole.slice(row, 1).to_pylist()[0] for row in rows]


def by_level(rows: pd.DataFrame, name: str) -> tuple[pd.Series, pd.Series]:
    """Weighted mean salary of every level, and its standard error."""
    total = rows["weight"].groupby(rows[name], observed=True).sum()
    mean = (rows["weight"] * rows["salary"]).groupby(rows[name], observed=True).sum() / total
    away = (rows["weight"] * (rows["salary"] - rows[name].map(mean).astype(float))) ** 2
    return mean, np.sqrt(away.groupby(rows[name], observed=True).sum()) / total


@pytest.mark.real_data
def test_what_is_copied_goes_with_salaries_as_in_a_real_reference(data: Path, tmp_path: Path, noise_of: Named) -> None:
    """Halves of a real survey: mean salaries by copied columns err by no more than the reference's own, in direct errors of
    the current half. Control: with copied columns of other records of the set they err by several times as much."""
    columns = ["highest_degree", "age_group", "job_satisfaction"]
    rows = pd.read_parquet(data / "nscg2013.parquet")
    rows = rows[rows["employment_status"] == "Employed"].reset_index(drop=True)
    now = np.random.default_rng(5).random(len(rows)) < 0.5
    rows[~now].to_parquet(tmp_path / "before.parquet")
    rows[now].drop(columns=columns).to_parquet(tmp_path / "now.parquet")
    text = find_job("nscg_strict").read_text(encoding="utf-8").replace("nscg2010", f"{tmp_path}/before")
    said = parse_job(f"{text}microdata: {{columns: [{', '.join(columns)}]}}\n")
    with noise_of("copied from halves"):
        public = Path(dpdist.run(said, tmp_path / "ws", input=tmp_path / "now.parquet"))
    made = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    order, errors = np.random.default_rng(6).permutation(len(made)), dict[str, list[float]]()
    for name in columns:
        true, error = by_level(rows[now], name)
        shuffled = made.assign(**{name: made[name].to_numpy()[order]})
        for arm, found in (("copied", made), ("shuffled", shuffled), ("reference", rows[~now].astype({name: str}))):
            away = by_level(found, name)[0].loc[[str(level) for level in true.index]].to_numpy() - true.to_numpy()
            errors.setdefault(arm, []).extend(np.abs(away / error.to_numpy()))
    assert len(errors["copied"]) == 18
    assert np.median(errors["copied"]) < 1.2 * np.median(errors["reference"])
    assert max(errors["copied"]) < 1.5 * max(errors["reference"])
    assert np.median(errors["shuffled"]) > 4.0 * np.median(errors["copied"]), "control"
