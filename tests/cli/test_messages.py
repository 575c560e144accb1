"""What messages say to somebody who writes a first job: what is wrong, by its name, and a remedy that works."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from command_line import invoke, succeed

import dpdist
import dpdist.release
from dpdist.cli.table_text import figures
from dpdist.core.errors import DataError, JobError, Problem
from dpdist.publish.writers.workbook import write_workbook

JOB = """
dataset: trucks
period: "2002"
columns:
  state: {levels: [CA, OR, WA]}
  truck_type: {levels: [heavy, light]}
  miles_2002: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 100], outside: clip}
survey: {weight: weight}
outcome: miles_2002
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
reference: {path: earlier.parquet, period: "1997", provenance: the file of 1997}
tables:
  - {name: trucks, by: [state, truck_type], statistics: [count, {mean: miles_2002}]}
runtime: {executor: serial}
"""


def survey(seed: int, n: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kind = rng.choice(["heavy", "light"], n)
    return pd.DataFrame(
        {
            "state": rng.choice(["CA", "OR", "WA"], n),
            "truck_type": kind,
            "miles_2002": np.exp(rng.normal(9.5, 0.6, n)).round(),
            "weight": np.where(kind == "heavy", 3.0, 40.0) * np.exp(rng.normal(0.0, 0.1, n)),
        }
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    survey(1).to_parquet("earlier.parquet")
    survey(2).to_parquet("now.parquet")
    Path("job.yaml").write_text(JOB)
    return tmp_path


def problems(old: str, new: str) -> tuple[Problem, ...]:
    """The problems of the job with one change."""
    assert old in JOB
    with pytest.raises(JobError) as refused:
        dpdist.parse_job(JOB.replace(old, new))
    return refused.value.problems


def only(found: tuple[Problem, ...]) -> Problem:
    (problem,) = found
    return problem


def test_a_misspelt_outcome_is_one_problem_with_the_nearest_name() -> None:
    problem = only(problems("outcome: miles_2002", "outcome: miles2002"))
    assert (problem.where, problem.fault) == ("outcome", "no column 'miles2002' is declared")
    assert problem.remedy.startswith("did you mean 'miles_2002'?")
    assert only(problems("outcome: miles_2002", "outcome: Miles_2002")).remedy.startswith("did you mean 'miles_2002'?")


def test_control_an_outcome_like_no_column_is_to_be_declared() -> None:
    found = problems("outcome: miles_2002", "outcome: salary")
    assert found[0].remedy == "add salary: {bounds: [lower, upper]} to columns"


def test_a_misspelt_column_of_a_table_names_the_nearest() -> None:
    assert only(problems("by: [state, truck_type]", "by: [state, trucktype]")).remedy.startswith(
        "did you mean 'truck_type'?"
    )
    assert only(problems("{mean: miles_2002}", "{mean: miles2002}")).remedy.startswith("did you mean 'miles_2002'?")


def test_a_mean_of_a_category_says_what_to_do() -> None:
    problem = only(problems("{mean: miles_2002}", "{mean: truck_type}"))
    assert problem.fault == "a mean needs numbers, and 'truck_type' is a category with levels"
    assert "put 'truck_type' into `by` and write count" in problem.remedy
    assert "{mean: miles_2002}" in problem.remedy
    problem = only(problems("{mean: miles_2002}", "{mean: weight}"))
    assert problem.fault == "a mean needs an outcome, and 'weight' is not listed under `outcome`"


@pytest.mark.parametrize("at", ["  state:", "survey:", "  - {name: trucks"])
def test_a_tab_in_front_of_a_key_is_named(at: str) -> None:
    """Control: other wrong YAML has the general remedy."""
    problem = only(problems(at, "\t" + at.lstrip()))
    assert (problem.fault, problem.remedy) == (
        "a tab at the beginning of the line",
        "indent by spaces: YAML takes no tabs there",
    )
    assert problem.places == (f"line {JOB[: JOB.index(at)].count(chr(10)) + 1}",)
    assert only(problems("survey: {weight: weight}", "survey: {weight: weight")).remedy == "check indentation and quotes"


def refused(data: pd.DataFrame, job: str = JOB) -> DataError:
    with pytest.raises(DataError) as error:
        dpdist.validate(job, data)
    return error.value


@pytest.mark.usefixtures("folder")
def test_levels_in_other_case_are_told_apart_from_unknown_ones() -> None:
    data = survey(2)
    data["truck_type"] = data["truck_type"].str.capitalize()
    problem = only(refused(data).problems)
    assert problem.fault == "values that differ from declared levels only by capital letters"
    assert "as the job writes them: 'heavy', 'light'" in problem.allowed
    data.loc[0, "truck_type"] = "bus"
    assert {each.fault for each in refused(data).problems} == {
        "values that differ from declared levels only by capital letters",
        "the file contains values that are not among the declared levels",
    }


@pytest.mark.usefixtures("folder")
def test_a_reference_without_the_outcome_is_what_the_message_is_about() -> None:
    """Control: the same column missing in the confidential file is about the data."""
    survey(1).drop(columns="miles_2002").to_parquet("earlier.parquet")
    error = refused(survey(2))
    assert str(error).startswith("reference earlier.parquet: 1 problem\n  miles_2002: missing column")
    assert "use a reference that has it" in only(error.problems).remedy
    survey(1).to_parquet("earlier.parquet")
    assert str(refused(survey(2).drop(columns="miles_2002"))).startswith("data the table in memory: 1 problem")


@pytest.mark.usefixtures("folder")
def test_records_of_a_reference_without_the_outcome_may_be_left_out() -> None:
    """The remedy was that of the confidential file, whose number of records must not tell of an outcome. A job that does
    as the messages say is valid. Control: such records of the confidential file.
    """
    whole, earlier = survey(2), survey(1)
    earlier.assign(miles_2002=earlier["miles_2002"].where(earlier.index > 2)).to_parquet("earlier.parquet")
    assert only(refused(whole).problems).remedy.startswith("leave these records out of the reference, which is public")
    earlier[earlier.index > 2].to_parquet("earlier.parquet")
    holes = whole.assign(miles_2002=whole["miles_2002"].where(whole.index > 2))
    remedy = only(refused(holes).problems).remedy
    assert "of the reference" not in remedy
    assert remedy.endswith("leave these records out of the file and state this under assumed_public")
    dpdist.validate(JOB + "assumed_public: [the number of trucks with known miles]\n", holes[holes.index > 2])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("weight", [0.0, np.nan])
def test_the_remedy_for_records_without_a_weight_works(weight: float) -> None:
    data = survey(2)
    data.loc[:20, "weight"] = weight
    remedy = "mark them in a column of it and of any reference, and keep the others: universe: [{column: …, keep: […]}]"
    assert remedy in str(refused(data))
    survey(1).assign(answered="yes").to_parquet("earlier.parquet")
    data["answered"] = np.where(data["weight"] > 0, "yes", "no")
    marked = JOB.replace("survey:", "universe: [{column: answered, keep: ['yes']}]\nsurvey:")
    assert int(dpdist.validate(marked, data).crosstab.count.sum()) == 600 - 21
    assert int(dpdist.validate(JOB, data[data["weight"] > 0]).crosstab.count.sum()) == 600 - 21


def test_another_job_in_a_charged_workspace_is_another_job_and_not_another_ledger(folder: Path) -> None:
    """Control: the same job without its ledger has lost the ledger."""
    ledger = f"ledger={{url: 'sqlite:///{folder}/ledger.db', limits: {{strict: {{total: 9}}}}}}"
    words = ("run", "job.yaml", "-w", "ws", "--input", "now.parquet", "--quiet")
    succeed("ledger", "init", "--ledger", f"sqlite:///{folder}/ledger.db")
    succeed(*words, "--set", ledger)
    other = invoke(*words, "--set", "budget.epsilon='2'")
    assert other.exit_code == 2
    assert "it belongs to another job (budget.epsilon: 1 then, 2 now)" in other.output
    assert "ledger" not in other.output
    lost = invoke(*words)
    assert (lost.exit_code, "the run was charged in this ledger, but the job now names none" in lost.output) == (2, True)


def test_only_a_command_that_keeps_its_work_says_that_it_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(error: BaseException) -> Any:
        def raising(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr("dpdist.release.make_plan", raising)

    for error in (
        KeyboardInterrupt(),
        MemoryError(),
        OSError(errno.ENOSPC, "No space left", "x"),
        PermissionError(errno.EACCES, "no", "x"),
    ):
        stop(error)
        validated = invoke("validate", "job.yaml", "--input", "now.parquet").output
        assert "the same command starts again" in validated, validated
        assert "resumes" not in validated
        assert "the same command resumes" in invoke("run", "job.yaml", "-w", "ws", "--input", "now.parquet").output


FURTHER = JOB.replace("{mean: miles_2002}]", "{mean: miles_2002}, {median: miles_2002}, {quantile: miles_2002, at: 0.9}]")
ALONE = FURTHER.replace(next(line for line in JOB.splitlines() if line.startswith("reference")), "")


LABELLED = (
    JOB.replace("{mean: miles_2002}]", "{mean: miles_2002}, {total: miles_2002}]")
    + """
withhold_above: null
presentation:
  columns:
    state: {label: State, levels: {CA: California}}
    truck_type: {label: Truck, levels: {heavy: Heavy truck}}
    miles_2002: {label: Miles}
"""
)


def test_report_and_plan_use_labels_and_large_units_and_files_of_data_do_not(folder: Path) -> None:
    Path("job.yaml").write_text(LABELLED)
    release = dpdist.run(LABELLED, folder / "ws", survey(2).assign(miles_2002=lambda each: 180_000.0))
    shown = dpdist.report(folder / "ws")
    assert all(word in shown for word in ("State", "California", "Heavy truck", "mean of Miles", "total of Miles, million"))
    assert "truck_type" not in shown.partition("tables")[2].partition("SE is one")[0].splitlines()[-1]
    table = release.tables["trucks"]
    assert set(table["state"]) == {"CA", "OR", "WA", "Total"}
    totals = table[(table["statistic"] == "total") & (table["estimator"] == "parameters")]["estimate"]
    assert totals.min() > 1e6, "as measured, in Parquet"
    assert f"{totals.max():,.0f}" not in shown
    page = (release / "index.html").read_text()
    assert "Total of Miles, million" in page
    assert f"{totals.max():,.0f}" not in page
    words, errors = re.findall(r"[\d,.]+", shown), table.loc[totals.index, "standard_error"] / 1e6
    place = 1 - int(f"{errors.min():.1e}".partition("e")[2])
    for column in (totals / 1e6, errors):
        assert set(figures(column.round(place))) <= set(words), f"they end where the smallest of {errors} does: {shown}"
    wide = (release / "tables" / "trucks.wide.csv").read_text()
    assert (f"{round(totals.max(), place - 6):.0f}" in wide, "million" in wide) == (True, False)


def test_a_numeric_design_stratum_is_proposed_as_a_range_and_gaps_are_no_caution(folder: Path) -> None:
    """300 of 555 numbers have no record. Control: a level of a table's column without a record is a caution."""
    rng = np.random.default_rng(3)
    numbers = np.sort(rng.choice(np.arange(12, 565), 253, replace=False))
    for name, seed in (("earlier-1997", 1), ("now", 2)):
        strata = np.resize(np.array([11, *numbers.tolist(), 565]), 600)
        survey(seed).assign(stratum=strata).to_parquet(f"{name}.parquet")
    words = ("--public", "earlier-1997.parquet", "--period", "2002", "--yes")
    succeed("init", "now.parquet", *words, "-o", "drafted.yaml")
    text = Path("drafted.yaml").read_text()
    assert "  stratum: {levels: {range: [11, 565]}}" in text, text
    shown = invoke("validate", "drafted.yaml").output
    assert "The job is valid" in shown, shown
    assert "without a record" not in shown
    Path("drafted.yaml").write_text(text.replace("[CA, OR, WA]", "[CA, OR, TX, WA]"))
    shown = invoke("validate", "drafted.yaml", "--set", "mechanism={name: tables}", "--set", "reference=null").output
    assert "No record has 1 of the 4 levels of 'state': TX" in " ".join(shown.split()), shown


def test_the_privacy_sheet_of_a_workbook_has_the_first_of_many_cells(tmp_path: Path) -> None:
    """843 rows before, of which 800 named a cell each. Short entries are whole."""
    cells = [f"state {k}, heavy" for k in range(255)]
    figures = {cell: {"share": "0.0", "ratio": "99.0"} for cell in cells}
    statement = {
        "guarantee_in_words": "strict",
        "not_protected": ["sex", "field"],
        "drift": {"in_words": "moved", "weight": cells},
    }
    statement |= {"beyond_sampling": {"in_words": "errors", "counts": figures}}
    job = dpdist.parse_job(JOB)
    write_workbook(tmp_path / "made.xlsx", job, [], statement)
    rows = [[str(each or "") for each in row] for row in openpyxl.load_workbook(tmp_path / "made.xlsx")["Privacy"].values]
    assert len(rows) < 40
    text = "\n".join(row[1] for row in rows)
    assert all(
        part in text for part in ("sex\nfield", "weight: state 0, heavy; state 1, heavy", "235 more: see statement.json")
    )
