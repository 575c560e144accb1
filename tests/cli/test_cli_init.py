"""`dpdist init`: a job from names and types; domains from public sources alone; marks where somebody must decide."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
import pytest
from command_line import invoke, succeed

from dpdist.cli.draft import dataset_and_period
from dpdist.core.errors import JobError
from dpdist.job.loading import load_job, to_do
from dpdist.survey.domains import outward
from dpdist.survey.source import ParquetSource

CANARY = "zxq-canary"
OUTLIER = 987654.0


def command(*said: object) -> tuple[int, str]:
    found = invoke(*said)
    return found.exit_code, found.output


def people(seed: int, records: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "region": rng.choice(["north", "south"], records),
            "sex": rng.choice(["No", "Yes"], records),
            "income": np.exp(rng.normal(10.3, 0.5, records)).round(),
            "weight": rng.uniform(5.0, 60.0, records).round(1),
            "number": [f"id-{seed}-{k}" for k in range(records)],
        }
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The confidential file and an earlier public one, both as Parquet and CSV, in the present folder."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        people(seed).to_parquet(f"{name}.parquet")
        people(seed).to_csv(f"{name}.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("way", [(), ("--records",), ("--reference", "none")])
def test_with_a_public_file_the_job_validates_straight_away(suffix: str, way: tuple[str, ...], files: Path) -> None:
    """In another folder than the file's; control: no TODO is left, and the domains are the public file's."""
    (files / "jobs").mkdir()
    said = ("--public", f"people-2022{suffix}", "--out", "jobs/job.yaml", "--outcome", "income", *way)
    succeed("init", f"people-2024{suffix}", *said)
    succeed("validate", "jobs/job.yaml")
    job = load_job("jobs/job.yaml")
    assert (job.dataset, job.period, job.survey.weight, job.cell_columns) == ("people", "2024", "weight", ("region", "sex"))
    assert job.columns["sex"].levels == ("No", "Yes")
    salaries = people(2)["income"]
    assert job.columns["income"].bounds == outward(salaries.min(), salaries.max())
    assert job.columns["income"].bounds[0] <= salaries.min() < salaries.max() <= job.columns["income"].bounds[1]


@pytest.mark.parametrize(
    ("way", "mechanism", "reference"),
    [
        (("--public", "people-2022.csv"), "tables", "path"),
        (("--public", "people-2022.csv", "--reference", "none"), "tables", "histogram"),
        (("--reference", "people-2022.csv"), "tables", "path"),
        (("--public", "people-2022.csv", "--records"), "sanitized_statistics", "path"),
        (("--public", "people-2022.csv", "--records", "--reference", "none"), "weighted", None),
    ],
)
def test_the_mechanism_is_that_of_the_decision_table(
    way: tuple[str, ...], mechanism: str, reference: str | None, files: Path
) -> None:
    succeed("init", "people-2024.csv", "--out", "job.yaml", "--yes", "--outcome", "income", *way)
    job = load_job("job.yaml")
    assert job.mechanism.name == mechanism
    given = [name for name in ("path", "histogram") if getattr(job.reference, name, None)]
    assert given == ([reference] if reference else [])


def test_a_job_names_what_predicts_its_errors(files: Path) -> None:
    """Control: a mechanism without noise has no such line."""
    Path("book.csv").write_text("column,level,low,high\nsex,No,,\nsex,Yes,,\nincome,,0,500000\n", encoding="utf-8")
    said = ("--codebook", "book.csv", "--outcome", "income", "--table", "sex", "--weight", "none", "--out")
    succeed("init", "people-2024.parquet", *said, "job.yaml")
    assert "# `dpdist plan` predicts the errors of all tables" in Path("job.yaml").read_text(encoding="utf-8")
    succeed("init", "people-2024.parquet", "--records", *said, "other.yaml")
    assert "predicts the errors" not in Path("other.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("way", "named"),
    [
        (("--table", "region,sex", "--table", "sex", "--table", ""), {("region", "sex"), ("sex",), ()}),
        (("--table", "region,sex"), {("region", "sex")}),
    ],
)
def test_several_tables_are_a_package_that_validates(
    way: tuple[str, ...], named: set[tuple[str, ...]], files: Path
) -> None:
    """Control: one table is no package."""
    options = ("people-2024.csv", "--public", "people-2022.csv", "--outcome", "income", "--yes", "--out")
    succeed("init", *options, "job.yaml", *way)
    succeed("validate", "job.yaml")
    job = load_job("job.yaml")
    assert job.mechanism.name == "tables"
    assert {table.by for table in job.tables} == named
    succeed("init", *options, "other.yaml", "--table", "region,sex")
    assert load_job("other.yaml").mechanism.name == "tables"


def test_whole_numbers_beyond_those_of_the_public_file_are_not_refused(files: Path) -> None:
    """Controls: codes with gaps are no number, and a design stratum has no nearest one."""
    for name, seed, most in (("people-2024", 1, 14), ("people-2022", 2, 8)):
        records = people(seed)
        size = np.arange(len(records)) % most + 1
        percent = np.arange(len(records)) * 3 % 25 * (1 + (most == 8)) % 41
        reason = np.append(np.arange(1, 7), 9)[size % 7]
        family = np.append(np.arange(2, 12), [13, 18])[np.arange(len(records)) % 12]
        numbers = {"size": size, "code": size % 6 * 10, "stratum": size, "percent": percent, "reason": reason}
        records.assign(**numbers, family=family).to_parquet(f"{name}.parquet")
    named = ("--public", "people-2022.parquet", "--outcome", "income", "--design-strata", "stratum", "--out", "job.yaml")
    tables = ("--table", "sex,size", "--table", "code", "--table", "stratum,sex", "--table", "percent", "--table", "reason")
    succeed("init", "people-2024.parquet", "--yes", *named, *tables, "--table", "family")
    job = load_job("job.yaml")
    assert (job.columns["size"].levels, job.columns["size"].outside) == (tuple(range(1, 9)), "clip")
    assert job.columns["percent"].outside == job.columns["family"].outside == "clip"
    assert {job.columns[name].outside for name in ("code", "stratum", "reason")} == {"error"}
    assert "if the levels are codes, delete outside: clip" in Path("job.yaml").read_text(encoding="utf-8")


def test_whole_numbers_with_a_decimal_point_beside_gaps_are_levels(files: Path) -> None:
    """As pandas writes them to CSV. A whole number between them without a record is named. Control: fractions."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        status, half = np.resize([1.0, 2.0, np.nan, 4.0], 600), np.resize([1.5, 2.0, np.nan, 4.0], 600)
        people(seed).assign(status=status, half=half).to_csv(f"{name}.csv", index=False)
    assert ",4.0," in Path("people-2024.csv").read_text(encoding="utf-8")
    said = ("people-2024.csv", "--public", "people-2022.csv", "--yes", "--outcome", "income", "--table", "sex", "--out")
    succeed("init", *said, "job.yaml", "--table", "status")
    assert load_job("job.yaml").columns["status"].levels == ("1", "2", "4", "Not reported")
    assert "with missing values; no public record has 3: add the levels that a codebook lists\n" in Path(
        "job.yaml"
    ).read_text("utf-8")
    succeed("validate", "job.yaml")
    succeed("init", *said, "half.yaml", "--table", "half")
    assert [each.fault for each in to_do(Path("half.yaml").read_text(encoding="utf-8"))] == [
        "left to be filled: half: {levels: […]}"
    ]


def test_several_outcomes_stand_in_one_job(files: Path) -> None:
    """Each has bounds and a mean in the table. Controls: one outcome is no list, and one that is unknown is refused."""
    for year in ("2022", "2024"):
        rows = people(int(year))
        rows.assign(hours=np.arange(len(rows)) % 61).to_csv(f"people-{year}.csv", index=False)
    said = ("people-2024.csv", "--public", "people-2022.csv", "--yes", "--table", "sex", "--outcome", "income", "--out")
    succeed("init", *said, "one.yaml")
    succeed("init", *said, "two.yaml", "--outcome", "hours")
    one, two = load_job("one.yaml"), load_job("two.yaml")
    assert (one.outcomes, two.outcomes) == (("income",), ("income", "hours"))
    assert [statistic.text for statistic in two.tables[0].statistics] == ["count", "mean of income", "mean of hours"]
    assert two.columns["hours"].outside == "clip"
    succeed("validate", "two.yaml")
    assert "outcome: income\n" in Path("one.yaml").read_text(encoding="utf-8")
    code, text = command("init", *said, "three.yaml", "--outcome", "hour")
    assert (code, "did you mean 'hours'?" in text) == (2, True)


@pytest.mark.parametrize(("way", "rule"), [((), "error"), (("--records", "--reference", "none"), "drop")])
def test_what_can_be_done_about_missing_outcomes_is_said(way: tuple[str, ...], rule: str, files: Path) -> None:
    """Control: nothing is said where none is missing."""
    named = ("people-2024.parquet", "--yes", "--outcome", "income", *way, "--public")
    succeed("init", *named, "people-2022.parquet", "--out", "control.yaml")
    records = people(2)
    records.loc[::7, "income"] = np.nan
    records.to_parquet("people-2021.parquet")
    succeed("init", *named, "people-2021.parquet", "--out", "job.yaml")
    assert load_job("job.yaml").columns["income"].missing == rule
    texts = [Path(name).read_text(encoding="utf-8") for name in ("control.yaml", "job.yaml")]
    about = "every table" if rule == "drop" else "under assumed_public"
    assert [f"{about}" in text.partition("survey:")[0] for text in texts] == [False, True]


@pytest.mark.parametrize("linked", [False, True])
def test_paths_in_a_job_lead_from_its_folder_wherever_one_stands(
    linked: bool, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that folder is a link to another place. Control: the path of one who stands beside the file is wrong."""
    (files / "data").mkdir()
    (files / "elsewhere" / "deep").mkdir(parents=True)
    for name in ("people-2024.parquet", "people-2022.parquet"):
        Path(name).rename(files / "data" / name)
    (files / "sub").symlink_to(files / "elsewhere" / "deep") if linked else (files / "sub").mkdir()
    said = ("--public", "data/people-2022.parquet", "--outcome", "income", "--out", "sub/job.yaml")
    succeed("init", "data/people-2024.parquet", *said)
    text = Path("sub/job.yaml").read_text(encoding="utf-8")
    assert "path: data/" not in text
    for place in (files, files / "sub", files / "data", Path("/")):
        monkeypatch.chdir(place)
        succeed("validate", files / "sub" / "job.yaml")


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_without_a_public_source_no_value_of_the_file_is_in_the_job(suffix: str, tmp_path: Path) -> None:
    """Control: with the option that says so they are there, and every such line is marked."""
    records = people(1)
    records.loc[3, "region"], records.loc[4, "income"] = CANARY, OUTLIER
    file = tmp_path / f"people{suffix}"
    records.to_parquet(file) if suffix == ".parquet" else records.to_csv(file, index=False)
    job, marked = tmp_path / "job.yaml", tmp_path / "marked.yaml"
    succeed("init", file, "--out", job)
    text = job.read_text(encoding="utf-8")
    values = {str(each) for name in ("region", "sex", "income") for each in records[name]}
    words = set(re.findall(r"[^\s\[\]{},:'\"]+", text))
    assert values & words == set()
    assert {"region", "sex", "income", "weight"} <= words
    succeed("init", file, "--out", marked, "--i-know-this-reads-confidential-data", "--outcome", "income")
    lines = marked.read_text(encoding="utf-8").splitlines()
    assert CANARY in "".join(lines)
    shown = [line for line in lines if "levels:" in line or "bounds:" in line]
    assert len(shown) >= 3
    assert [line for line in shown if not line.endswith("# TODO confirm: seen in the confidential file")] == []


def test_with_a_codebook_alone_no_value_of_the_file_decides_the_table(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether columns say the same is looked up in a public file, never in the confidential one. Control: with the option
    that says so it is read."""
    book = "column,level\nregion,north\nregion,south\nsex,No\nsex,Yes\n"
    Path("book.csv").write_text(book, encoding="utf-8")
    said = ("people-2024.parquet", "--codebook", "book.csv", "--outcome", "income", "--out")
    read = list[str]()
    whole = ParquetSource.batches
    monkeypatch.setattr(ParquetSource, "batches", lambda self, names: read.append(self.name) or whole(self, names))
    succeed("init", *said, "job.yaml")
    assert read == []
    succeed("init", *said, "seen.yaml", "--i-know-this-reads-confidential-data")
    assert read != []


def test_what_is_left_to_do_is_named_and_once_done_the_job_validates(files: Path) -> None:
    """By validate and by run, which starts nothing; a job whose marks are gone is an ordinary job."""
    succeed("init", "people-2024.csv", "--out", "job.yaml", "--outcome", "income", "--table", "region")
    text = Path("job.yaml").read_text(encoding="utf-8")
    left = to_do(text)
    assert [problem.fault for problem in left] == [
        "left to be filled: region: {levels: […]}",
        "left to be filled: income: {bounds: […, …], outside: clip}",
        "left to be filled: weight: {bounds: […, …], outside: clip}",
    ]
    for verb in (("validate", "job.yaml"), ("run", "job.yaml", "--workspace", "ws")):
        code, said = command(*verb)
        assert code == 2
        assert [each for each in left if f"TODO: {each.fault} ({each.places[0]})" not in said] == []
    assert not Path("ws").exists()
    filled = {
        "region: {levels: […]}": "region: {levels: [north, south]}",
        "income: {bounds: […, …]": "income: {bounds: [0, 1e6]",
    }
    for old, new in (filled | {"weight: {bounds: […, …]": "weight: {bounds: [1, 100]"}).items():
        text = text.replace(f"# TODO fill: {old}", new)
    Path("job.yaml").write_text(text.replace("1e6", "1000000"), encoding="utf-8")
    succeed("validate", "job.yaml")


def test_a_line_to_confirm_stops_a_job_that_is_complete(files: Path) -> None:
    """Control: the same job with its marks deleted."""
    said = ("--i-know-this-reads-confidential-data", "--outcome", "income", "--table", "region", "--out", "job.yaml")
    succeed("init", "people-2024.parquet", *said)
    with pytest.raises(JobError, match="left to be confirmed: seen in the confidential file") as error:
        load_job("job.yaml")
    assert {problem.where for problem in error.value.problems} == {"TODO"}
    text = Path("job.yaml").read_text(encoding="utf-8")
    Path("job.yaml").write_text(text.replace("# TODO confirm: seen in the confidential file", ""), encoding="utf-8")
    succeed("validate", "job.yaml")


def test_a_codebook_gives_levels_bounds_and_labels(files: Path) -> None:
    """It stands before the public file; whole numbers of a column of numbers are levels that are numbers."""
    records = people(1).assign(sex=np.tile([1, 2], 300))
    records.to_parquet("people-2024.parquet")
    book = "column,level,low,high,label\nsex,1,,,women\nsex,2,,,men\nregion,south,,,\nregion,north,,,\n"
    numbers = "income,,0,500000,yearly income\nweight,,1,100,\nelsewhere,7,,,\n"
    Path("book.csv").write_text(book + numbers, encoding="utf-8")
    said = ("--codebook", "book.csv", "--outcome", "income", "--table", "sex,region", "--out", "job.yaml")
    succeed("init", "people-2024.parquet", *said)
    job = load_job("job.yaml")
    assert (job.columns["sex"].levels, job.columns["region"].levels) == ((1, 2), ("south", "north"))
    assert (job.columns["income"].bounds, job.columns["weight"].bounds) == ((0, 500000), (1, 100))
    assert job.presentation.columns["sex"].levels == {"1": "women", "2": "men"}
    assert job.presentation.columns["income"].label == "yearly income"
    assert set(job.presentation.columns) == {"sex", "income"}, "a column without labels has no entry"
    succeed("validate", "job.yaml")
    assert "elsewhere" not in Path("job.yaml").read_text(encoding="utf-8")


def test_a_codebook_leaves_what_a_public_file_shows_of_missing_values(files: Path) -> None:
    """Of the outcome, which a strict release cannot drop, and of a table's column. Control: a public file without any."""
    bounds = "income,,0,500000,\nweight,,1,100,\n"
    Path("book.csv").write_text(
        f"column,level,low,high,label\nregion,south,,,\nregion,north,,,\n{bounds}", encoding="utf-8"
    )
    said = ("--codebook", "book.csv", "--outcome", "income", "--table", "region", "--out")
    people(2).assign(region=people(2)["region"].where(np.arange(600) > 3)).to_parquet("gaps-2022.parquet")
    rows = pd.read_parquet("gaps-2022.parquet")
    rows.assign(income=rows["income"].where(np.arange(600) > 5)).to_parquet("gaps-2022.parquet")
    for earlier, shown in (("gaps-2022.parquet", True), ("people-2022.parquet", False)):
        written = f"{earlier}.yaml"
        succeed("init", "people-2024.parquet", "--reference", earlier, *said, written)
        text = Path(written).read_text(encoding="utf-8")
        assert ("drops no record for a missing income" in text) == shown
        assert ("missing: category" in text) == shown


def test_it_asks_on_a_terminal(files: Path) -> None:
    """What is typed is taken, and asked again where nothing is proposed; control: with --yes nothing is asked."""
    typed = "people-2022.parquet\n\nthe files of 2022\n\n\nweight\nincome\nregoin\nsex, region\ny\nhouseholds\n"
    program = [sys.executable, "-m", "dpdist", "init", "people-2024.parquet", "--out"]
    outer, inner = pty.openpty()
    os.write(outer, typed.encode())
    asked = subprocess.run([*program, "job.yaml"], stdin=inner, capture_output=True, text=True, timeout=60, check=True)
    assert "An earlier public file of this survey" in asked.stdout
    job = load_job("job.yaml")
    assert (job.dataset, "a ledger charges the account of this name) [people]" in asked.stdout) == ("households", True)
    assert job.mechanism.name == "sanitized_statistics"
    assert job.reference is not None
    assert (job.reference.period, job.reference.provenance) == ("2022", "the files of 2022")
    assert job.cell_columns == ("sex", "region")
    assert "the file has no column 'regoin': did you mean 'region'?" in asked.stdout
    os.write(outer, b"none\n\n\nweight\n\nincome\nregion\nn\n\n")  # Enter is no outcome
    subprocess.run([*program, "b.yaml"], stdin=inner, capture_output=True, text=True, timeout=60, check=True)
    assert "outcome: income" in Path("b.yaml").read_text(encoding="utf-8")
    assert "\ndataset: people  #" in Path("b.yaml").read_text(encoding="utf-8")
    asked = subprocess.run(
        [*program, "own.yaml", "-y"], stdin=inner, capture_output=True, text=True, timeout=60, check=True
    )
    os.close(outer)
    os.close(inner)
    assert "?" not in asked.stdout
    assert len(asked.stdout.splitlines()) == 1


@pytest.mark.parametrize(("encoding", "separator"), [("latin-1", ";"), ("utf-16", "\t"), ("utf-8-sig", "|")])
def test_files_in_another_encoding_are_read_and_the_job_says_how(encoding: str, separator: str, files: Path) -> None:
    """The confidential file, the public one and the codebook; the job validates as it is."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        made = people(seed).replace({"north": "Köln"})
        made.to_csv(f"{name}.csv", index=False, sep=separator, encoding=encoding)
    Path("book.csv").write_bytes(separator.join(["column", "level\nregion", "Köln\nregion", "south\n"]).encode(encoding))
    said = ("--public", "people-2022.csv", "--codebook", "book.csv", "--outcome", "income", "--out", "job.yaml")
    succeed("init", "people-2024.csv", *said)
    job = load_job("job.yaml")
    assert job.reference is not None
    assert {job.input.separator, job.reference.separator} == {separator}
    assert {job.input.encoding, job.reference.encoding} == {None if encoding == "utf-8-sig" else encoding}
    assert job.columns["region"].levels == ("Köln", "south")
    succeed("validate", "job.yaml")


def test_labels_of_a_file_of_spss_are_levels_with_their_labels(files: Path) -> None:
    """Codes in a row are a range; a column of numbers keeps the bounds that the public file shows, whatever codes of it
    have labels; missing values there are a category. Control: without the codebook there are no labels."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        rng = np.random.default_rng(seed)
        made = people(seed).assign(sex=rng.integers(1, 3, 600), town=rng.integers(1, 9, 600).astype(float))
        made.loc[made.index % 5 == 0, "town"] = np.nan
        towns = {float(code): f"town {code}" for code in range(1, 9)}
        labels = {"sex": {1: "women", 2: "men"}, "town": towns, "income": {-9: "refused"}}
        named = {"income": "Yearly income", "sex": "Sex of the person", "number": "Identity"}
        pyreadstat.write_sav(made, f"{name}.sav", variable_value_labels=labels, column_labels=named)
    said = ("--public", "people-2022.sav", "--outcome", "income", "--table", "sex,town", "--out")
    succeed("init", "people-2024.sav", "--codebook", "people-2024.sav", *said, "job.yaml")
    succeed("init", "people-2024.sav", *said, "plain.yaml")
    text = Path("job.yaml").read_text(encoding="utf-8")
    assert "town: {levels: {range: [1, 8]}, missing: category}" in text
    job = load_job("job.yaml")
    assert job.presentation.columns["sex"].levels == {"1": "women", "2": "men"}
    assert job.presentation.columns["town"].levels["8"] == "town 8"
    found = {name: each.label for name, each in job.presentation.columns.items()}
    assert found == {"sex": "Sex of the person", "town": None, "income": "Yearly income"}
    assert job.columns["income"].bounds is not None
    assert not load_job("plain.yaml").presentation.columns
    text = succeed("validate", "job.yaml")


@pytest.mark.parametrize("ordered", [True, False])
def test_levels_keep_the_order_of_the_public_file_s_own_list(ordered: bool, files: Path) -> None:
    """Of its list of categories; texts without one are in alphabetical order. Control: so are the confidential file's."""
    texts = ["low", "middle", "high"]
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        made = people(seed).assign(size=np.resize(["middle", "low", "high"], 600))
        made["size"] = pd.Categorical(made["size"], texts, ordered=True) if ordered else made["size"]
        made.to_parquet(f"{name}.parquet")
    said = ("--outcome", "income", "--table", "size", "--out")
    succeed("init", "people-2024.parquet", "--public", "people-2022.parquet", *said, "job.yaml")
    assert load_job("job.yaml").columns["size"].levels == tuple(texts if ordered else ["high", "low", "middle"])
    succeed("init", "people-2024.parquet", "--i-know-this-reads-confidential-data", *said, "own.yaml")
    found = Path("own.yaml").read_text(encoding="utf-8")
    assert "levels: [high, low, middle]" in found


def test_columns_that_say_the_same_are_not_crossed_and_what_nobody_named_is_said(files: Path) -> None:
    """A district lies in one region. Control: with --table the columns named are taken, and nothing is said."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        made = people(seed)
        made.insert(1, "district", made["region"] + np.resize([" 1", " 2"], 600))
        made.to_parquet(f"{name}.parquet")
    said = ("--public", "people-2022.parquet", "--outcome", "income", "--out")
    code, text = command("init", "people-2024.parquet", *said, "job.yaml")
    assert (code, load_job("job.yaml").cell_columns) == (0, ("region", "sex"))
    assert "the table is by region, sex" in text
    assert "because --table named no columns" in Path("job.yaml").read_text(encoding="utf-8")
    _, text = command("init", "people-2024.parquet", "--table", "district,region", *said, "own.yaml")
    assert load_job("own.yaml").cell_columns == ("district", "region")
    assert "the table is by" not in text


def test_a_reference_is_of_a_period_and_what_of_it_is_published_is_said(files: Path) -> None:
    """By init, validate, plan and run. A file without a year leaves a line to fill."""
    Path("people-2022.parquet").rename("earlier.parquet")
    said = ("people-2024.parquet", "--public", "earlier.parquet", "--outcome", "income", "--out")
    text = succeed("init", *said, "job.yaml")
    assert "earlier.parquet is the reference. Weights and outcomes of the reference's records are published" in text
    assert [each.fault for each in to_do(Path("job.yaml").read_text(encoding="utf-8"))] == [
        "left to be filled: reference: {path: earlier.parquet, period: …}, and the period of this file"
    ]
    marked = "# TODO fill: reference: {path: earlier.parquet, period: …}, and the period of this file"
    stated = "reference: {path: earlier.parquet, period: '2022', provenance: the files of 2022}"
    Path("whole.yaml").write_text(Path("job.yaml").read_text(encoding="utf-8").replace(marked, stated), encoding="utf-8")
    job = load_job("whole.yaml")
    assert job.reference is not None
    assert (job.reference.period, job.reference.provenance) == ("2022", "the files of 2022")
    shown = "Weights and outcomes of the reference's records are published with the release, in "
    shown += "public/released/donors.parquet. Publish the release only if the reference is public."
    for verb in (("validate",), ("plan",), ("run", "--workspace", "ws")):
        code, text = command(verb[0], "whole.yaml", *verb[1:])
        flat = " ".join(text.split())
        assert (code, shown in flat, "states no period for its reference" in flat) == (0, True, False), text
    assert (files / "ws" / "public" / "released" / "donors.parquet").is_file()
    succeed("keygen", "head")
    for more, donates in (((), True), (("--set", "mechanism={name: tables}", "--set", "reference=null"), False)):
        held = f"held-{donates}"
        code, text = command("run", "whole.yaml", "--workspace", held, "--set", "approval=required", *more)
        assert (code, shown in " ".join(text.split())) == (0, donates), text
        code, text = command("approve", held, "--key", "head", "--reason", "fine")
        assert (code, f"caution: {shown}" in " ".join(text.split())) == (0, donates), text
    code, text = command("validate", "whole.yaml", "--set", "reference.period=null")
    assert (code, "The job states no period for its reference" in " ".join(text.split())) == (0, True)


def test_the_weight_s_public_bounds_stand_in_a_job_with_a_reference(files: Path) -> None:
    """`rehearse` needs them for mechanisms that clip there. Control: without a public source nothing is stated."""
    succeed("init", "people-2024.csv", "--public", "people-2022.csv", "--outcome", "income", "--out", "a.yaml")
    assert load_job("a.yaml").columns["weight"].bounds is not None
    succeed("init", "people-2024.csv", "--reference", "none", "--outcome", "income", "--out", "b.yaml")
    assert "# TODO fill: weight: {bounds:" in Path("b.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("weight", [1, 12.5])
def test_equal_weights_of_a_census_tell_no_bounds(weight: float, files: Path) -> None:
    """Weights of 1 gave bounds of 1 and 2, at which nearly all of a sample's weights were clipped. Control: others."""
    people(2).assign(weight=weight).to_parquet("census-2022.parquet")
    tables = ("--outcome", "income", "--yes", "--table", "sex", "--table", "region,sex")
    for public, left in (("census-2022", 1), ("people-2022", 0)):
        succeed("init", "people-2024.parquet", "--public", f"{public}.parquet", *tables, "--out", f"{public}.yaml")
        written = Path(f"{public}.yaml").read_text(encoding="utf-8")
        assert len(to_do(written)) == left
        assert ("a single value, so bounds are unknown" in written) == left


@pytest.mark.parametrize("book", ["column,level\nvoted,0\nvoted,1\n", "column,level\nvoted,1\nvoted,0\n"])
def test_a_yes_or_no_outcome_without_a_reference_is_counted_by_level(book: str, files: Path) -> None:
    """Where records are wanted, and the job validates as it is. Control: for tables alone, of an income, and with a
    reference the mechanism is another."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        people(seed).assign(voted=np.resize([0, 1, 1], 600)).to_csv(f"{name}.csv", index=False)
    domains = "region,north,,\nregion,south,,\nsex,No,,\nsex,Yes,,\nweight,,5,60\nincome,,0,500000\n"
    lines = [line + ",," for line in book.splitlines()[1:]]
    Path("book.csv").write_text("column,level,low,high\n" + "\n".join(lines) + "\n" + domains, encoding="utf-8")
    said = ("people-2024.csv", "--codebook", "book.csv", "--table", "region,sex", "--out")
    succeed("init", *said, "job.yaml", "--outcome", "voted", "--records")
    job = load_job("job.yaml")
    assert (job.mechanism.name, job.strata, job.columns["voted"].whole) == ("marginals", ("region", "sex"), True)
    succeed("validate", "job.yaml")
    others = {"a": ("voted",), "b": ("income",)}
    others["c"] = ("voted", "--public", "people-2022.csv")
    for name, (outcome, *more) in others.items():
        succeed("init", *said, f"{name}.yaml", "--outcome", outcome, *more)
        assert load_job(f"{name}.yaml").mechanism.name == "tables", name


@pytest.mark.parametrize("way", [("--public", "people-2022.csv"), ("--reference", "none", "--codebook", "book.csv")])
def test_an_outcome_of_texts_gets_codes(way: tuple[str, ...], files: Path) -> None:
    """Two texts are 0 and 1, and the job validates straight away. Control: numbers of three texts are left to fill in."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        mood = np.resize(["fair", "good", "poor"], 600)
        people(seed).assign(insured=np.resize(["no", "yes", "yes"], 600), mood=mood).to_csv(f"{name}.csv", index=False)
    levels = "".join(f"{column},{level},,\n" for column, level in (("region", "north"), ("region", "south")))
    levels += "insured,no,,\ninsured,yes,,\nmood,fair,,\nmood,good,,\nmood,poor,,\nweight,,5,60\n"
    Path("book.csv").write_text("column,level,low,high\n" + levels, encoding="utf-8")
    said = ("people-2024.csv", *way, "--table", "region", "--yes", "--out")
    succeed("init", *said, "job.yaml", "--outcome", "insured")
    job = load_job("job.yaml")
    assert (job.columns["insured"].bounds, job.columns["insured"].codes) == ((0.0, 1.0), {"no": 0.0, "yes": 1.0})
    assert "the mean is the share of 'yes'" in Path("job.yaml").read_text(encoding="utf-8")
    succeed("validate", "job.yaml")
    succeed("init", *said, "mood.yaml", "--outcome", "mood")
    left = [each.fault for each in to_do(Path("mood.yaml").read_text(encoding="utf-8"))]
    assert left == ["left to be filled: mood: {bounds: […, …], codes: {fair: …, good: …, poor: …}}"]


BOOKS = {
    "no header": ("1,2,3\n", "header: it names 1, 2, 3"),
    "a misspelt header": ("colunm,level\n", "did you mean 'column'?"),
    "empty": ("", "header: it names nothing"),
    "neither": ("column,level\nsex,\n", "neither a level nor low and high of a column, or both (line 2)"),
    "both": ("column,level,low,high\nsex,f,1,2\n", "or both (line 2)"),
    "bounds upside down": ("column,low,high\nincome,5,1\n", "low '5' and high '1' are not bounds (line 2)"),
    "bounds in words": ("column,low,high\nincome,5,many\n", "are not bounds (line 2)"),
    "a level twice": ("column,level\nsex,f\nsex,f\n", "twice, or bounds beside another line (line 3)"),
    "one field too many": ("column,level\nsex,f,m\n", "(line 2)"),
}


@pytest.mark.parametrize(("text", "found"), BOOKS.values(), ids=BOOKS)
def test_what_is_wrong_with_a_codebook_is_said(text: str, found: str, files: Path) -> None:
    Path("book.csv").write_text(text, encoding="utf-8")
    code, said = command("init", "people-2024.csv", "--codebook", "book.csv", "--out", "job.yaml")
    assert (code, found in said, Path("job.yaml").exists()) == (2, True, False), said


WRONG = {
    "no file at all": ((), "FILE, --public or --codebook"),
    "a file that is not there": (("none.csv",), "no such file"),
    "another kind of file": (("book.xlsx",), "files named .xlsx are not read"),
    "a file of SAS that is none": (("book.sas7bdat",), "not a readable .sas7bdat file"),
    "the confidential file as public": (
        ("people-2024.csv", "--public", "copy.csv"),
        "'copy.csv' is the confidential file itself",
    ),
    "an unknown outcome": (("people-2024.csv", "--outcome", "incme"), "did you mean 'income'?"),
    "an unknown weight": (("people-2024.csv", "--weight", "wieght"), "did you mean 'weight'?"),
    "an unknown category": (("people-2024.csv", "--table", "regoin"), "did you mean 'region'?"),
    "an unknown category of a table": (("people-2024.csv", "--table", "sex,regoin"), "did you mean 'region'?"),
    "a codebook that is not there": (("people-2024.csv", "--codebook", "none.csv"), "cannot be read (FileNotFoundError)"),
    "a record in place of a header": (("headless.csv",), "the first line has numbers: it is a record (line 1)"),
    "a public file with a name twice": (("people-2024.csv", "--public", "twice.csv"), "a column's name appears twice"),
    "a folder": ((".",), "a folder with files that are not Parquet"),
    "a codebook that is a folder": (("people-2024.csv", "--codebook", "."), "cannot be read (IsADirectoryError)"),
    "a path of 300 characters": (("x" * 300,), "cannot be opened"),
}


@pytest.mark.parametrize(("said", "found"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_and_nothing_written(said: tuple[str, ...], found: str, files: Path) -> None:
    Path("book.sas7bdat").write_bytes(b"\0" * 64)
    Path("book.xlsx").write_bytes(b"\0" * 64)
    Path("copy.csv").write_bytes(Path("people-2024.csv").read_bytes())
    Path("headless.csv").write_text("north,987654.5\nsouth,3\n", encoding="utf-8")
    Path("twice.csv").write_text("region,region\nnorth,south\n", encoding="utf-8")
    code, text = command("init", *said, "--out", "job.yaml")
    assert "987654.5" not in text
    assert (code, found in text, Path("job.yaml").exists()) == (2, True, False), text


def test_a_job_that_is_there_is_not_written_over(files: Path) -> None:
    Path("job.yaml").write_text("mine\n", encoding="utf-8")
    code, text = command("init", "people-2024.csv", "--out", "job.yaml")
    assert (code, "the file exists" in text, Path("job.yaml").read_text(encoding="utf-8")) == (2, True, "mine\n")
    code, text = command("init", "people-2024.csv", "--out", "none/job.yaml")
    assert (code, "its folder does not exist" in text) == (2, True)


@pytest.mark.parametrize(
    ("seen", "bounds"),
    [((5.34, 499.0), (5.3, 500.0)), ((0.0, 1.0), (0.0, 1.0)), ((-123.4, -1.0), (-130.0, -1.0)), ((7.0, 7.0), (7.0, 8.0))],
)
def test_bounds_are_rounded_away_from_what_was_seen(seen: tuple[float, float], bounds: tuple[float, float]) -> None:
    assert outward(*seen) == bounds


def test_names_that_yaml_reads_otherwise_are_quoted(tmp_path: Path) -> None:
    """Columns and levels as Yes, 1e3, a colon, a line break."""
    made = people(2).rename(columns={"region": "on", "income": "pay: all"})
    made["sex"] = np.resize(["1e3", "null", "a: b", "# TODO", "01"], len(made))
    made.to_parquet(tmp_path / "old.parquet")
    made.sample(frac=0.9, random_state=1).assign(weight=7.0).to_parquet(tmp_path / "now.parquet")
    said = ("--outcome", "pay: all", "--table", "on,sex", "--period", "2020", "--reference", "none")
    succeed("init", tmp_path / "now.parquet", "--public", tmp_path / "old.parquet", "--out", tmp_path / "j.yaml", *said)
    job = load_job(tmp_path / "j.yaml")
    assert (job.outcomes, job.cell_columns, job.period) == (("pay: all",), ("on", "sex"), "2020")
    assert job.columns["sex"].levels == ("01", "1e3", "# TODO", "a: b", "null")


def test_numbers_in_levels_go_by_size(files: Path) -> None:
    """In texts, and among whole numbers of more than a dozen, which are levels where a table or the design needs them."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        ages, states = ["65 or more", "5-9", "10-14", "under 5"], list(range(20, 0, -1))
        people(seed).assign(age=np.resize(ages, 600), state=np.resize(states, 600)).to_csv(f"{name}.csv", index=False)
    said = ("--public", "people-2022.csv", "--outcome", "income", "--table", "age,state", "--out", "job.yaml")
    succeed("init", "people-2024.csv", *said)
    job = load_job("job.yaml")
    assert job.columns["age"].levels == ("5-9", "10-14", "65 or more", "under 5")
    assert job.columns["state"].levels == tuple(range(1, 21))


def clustered(seed: int) -> pd.DataFrame:
    """Fifteen strata with two PSUs each."""
    return people(seed).assign(stratum=np.resize(range(1, 16), 600), psu=np.arange(600) // 15 % 2 + 1)


@pytest.mark.parametrize("first", [3301, 1])
def test_texts_of_digits_are_levels_in_quotes_where_a_file_has_types(first: int, files: Path) -> None:
    """Control: numbers are levels without quotes. A job with the other ones is told what to write."""
    for period in ("2022", "2024"):
        frame = pd.read_parquet(f"people-{period}.parquet")
        frame["region"] = np.where(frame["region"] == "north", first, first + 1)
        frame.to_parquet(f"numbers-{period}.parquet")
        frame.assign(region=frame["region"].astype(str)).to_parquet(f"texts-{period}.parquet")
    said = ("--outcome", "income", "--table", "region", "--weight", "weight", "--yes")
    for kind, levels in (("texts", (str(first), str(first + 1))), ("numbers", (first, first + 1))):
        succeed("init", f"{kind}-2024.parquet", "--public", f"{kind}-2022.parquet", "--out", f"{kind}.yaml", *said)
        text = succeed("validate", f"{kind}.yaml")
        assert load_job(f"{kind}.yaml").columns["region"].levels == levels
    job = Path("numbers.yaml").read_text(encoding="utf-8").replace("numbers-", "texts-")
    Path("other.yaml").write_text(job, encoding="utf-8")
    code, text = command("validate", "other.yaml")
    assert code != 0
    assert f"put the levels in quotes, such as '{first}'" in " ".join(text.split())


def test_columns_of_the_design_are_known_by_their_names(files: Path) -> None:
    """And the reference's design effects are taken; the job validates as it is. Control: `none` leaves them out."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        clustered(seed).to_parquet(f"{name}.parquet")
    said = ("people-2024.parquet", "--public", "people-2022.parquet", "--outcome", "income", "--out")
    code, text = command("init", *said, "job.yaml")
    assert (code, "survey design: strata stratum; PSU psu" in text) == (0, True), text
    survey = load_job("job.yaml").survey
    assert (survey.design_strata, survey.psu, survey.design_effect) == (("stratum",), "psu", "reference")
    succeed("validate", "job.yaml")
    assert "design effects of the reference" in " ".join(command("plan", "job.yaml")[1].split())
    succeed("init", *said, "plain.yaml", "--psu", "none", "--design-strata", "none")
    plain = load_job("plain.yaml").survey
    assert (plain.design_strata, plain.psu, plain.design_effect) == ((), None, None)
    code, text = command("init", *said, "b.yaml", "--psu", "psux")
    assert (code, "the file has no column 'psux'" in text, "did you mean 'psu'?" in text) == (2, True, True)


def test_public_weights_of_design_strata_are_proposed(files: Path) -> None:
    """Control: without strata, and for a mechanism that does not use them, no line says so."""
    options = ("people-2024.parquet", "--public", "people-2022.parquet", "--reference", "none", "--outcome", "income")
    strata = ("--design-strata", "region")
    for name, more, proposed in (("a", strata, True), ("b", (), False), ("c", (*strata, "--records"), False)):
        succeed("init", *options, "--out", f"{name}.yaml", *more)
        text = Path(f"{name}.yaml").read_text(encoding="utf-8")
        assert ("If the weight of every design stratum is public," in text) == proposed, name


@pytest.mark.parametrize(
    ("stem", "name", "period"),
    [
        *(("people-2024", "people", "2024"), ("acs_2024q1", "acs", "2024q1"), ("q2_2023_lfs", "lfs", "q2-2023")),
        *(("lfs_20240131", "lfs", "20240131"), ("2024-03-hh", "hh", "2024-03"), ("nscg2016-17", "nscg", "2016-17")),
        *(
            ("wave3_panel", "panel", None),
            ("survey_v2", "survey", None),
            ("nscg17", "nscg", None),
            ("2024", "survey", "2024"),
        ),
        *(
            ("lfs-march-2023", "lfs", "march-2023"),
            ("income_2024_final", "income_final", "2024"),
            ("age_10", "age_10", None),
        ),
    ],
)
def test_a_dataset_s_name_is_that_of_the_file_without_its_period(stem: str, name: str, period: str | None) -> None:
    """So next period's file opens the same account of the ledger."""
    assert dataset_and_period(Path(f"{stem}.csv"), None) == (name, period)


def test_the_job_says_what_its_dataset_s_name_is_for(files: Path) -> None:
    said = ("people-2024.csv", "--public", "people-2022.csv", "--outcome", "income", "--table", "sex", "--out")
    succeed("init", *said, "job.yaml")
    head = Path("job.yaml").read_text(encoding="utf-8").splitlines()[1]
    assert head.startswith("dataset: people  # identifies the survey in the ledger: keep this name in every period")


def test_an_identifier_is_no_outcome_and_a_household_is_proposed_as_the_unit(files: Path) -> None:
    """The one number that is left is the outcome. A file with a household became a job without outcome and tables.
    Controls: without such columns the line names none, and a household that is named is the outcome.
    """
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        rows = people(seed).assign(household=np.arange(600) // 2, person_id=np.arange(600), household_size=2)
        rows.drop(columns="number").to_parquet(f"{name}.parquet")
    said = ("people-2024.parquet", "--public", "people-2022.parquet", "--yes", "--out")
    succeed("init", *said, "job.yaml")
    text = Path("job.yaml").read_text(encoding="utf-8")
    assert "\n# privacy_unit: {column: household, most: …}  # protects all records of one person" in text
    assert "  # person_id, an identifier, to judge by its name\n" in text
    job = load_job("job.yaml")
    assert (job.outcomes, job.cell_columns) == (("income",), ("region", "sex"))
    Path("job.yaml").write_text(
        text.replace("# privacy_unit", "privacy_unit").replace("most: …", "most: 2"), encoding="utf-8"
    )
    succeed("validate", "job.yaml")
    succeed("init", *said, "b.yaml", "--outcome", "household")
    assert load_job("b.yaml").outcomes == ("household",)
    succeed("init", "people-2024.csv", "--public", "people-2022.csv", "--yes", "--out", "c.yaml")
    assert "\n# privacy_unit: {column: …, most: …}" in Path("c.yaml").read_text(encoding="utf-8")


def test_a_level_of_few_public_records_is_proposed_to_be_merged(files: Path) -> None:
    """Once a target is named, the job merges it. Control: five public records, and levels of the confidential file."""
    for name, seed, few in (("people-2024", 1, 1), ("people-2022", 2, 3)):
        people(seed).assign(
            sex=lambda rows, few=few: ["Unsaid"] * few + ["Rather"] * 5 + rows["sex"].tolist()[few + 5 :]
        ).to_csv(f"{name}.csv", index=False)
    said = ("people-2024.csv", "--public", "people-2022.csv", "--outcome", "income", "--table", "sex", "--out")
    succeed("init", *said, "job.yaml")
    text = Path("job.yaml").read_text(encoding="utf-8")
    assert "\n# recode: {sex: {Unsaid: …}}  # levels with fewer than 5 public records" in text
    Path("job.yaml").write_text(
        text.replace("# recode: {sex: {Unsaid: …}}", "recode: {sex: {Unsaid: 'No'}}"), encoding="utf-8"
    )
    assert load_job("job.yaml").columns["sex"].levels == ("No", "Rather", "Yes")
    succeed("validate", "job.yaml")
    succeed("init", "people-2024.csv", "--i-know-this-reads-confidential-data", *said[3:], "b.yaml")
    assert "recode" not in Path("b.yaml").read_text(encoding="utf-8")


def test_replicate_weights_are_known_by_their_names_and_their_method_is_asked_for(files: Path) -> None:
    """A line to fill names them; with the method the job validates. Control: seven such columns are taken for no design."""
    for name, seed in (("people-2024", 1), ("people-2022", 2)):
        rows, rng = people(seed), np.random.default_rng(seed)
        rows.assign(**{f"brr_{r}": rows["weight"] * rng.choice([0.5, 1.5], 600) for r in range(1, 9)}).to_parquet(
            f"{name}.parquet"
        )
    said = ("people-2024.parquet", "--public", "people-2022.parquet", "--outcome", "income", "--weight", "weight", "--out")
    succeed("init", *said, "job.yaml")
    (left,) = to_do(Path("job.yaml").read_text(encoding="utf-8"))
    assert "the method of brr_1 to brr_8" in left.fault
    assert "fay: 0.5" in left.fault
    lines = Path("job.yaml").read_text(encoding="utf-8").splitlines()
    (ready,) = [each for each in lines if each.startswith("# survey: ")]
    kept = [each for each in lines if not each.startswith("survey: ") and "TODO" not in each]
    text = "\n".join(each.removeprefix("# ") if each == ready else each for each in kept)
    Path("filled.yaml").write_text(text + "\n", encoding="utf-8")
    stated = load_job("filled.yaml").survey.replicate_weights
    assert stated is not None
    assert (stated.kind, stated.fay, stated.prefix, stated.number) == ("fay", 0.5, "brr_", 8)
    assert load_job("filled.yaml").survey.design_effect == "reference"
    succeed("validate", "filled.yaml")
    pd.read_parquet("people-2022.parquet").drop(columns="brr_8").to_parquet("people-2022.parquet")
    pd.read_parquet("people-2024.parquet").drop(columns="brr_8").to_parquet("people-2024.parquet")
    succeed("init", *said, "seven.yaml")
    assert load_job("seven.yaml").survey.replicate_weights is None


def test_a_folder_that_does_not_exist_is_refused_before_heavy_modules_are_imported(files: Path) -> None:
    """So the message comes at once. Control: with the folder, pandas is imported."""
    said = "import sys; from dpdist.cli.main import app\ntry: app(sys.argv[1:])\nfinally: print('pandas' in sys.modules)"
    for to, heavy in (("none/job.yaml", "False"), ("job.yaml", "True")):
        found = [sys.executable, "-c", said, "init", "people-2024.parquet", "--yes", "--out", to]
        done = subprocess.run(found, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[-1] == heavy, done.stdout + done.stderr
        assert ("its folder does not exist" in done.stderr + done.stdout) == (heavy == "False")
