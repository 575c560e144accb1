"""Whatever is wrong with a job or a file: exit 2, one message with place and remedy, nothing written, no value shown."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from command_line import invoke, succeed
from tiny_survey import JOB, survey

import dpdist
from dpdist.cli.caution_lines import FROM_MECHANISM, caution_lines
from dpdist.job.loading import find_job
from dpdist.ledger.runs import NOT_COUNTED
from dpdist.release import cautions

CANARY = 987654.321
CANARY_LEVEL = "zxq-canary"
BAD_ROW = 7

PUBLIC_FILES = {
    "codebook.json",
    "index.html",
    "manifest.json",
    "statement.json",
    "tables/salaries.csv",
    "tables.xlsx",
    "tables/salaries.parquet",
    "tables/salaries.wide.csv",
    "synthetic/set-1.csv",
    "synthetic/set-1.parquet",
    "released/seed",
    "released/job.json",
    "released/promise.json",
    "released/proof.json",
    "released/frame.parquet",
    "released/set-1.json",
}

Spoil = Callable[[pd.DataFrame], pd.DataFrame]
both_formats = pytest.mark.parametrize("suffix", [".parquet", ".csv"])


def with_value(column: str, value: object, row: int = BAD_ROW) -> Spoil:
    def spoil(records: pd.DataFrame) -> pd.DataFrame:
        records.loc[row, column] = value
        return records

    return spoil


def write(folder: Path, suffix: str, records: pd.DataFrame) -> Path:
    path = folder / f"survey{suffix}"
    if suffix == ".csv":
        records.to_csv(path, index=False)
    else:
        records.to_parquet(path)
    return path


@dataclass(frozen=True)
class Attempt:
    """A run's exit code, its two streams, and the files that stand in its folder afterwards."""

    exit_code: int
    stdout: str
    stderr: str
    error: BaseException | None
    files: set[str]
    suffix: str = ".parquet"

    def placed(self, text: str) -> str:
        """Rows of the table, from 0 in these tests, as messages name them: from 1, or as lines of a CSV file."""
        kind, before = ("line", 2) if self.suffix == ".csv" else ("row", 1)

        def moved(found: re.Match[str]) -> str:
            return kind + found[1] + re.sub(r"\d+", lambda row: str(int(row[0]) + before), found[2])

        return re.sub(r"\brow(s?)((?:,? \d+)+)", moved, text)


def run(folder: Path, *, job: str = JOB, input: Path | None, options: tuple[str, ...] = ()) -> Attempt:
    (folder / "job.yaml").write_text(job, encoding="utf-8")
    given = [] if input is None else ["--input", str(input)]
    done = invoke("run", folder / "job.yaml", "--workspace", folder / "ws", *given, *options)
    error = None if isinstance(done.exception, SystemExit) else done.exception
    names = {path.name for path in folder.iterdir()}
    return Attempt(done.exit_code, done.stdout, done.stderr, error, names, ".parquet" if input is None else input.suffix)


def run_on(folder: Path, suffix: str, spoil: Spoil, job: str = JOB, options: tuple[str, ...] = ()) -> Attempt:
    return run(folder, job=job, input=write(folder, suffix, spoil(survey())), options=options)


def assert_refused(attempt: Attempt, *says: str, problems: int = 1) -> None:
    """Exit 2, `problems` messages that say what is wrong and what to do, and nothing written or printed besides."""
    assert attempt.error is None, f"a traceback instead of a message: {attempt.error!r}"
    assert attempt.exit_code == 2, attempt.stderr
    assert "ws" not in attempt.files, "a workspace was written"
    assert attempt.stdout == ""
    assert f"{problems} problem" in attempt.stderr
    assert attempt.stderr.count("allowed:") <= attempt.stderr.count("remedy:") == problems, attempt.stderr
    assert "remedy:  \n" not in attempt.stderr
    assert "allowed: \n" not in attempt.stderr
    for text in map(attempt.placed, says):
        assert text in attempt.stderr, attempt.stderr


def assert_hidden(attempt: Attempt, value: str) -> None:
    assert value not in attempt.stdout + attempt.stderr


PROGRESS = re.compile(r" \d+ s elapsed")


@both_formats
def test_the_unspoilt_survey_runs_and_leaves_public_complete(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, survey())
    attempt = run(tmp_path, input=path)
    public = tmp_path / "ws" / "public"
    lines = attempt.stderr.splitlines()
    told = cautions(dpdist.plan(dpdist.parse_job(JOB), path), workspace=str(tmp_path / "ws"))
    assert {one.code for one in told} == {*FROM_MECHANISM[:2], "fit_unseen", "exact_losses"}, "none is about the file"
    assert attempt.exit_code == 0
    said = [line for line in lines if not PROGRESS.search(line)]
    assert said == [*caution_lines(told, 80), NOT_COUNTED], "a slow machine hears of progress, too"
    assert {path.relative_to(public).as_posix() for path in public.rglob("*") if path.is_file()} == PUBLIC_FILES
    listed = json.loads((public / "manifest.json").read_text())["files"]
    assert set(listed) == PUBLIC_FILES - {"manifest.json"}
    assert all(hashlib.sha256((public / name).read_bytes()).hexdigest() == digest for name, digest in listed.items())


VALUES = {
    "negative weight": ("weight", -CANARY, "weight: negative weights (row 7)", "correct the file"),
    "zero weight": ("weight", 0.0, "weight: zero weights (row 7)", "delete these records from the file"),
    "missing weight": ("weight", np.nan, "weight: missing weights (row 7)", "complete the column"),
    "infinite weight": ("weight", np.inf, "weight: ", "correct the file"),
    "negative outcome": ("salary", -CANARY, "salary: negative values (row 7)", "correct the file"),
    "zero outcome": ("salary", 0.0, "salary: zeros (row 7)", "columns.salary.zeros: drop"),
    "missing outcome": ("salary", np.nan, "salary: missing values (row 7)", "columns.salary.missing: drop"),
    "infinite outcome": ("salary", np.inf, "salary: ", "correct the file"),
    "outcome out of bounds": ("salary", CANARY * 10, "salary: values outside the public bounds (row 7)", "outside: clip"),
    "unlisted level": (
        "sex",
        CANARY_LEVEL,
        "sex: the file contains values that are not among the declared levels (row 7)",
        "columns.sex.levels",
    ),
    "missing level": ("sex", None, "sex: missing values (row 7)", "columns.sex.missing: category"),
}


@both_formats
@pytest.mark.parametrize(("column", "value", "found", "remedy"), VALUES.values(), ids=VALUES)
def test_a_bad_value_is_refused_with_its_column_row_and_remedy_and_shown_only_on_request(
    tmp_path: Path, suffix: str, column: str, value: object, found: str, remedy: str
) -> None:
    attempt = run_on(tmp_path, suffix, with_value(column, value))
    assert_refused(attempt, found, "(row 7)", remedy, f"survey{suffix}")
    text = str(value).strip("-")
    if text.startswith(("98765", "zxq")):
        assert_hidden(attempt, text)
        shown = run_on(tmp_path, suffix, with_value(column, value), options=("--show-values",))
        assert_refused(shown, found, remedy, text)


def test_the_canary_check_sees_a_value_that_is_printed(tmp_path: Path) -> None:
    shown = run_on(tmp_path, ".csv", with_value("weight", -CANARY), options=("--show-values",))
    with pytest.raises(AssertionError):
        assert_hidden(shown, str(CANARY))


@both_formats
def test_many_bad_values_of_a_kind_make_one_message_with_the_first_rows(tmp_path: Path, suffix: str) -> None:
    def spoil(records: pd.DataFrame) -> pd.DataFrame:
        records.loc[[3, 50, 70, 100, 119], "weight"] = -CANARY
        return records

    attempt = run_on(tmp_path, suffix, spoil)
    assert_refused(attempt, "weight: negative weights (rows 3, 50, 70, …)")


@both_formats
def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path, suffix: str) -> None:
    def spoil(records: pd.DataFrame) -> pd.DataFrame:
        records.loc[3, "weight"], records.loc[50, "salary"], records.loc[119, "sex"] = -1.0, 0.0, "x"
        return records

    says = (
        "weight: negative weights (row 3)",
        "salary: zeros (row 50)",
        "sex: the file contains values that are not among the declared levels (row 119)",
    )
    assert_refused(run_on(tmp_path, suffix, spoil), *says, problems=3)


@both_formats
@pytest.mark.parametrize("column", ["field", "sex", "salary", "weight"])
def test_a_missing_column_is_named(tmp_path: Path, suffix: str, column: str) -> None:
    attempt = run_on(tmp_path, suffix, lambda records: records.rename(columns={column: "other"}))
    assert_refused(attempt, f"{column}: missing column", "other", "correct the name in the job or the file")


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("salary", str(CANARY), ("numbers", "integers or floats")),
        ("weight", str(CANARY), ("numbers", "integers or floats")),
        ("sex", CANARY, ("double", "levels")),
    ],
)
def test_a_wrong_type_in_parquet_is_named_without_a_value(
    tmp_path: Path, column: str, value: object, says: tuple[str, ...]
) -> None:
    attempt = run_on(tmp_path, ".parquet", lambda records: records.assign(**{column: value}))
    assert_refused(attempt, f"{column}: wrong type: ", *says)
    assert_hidden(attempt, str(CANARY))


@pytest.mark.parametrize("text", [f"about {CANARY}", f"{CANARY} EUR", f"1,{CANARY}", f"0x{CANARY}"])
def test_text_where_numbers_belong_is_refused_with_its_row_in_csv(tmp_path: Path, text: str) -> None:
    def spoil(records: pd.DataFrame) -> pd.DataFrame:
        return with_value("salary", text)(records.astype({"salary": object}))

    attempt = run_on(tmp_path, ".csv", spoil)
    assert_refused(attempt, "salary: values that are not numbers (row 7)", "numbers with a decimal point")
    assert_hidden(attempt, str(CANARY))
    assert_refused(run_on(tmp_path, ".csv", spoil, options=("--show-values",)), text)


@both_formats
def test_a_file_without_records_is_refused(tmp_path: Path, suffix: str) -> None:
    assert_refused(run_on(tmp_path, suffix, lambda records: records.iloc[:0]), "no record", "at least one record")


@both_formats
def test_a_universe_that_keeps_nobody_is_refused(tmp_path: Path, suffix: str) -> None:
    job = JOB + "universe: [{column: sex, keep: [f]}]\n"
    attempt = run_on(tmp_path, suffix, lambda records: records.assign(sex="m"), job)
    assert_refused(attempt, "no record is left", "universe")


BROKEN_FILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "Parquet of 0 bytes": (".parquet", lambda content: b""),
    "CSV of 0 bytes": (".csv", lambda content: b""),
    "Parquet of garbage": (".parquet", lambda content: f"garbage {CANARY} ".encode() * 100),
    "truncated Parquet": (".parquet", lambda content: content[: len(content) // 2]),
    "Parquet with damaged pages": (".parquet", lambda content: content[:60] + b"\xff" * 200 + content[260:]),
    "Parquet named .csv": (".csv", lambda content: content),
    "CSV that is not UTF-8": (
        ".csv",
        lambda content: f"field,sex,salary,weight\nar\xe9s,f,{CANARY},1.0\n".encode("latin1"),
    ),
}


@pytest.mark.parametrize(("suffix", "spoil"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, suffix: str, spoil: Callable[[bytes], bytes]) -> None:
    good = write(tmp_path, ".parquet", survey())
    broken = tmp_path / f"broken{suffix}"
    broken.write_bytes(spoil(good.read_bytes()))
    attempt = run(tmp_path, input=broken)
    assert_refused(attempt, f"broken{suffix}", "file: ")
    assert_hidden(attempt, str(CANARY))


@pytest.mark.parametrize("line", [f"arts,f,{CANARY}", f"arts,f,{CANARY},1.0,5"], ids=["short", "long"])
def test_a_csv_line_with_the_wrong_number_of_fields_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, ".csv", survey())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:9], line, *lines[9:]]) + "\n")
    attempt = run(tmp_path, input=path)
    assert_hidden(attempt, str(CANARY))
    assert_refused(attempt, "line 10", "number of fields")


def test_a_csv_without_a_header_line_does_not_spill_its_first_record(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", with_value("salary", CANARY, row=0)(survey()))
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    attempt = run(tmp_path, input=path)
    assert_hidden(attempt, str(CANARY))
    assert_refused(attempt, "survey.csv", "header line")


@both_formats
@pytest.mark.parametrize("column", ["sex", "salary", "weight"])
def test_a_column_that_stands_twice_in_the_file_is_refused(tmp_path: Path, suffix: str, column: str) -> None:
    table = pa.Table.from_pandas(survey(), preserve_index=False).replace_schema_metadata(None)
    table = pa.Table.from_arrays([*table.columns, table.column(column)], names=[*table.column_names, column])
    path = tmp_path / f"survey{suffix}"
    if suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    assert_refused(run(tmp_path, input=path), f"{column}: ", "twice")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert_refused(run(tmp_path, input=tmp_path / "nowhere.parquet"), "nowhere.parquet", "no such file", "check the path")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert_refused(run(tmp_path, input=tmp_path), "file: ", "a Parquet file, a CSV file")


@pytest.mark.parametrize("below", ["", "/ws"])
def test_a_file_is_no_workspace(tmp_path: Path, below: str) -> None:
    """It was said that user 0 may not write there. `report` of a folder that no run has written is the same mistake."""
    (tmp_path / "afile").write_text("", encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    path, place = write(tmp_path, ".parquet", survey()), f"{tmp_path}/afile{below}"
    done = invoke("run", tmp_path / "job.yaml", "--input", path, "--workspace", place)
    assert done.exit_code == 2
    assert "it is a file, or lies in one" in done.stderr
    assert "may write" not in done.stderr
    refused = invoke("report", tmp_path)
    assert (refused.exit_code, "give the workspace of a finished run" in refused.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["absent", "empty", "file"])
@pytest.mark.parametrize("verb", ["report", "publish", "audit", "status"])
def test_a_folder_that_no_run_has_written_is_a_wrong_folder(tmp_path: Path, verb: str, kind: str) -> None:
    """`publish` and `audit` ended with 1, and `publish` missed a file of a release that was never there."""
    place = tmp_path / kind
    if kind == "empty":
        place.mkdir()
    elif kind == "file":
        place.write_text("", encoding="utf-8")
    refused = invoke(verb, place)
    assert refused.exit_code == 2, refused.stderr
    assert "job.json" not in refused.stderr
    assert re.search(
        r"(workspace of a finished run|workspace of a run|folder given to run)", " ".join(refused.stderr.split())
    )
    assert place.exists() == (kind != "absent"), "nothing is written"
    assert kind != "empty" or not [file for file in place.iterdir() if file.name != ".public.lock"]


def test_no_input_at_all_is_refused_with_both_ways_to_give_one(tmp_path: Path) -> None:
    assert_refused(run(tmp_path, input=None), "input: no input", "--input PATH", "simulate")


def test_an_unknown_job_is_refused_with_the_names_of_the_shipped_ones(tmp_path: Path) -> None:
    done = invoke("run", "doctorate", "--workspace", tmp_path / "ws")
    assert done.exit_code == 2
    assert "no such file" in done.stderr
    shipped = ", ".join(sorted(path.stem for path in find_job("doctorates").parent.glob("*.yaml")))
    assert shipped in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_validate_and_plan_refuse_what_run_refuses(tmp_path: Path, verb: str) -> None:
    path = write(tmp_path, ".parquet", with_value("weight", -CANARY)(survey()))
    ran = run(tmp_path, input=path)
    done = invoke(verb, tmp_path / "job.yaml", "--input", path)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", ran.stderr)


@both_formats
def test_a_stratum_too_small_for_the_model_is_named_with_the_size_it_needs(tmp_path: Path, suffix: str) -> None:
    attempt = run_on(tmp_path, suffix, lambda records: records.iloc[:63])
    assert_refused(attempt, "stratum law: 3 records", "p = 2", "n > p + 1 = 3", "pool strata")


def test_a_stratum_just_large_enough_is_not_refused_before_the_fit(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet", survey().iloc[:64])
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    succeed("validate", tmp_path / "job.yaml", "--input", path)


@both_formats
@pytest.mark.parametrize("column", ["salary", "weight"])
def test_a_stratum_with_a_constant_outcome_or_weight_is_named_without_the_constant(
    tmp_path: Path, suffix: str, column: str
) -> None:
    def spoil(records: pd.DataFrame) -> pd.DataFrame:
        records.loc[records["field"] == "law", column] = CANARY
        return records

    attempt = run_on(tmp_path, suffix, spoil)
    assert_refused(attempt, "stratum law: outcome or weight is the same", "salary and weight that vary", "pool strata")
    assert_hidden(attempt, str(CANARY))


@both_formats
def test_a_design_stratum_with_a_single_record_is_named(tmp_path: Path, suffix: str) -> None:
    job = JOB.replace("strata: [field]\noutcome", "strata: []\noutcome").replace("by: [field, sex], ", "")
    attempt = run_on(tmp_path, suffix, lambda records: records.iloc[:61], job)
    assert_refused(attempt, "survey.design_strata: a single record (law)", "two records or more", "merge design strata")


def test_a_design_stratum_with_a_single_psu_is_named(tmp_path: Path) -> None:
    job = JOB.replace("design_strata: [field]", "design_strata: [field], psu: town")
    towns = np.repeat(["a", "b", "c"], [30, 30, 60])
    attempt = run_on(tmp_path, ".parquet", lambda records: records.assign(town=towns), job)
    assert_refused(attempt, "a single PSU (law)", "two PSUs or more", "merge design strata")


def test_a_single_record_without_design_strata_is_told_by_its_size_alone(tmp_path: Path) -> None:
    job = (
        JOB.replace(", design_strata: [field]", "")
        .replace("strata: [field]", "strata: []")
        .replace("by: [field, sex], ", "")
    )
    attempt = run_on(tmp_path, ".parquet", lambda records: records.iloc[:1], job)
    assert_refused(attempt, "stratum all: 1 record")
    proper = job.replace("predictors: [sex]", "prior: {name: proper}")
    attempt = run_on(tmp_path, ".parquet", lambda records: records.iloc[:1], proper)
    assert_refused(attempt, "a single record (all)", "more records")


JOB_EDITS = {
    "epsilon in words": ('"10.8"', "plenty", "epsilon", "budget.epsilon: 'plenty'", '"1/3"'),
    "YAML syntax": ("weight: weight,", "weight: weight: 3,", "weight: 3", "YAML: ", "indentation and quotes"),
    "key twice": ("dataset: tiny", 'dataset: tiny\nperiod: "2019"', 'period: "2020"', "period: given twice", "delete one"),
}
"""One for the parser, one for the types, one for keys; all others are in `tests/job/bad_jobs`."""


@pytest.mark.parametrize(("old", "new", "at", "found", "remedy"), JOB_EDITS.values(), ids=JOB_EDITS)
def test_a_wrong_job_is_refused_with_key_line_and_remedy(
    tmp_path: Path, old: str, new: str, at: str, found: str, remedy: str
) -> None:
    assert old in JOB
    job = JOB.replace(old, new, 1)
    line = job[: job.index(at)].count("\n") + 1
    attempt = run(tmp_path, job=job, input=write(tmp_path, ".parquet", survey()))
    assert_refused(attempt, "job.yaml", found, remedy, f"(line {line})")


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", "just words"], ids=["empty", "list", "null", "words"])
def test_a_job_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert_refused(run(tmp_path, job=text, input=None), "job: not a mapping of keys")


@pytest.mark.parametrize("name", ["count", "statistic", "variable", "estimate", "direct"])
def test_a_category_may_not_bear_a_name_that_the_release_uses(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, ".parquet", survey().rename(columns={"sex": name}))
    attempt = run(tmp_path, job=JOB.replace("sex", name), input=path)
    assert attempt.error is None
    assert (attempt.exit_code, "ws" in attempt.files) == (2, False)
    assert f"'{name}'" in attempt.stderr


def test_an_unforeseen_error_is_told_without_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries quote the value that they stumble over."""

    def stumble(*_: object) -> None:
        raise ValueError(f"cannot parse '{CANARY}'")

    monkeypatch.setattr("dpdist.release.run", stumble)
    attempt = run(tmp_path, input=None)
    assert (attempt.exit_code, attempt.error) == (70, None)
    assert "ValueError" in attempt.stderr
    assert_hidden(attempt, str(CANARY))
    assert str(CANARY) in run(tmp_path, input=None, options=("--show-values",)).stderr


def test_messages_are_plain_text_whatever_the_terminal(tmp_path: Path) -> None:
    attempt = run_on(tmp_path, ".csv", with_value("weight", -CANARY))
    assert attempt.stderr == click.unstyle(attempt.stderr)


def test_with_json_a_failure_is_the_last_event_and_standard_output_is_nothing_but_events(tmp_path: Path) -> None:
    attempt = run(tmp_path, input=tmp_path / "nowhere.parquet", options=("--json",))
    events = [json.loads(line) for line in attempt.stdout.splitlines()]
    assert events[-1] == {"event": "failed", "exit_code": 2}
    assert "nowhere.parquet" in attempt.stderr


STRICT = JOB.replace("{name: weighted, weights: fixed_point}", "{name: tables}").replace(
    "strata: [field]\noutcome: salary\nmodel: {family: lognormal, predictors: [sex]}", "outcome: salary"
)
STRICT = STRICT.replace("[0, 2000000]}", "[0, 2000000], outside: clip}").replace("sampler: {name: exact, draws: 100}\n", "")


@both_formats
@pytest.mark.parametrize("verb", ["run", "validate", "plan"])
def test_a_weight_that_is_not_in_the_file_is_said_before_its_bounds_are_asked_for(
    tmp_path: Path, suffix: str, verb: str
) -> None:
    """Control: of one that is in the file the bounds are asked for, and so they are without a file."""
    path = write(tmp_path, suffix, survey())

    def told(weight: str, *more: str) -> str:
        (tmp_path / "job.yaml").write_text(STRICT.replace("weight: weight", f"weight: {weight}"), encoding="utf-8")
        to = ("--workspace", str(tmp_path / "ws")) if verb == "run" else ()
        done = invoke(verb, tmp_path / "job.yaml", *to, *more)
        assert done.exit_code == 2, done.output
        return done.output

    said = told("wieght", "--input", str(path))
    assert "wieght: missing column" in said
    assert "the file has field, sex, salary, weight" in said
    assert "did you mean 'weight'?" in said
    assert "public bounds" not in said
    assert "need public bounds of the weight" in told("weight", "--input", str(path))
    assert "need public bounds of the weight" in told("wieght")
    if suffix == ".csv":  # without a header its first line is a record
        path.write_text("arts,f,51234.5,17.25\nlaw,m,61234.5,18.25\n", encoding="utf-8")
        assert not [value for value in ("51234.5", "17.25") if value in told("weight", "--input", str(path))]
