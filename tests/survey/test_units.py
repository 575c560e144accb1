"""Records of a privacy unit: bounded as stated, by refusal or truncation, in statement, ledger and noise alike."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of

import dpdist
from dpdist.approval.acceptance import noise_scale as gate_scale
from dpdist.core.errors import DataError, JobError
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.ledger.runs import charge_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.mechanisms.tables.sensitivity import joint_query
from dpdist.opening.verifying import problems
from dpdist.survey.batch import Findings
from dpdist.survey.census import checked_batches
from dpdist.survey.source import open_source

FEW_RECORDS = True
JOB = """
dataset: homes
period: "1"
columns:
  region: {levels: [north, south]}
  cost: {bounds: [0, 1000], outside: clip}
  weight: {bounds: [1, 10], outside: clip}
survey: {weight: weight}
outcome: cost
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
tables: [{name: t, by: [region], statistics: [count, {mean: cost}]}]
"""
UNIT = "privacy_unit: {column: household, most: 5}\n"
FRAME = Crosstab({"region": np.array([0, 1], dtype=np.int32)}, {"region": ("north", "south")}, np.array([30, 40]), (), ())
TRUNCATED = UNIT.replace("most: 5", "most: 5, beyond: truncate")


def survey(folder: Path, largest: int = 5, seed: int = 1) -> Path:
    """Twenty households of one to five records, their records apart in the file, and one of `largest`."""
    rng = np.random.default_rng(seed)
    household = np.concatenate([np.repeat(np.arange(20), np.resize(np.arange(1, 6), 20)), np.full(largest, 77)])
    household = rng.permutation(household)
    n = len(household)
    values = {"household": household, "region": np.resize(["north", "south"], n), "cost": rng.uniform(1, 999, n)}
    path = folder / "homes.parquet"
    pd.DataFrame(values).assign(weight=2.0).to_parquet(path)
    return path


def job(more: str = "", text: str = JOB) -> Job:
    return parse_job(text + more)


def test_a_household_over_the_maximum_refuses_the_file_with_its_rows_and_no_value(tmp_path: Path) -> None:
    """Rows beyond the fifth of the household are named; control: one of five is taken."""
    path = survey(tmp_path, 7)
    rows = np.flatnonzero(pd.read_parquet(path)["household"] == 77)[5:] + 1
    with pytest.raises(DataError) as caught:
        dpdist.validate(job(UNIT), path)
    (problem,) = caught.value.problems
    assert (problem.where, problem.count) == ("household", 2)
    assert problem.places == tuple(f"row {row}" for row in rows)
    assert not problem.values
    words = str(caught.value).replace(str(path), "").replace(f"row {rows[0]}", "").replace(f"row {rows[1]}", "")
    assert "77" not in words
    assert dpdist.validate(job(UNIT), survey(tmp_path, 5)).crosstab.count.sum() == 65


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_truncation_keeps_the_first_records_of_the_file_whatever_its_batches(batch: int, tmp_path: Path) -> None:
    """The oracle is pandas; what is kept of a household follows from its own records alone."""
    frame = pd.read_parquet(survey(tmp_path, 9))
    path = tmp_path / "groups.parquet"
    frame.to_parquet(path, row_group_size=batch)
    said, findings = job(TRUNCATED), Findings()
    kept = np.concatenate([each.row for each in checked_batches(said, open_source(said, path), findings)])
    expected = np.flatnonzero(frame.groupby("household").cumcount() < 5)
    assert kept.tolist() == expected.tolist()
    assert findings.removed == {"household: beyond the first 5 records of a unit, left out": 4}
    without = frame[frame["household"] != 3]
    without.to_parquet(path)
    rest = np.concatenate([without.index[each.row] for each in checked_batches(said, open_source(said, path))])
    assert rest.tolist() == [row for row in expected if frame["household"][row] != 3]


def test_records_outside_the_universe_do_not_count_for_their_unit(tmp_path: Path) -> None:
    frame = pd.read_parquet(survey(tmp_path, 8))
    frame["working"] = np.where(frame["household"] == 77, "no", "yes")
    frame.loc[frame.index[frame["household"] == 77][:5], "working"] = "yes"
    frame.to_parquet(tmp_path / "homes.parquet")
    assert dpdist.validate(job(UNIT + "universe: [{column: working, keep: ['yes']}]\n"), tmp_path / "homes.parquet")


def test_a_record_without_a_unit_refuses_the_file(tmp_path: Path) -> None:
    frame = pd.read_parquet(survey(tmp_path)).astype({"household": "Int64"})
    frame.loc[3, "household"] = None
    frame.to_parquet(tmp_path / "homes.parquet")
    with pytest.raises(DataError, match="household: missing values"):
        dpdist.validate(job(UNIT), tmp_path / "homes.parquet")


def test_the_statement_the_noise_and_the_ledger_are_of_the_household(tmp_path: Path) -> None:
    """Its noise is five times a record's, exactly; verify finds the folder whole, and the ε stated is the household's."""
    plain = job()
    opened = dpdist.run(job(UNIT), tmp_path / "ws", survey(tmp_path))
    said = statement_of(tmp_path / "ws")
    assert (said["privacy_unit"], said["epsilon"], said["delta"]) == ("household", "1", "0")
    assert "all records with the same value of that column, at most 5." in said["privacy_unit_in_words"]
    assert "of the records of one household (at most 5)" in said["adjacency_in_words"]
    domain = said["domain"]
    assert (
        "household: not missing, and each identifier always spelled in the same way, and at most 5 records of one household"
        in domain
    )
    assert "which records belong to the same household" in said["not_protected"]
    assert any("gets 1/5 of this ε" in line for line in said["assumptions"])
    assert said["headline"].startswith("cost and weight of all records of one household;")
    assert problems(tmp_path / "ws" / "public") == []
    proof = json.loads((tmp_path / "ws" / "public" / "released" / "proof.json").read_text())
    assert proof["records_of_unit"] == 5
    assert opened.statement["privacy_unit"] == "household"
    guarantee = mechanism_of(job(UNIT)).promise(job(UNIT)).total
    charge = charge_of(job(UNIT), guarantee, "run")
    assert charge.budget == Fraction(1)
    assert charge.adjacency == "substitution, same_x, household of at most 5"
    assert charge.account != charge_of(plain, mechanism_of(plain).promise(plain).total, "run").account


def test_a_truncated_file_has_its_bias_among_the_cautions(tmp_path: Path) -> None:
    said = dpdist.run(job(TRUNCATED), tmp_path / "ws", survey(tmp_path, 9)).statement
    assert any("only the first 5 in the file are used" in caution for caution in said["cautions"])
    assert "household: not missing, and each identifier always spelled in the same way" in said["domain"]


NOT_STRICT = [
    ("weighted", "model: {family: lognormal}\n"),
    ("unweighted", "model: {family: lognormal}\n"),
    ("censor_w", "model: {family: lognormal, prior: {name: proper}}\n"),
    ("laplace_composed", ""),
]


@pytest.mark.parametrize(("mechanism", "model"), NOT_STRICT)
def test_what_is_not_strict_refuses_a_unit_and_names_what_is(mechanism: str, model: str) -> None:
    """Weights of a file have no bound for several records. Control: the same job without a unit is taken."""
    text = (
        JOB.replace("{name: tables", f"{{name: {mechanism}")
        .replace("salary", "cost")
        .replace("weight: {bounds: [1, 10], outside: clip}", "")
    )
    text = (
        text.replace("adjacency: substitution", "adjacency: zero_out")
        .replace("[0, 1000]", "[1, 1000]")
        .replace("by: [region]", "")
    )
    text = text.replace("{name: t, ,", "{name: t,").replace(", outside: clip", "") + model
    parse_job(text)
    with pytest.raises(JobError, match="privacy_unit") as caught:
        parse_job(text + UNIT)
    strict = ("censor_uw", "centred", "perturbed_histogram", "tables", "tables", "modips")
    assert all(name in str(caught.value) for name in strict)
    assert "use a strict mechanism" in str(caught.value)


@pytest.mark.parametrize("column", ["cost", "weight", "region"])
def test_the_column_of_a_unit_has_no_other_role(column: str) -> None:
    with pytest.raises(JobError, match="used as outcome, weight, category"):
        job(UNIT.replace("household", column))


def test_a_budget_too_small_for_one_of_many_records_is_refused() -> None:
    with pytest.raises(JobError, match="with 10000 records per unit, less than 1e-6 is left"):
        job(UNIT.replace("most: 5", "most: 10000"), JOB.replace('epsilon: "1"', 'epsilon: "0.001"'))


def test_histograms_too_small_for_one_of_many_records_are_refused() -> None:
    """Control: the same part of the budget for households of five."""
    text = JOB + 'reference: {histogram: {epsilon: "0.001"}}\n'
    assert job(UNIT, text)
    with pytest.raises(JobError, match="records per unit, less"):
        job(UNIT.replace("most: 5", "most: 10000"), text)


def test_a_reference_needs_no_unit_and_a_chain_keeps_its_own(tmp_path: Path) -> None:
    """The reference is public: it has no such column. A later release under another unit is refused."""
    text = JOB
    public = pd.read_parquet(survey(tmp_path, 60, seed=2)).drop(columns="household")
    public.to_parquet(tmp_path / "before.parquet")
    first = job(UNIT + f'reference: {{path: {tmp_path / "before.parquet"}, period: "0"}}\n', text)
    dpdist.run(first, tmp_path / "ws", survey(tmp_path))
    later = text.replace('period: "1"', 'period: "2"')
    chained = f"reference: {{release: {tmp_path / 'ws' / 'public'}}}\n"
    current = survey(tmp_path, seed=3)
    assert dpdist.validate(job(UNIT + chained, later), current).promise.total.epsilon == 1
    for other in ("", UNIT.replace("most: 5", "most: 6")):
        with pytest.raises(DataError, match="other settings for privacy_unit"):
            dpdist.validate(job(other + chained, later), current)


def test_gates_are_measured_under_the_noise_of_a_household() -> None:
    """Five times a record's, exactly; gates take their part of the same ε."""
    gates = 'accept: {epsilon: "1/3", gates: [{measure: largest, of: count, limit: 0.2}]}\n'
    one, five = job(gates), job(gates + UNIT)
    assert gate_scale(five) == 5 * gate_scale(one)
    queries = [joint_query(said, "laplace") for said in (one, five)]
    assert queries[1].scale == 5 * queries[0].scale


AMBIGUOUS = [
    ["7", "07"],
    ["7", "+7"],
    ["7", "7.0"],
    ["7", " 7"],
    ["7", "\uff17"],
    ["100000", "1e+05"],
    ["a7", "A7"],
    ["a7", "a7 "],
    ["a  7", "a 7"],
    ["a7", "a\u200b7"],
    ["\u00e9", "e\u0301"],
    ["\ufb01n", "fin"],
]
"""Names that may be of one household, or of two: nobody can tell."""


def checked(frame: pd.DataFrame, path: Path, beyond: str) -> tuple[int, list[str]]:
    """Records that are kept, and what was found wrong."""
    stated, findings = parse_job(JOB + UNIT.replace("most: 5", f"most: 5, beyond: {beyond}")), Findings()
    if path.suffix == ".csv":
        frame.to_csv(path, index=False, quoting=1)
    else:
        frame.to_parquet(path, row_group_size=2)
    batches = list(checked_batches(stated, open_source(stated, path), findings))
    return sum(len(batch.row) for batch in batches), [problem.fault for problem in findings.problems.values()]


def named(names: object) -> pd.DataFrame:
    return pd.DataFrame({"household": names, "region": "north", "cost": 5.0, "weight": 2.0})


@pytest.mark.parametrize("beyond", ["refuse", "truncate"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("names", AMBIGUOUS)
def test_a_file_with_two_spellings_of_what_may_be_one_unit_is_refused(
    names: list[str], suffix: str, beyond: str, tmp_path: Path
) -> None:
    """Taken for two, one household has 2ε; taken for one, a second household decides which records of the first count."""
    _, found = checked(named([*names[:1] * 4, *names[1:] * 4]), tmp_path / f"homes.{suffix}", beyond)
    assert found == ["names of units that differ only in spelling"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_control_one_spelling_of_each_unit_is_taken_as_it_stands(suffix: str, tmp_path: Path) -> None:
    names = ["07", "70", "17", "7a", "0", "b7", " 12", "1 12", "11 2", "\u00e9", "1.5", "9" * 40, "9" * 39 + "8"]
    assert checked(named(names), tmp_path / f"homes.{suffix}", "refuse") == (len(names), [])
    kept = checked(named(["07"] * 7 + ["7a"] * 3), tmp_path / f"homes.{suffix}", "truncate")
    assert kept == (8, [])


@pytest.mark.parametrize("beyond", ["refuse", "truncate"])
def test_a_refused_spelling_names_rows_and_no_value(beyond: str, tmp_path: Path) -> None:
    path = tmp_path / "homes.csv"
    named(["8675309", "3", "08675309"]).to_csv(path, index=False, quoting=1)
    with pytest.raises(DataError) as caught:
        dpdist.run(job(UNIT.replace("most: 5", f"most: 5, beyond: {beyond}")), tmp_path / "ws", path)
    assert "household: names of units that differ only in spelling (line 4)" in str(caught.value)
    assert "8675309" not in str(caught.value)
    assert not (tmp_path / "ws").exists()


def test_a_numeric_column_names_units_by_whole_numbers(tmp_path: Path) -> None:
    """1 and 1.0 are one number; with a fraction, or where floating point merges neighbours, a number names nothing."""
    assert checked(named([1.0] * 7 + [2.0]), tmp_path / "f.parquet", "truncate") == (6, [])
    assert checked(named([2**53 + 1, 2**53 + 2]), tmp_path / "i.parquet", "refuse") == (2, []), "control: whole numbers"
    for wrong in (1.5, 2.0**53 + 2, np.inf):
        kept, found = checked(named([1.0, wrong]), tmp_path / "w.parquet", "refuse")
        assert (kept, len(found)) == (1, 1)
        assert "cannot identify a unit" in found[0]


@pytest.mark.parametrize("name", [" ", "\u200b", "\u3000"])
def test_a_name_without_a_letter_is_a_missing_one(name: str, tmp_path: Path) -> None:
    assert checked(named(["7", name]), tmp_path / "homes.parquet", "refuse") == (1, ["missing values"])


def test_a_unit_is_not_named_by_a_column_of_the_universe() -> None:
    named = JOB + UNIT + "universe: [{column: household, keep: [a, b]}]\n"
    with pytest.raises(JobError, match="is used as outcome, weight, category, universe or design column"):
        parse_job(named)
