"""Published sample counts that single people out are counted by validate and plan, and refuse a run without a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from public_files import statement_of

import dpdist
from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.release import cautions

FEW_RECORDS = True
JOB = """
dataset: clinic
period: "1"
columns:
  ward: {levels: [a, b, c, d]}
  sex: {levels: [f, m]}
  cost: {bounds: [0, 1000], outside: clip}
  weight: {bounds: [1, 10], outside: clip}
survey: {weight: weight, lonely_psu: certainty}
outcome: cost
mechanism: {name: laplace_composed, sensitivity: public}
budget: {epsilon: "1", adjacency: substitution}
tables: [{name: t, by: [ward, sex], statistics: [count, {mean: cost}]}]
ledger: {total: "1"}
"""
REASON = "records are simulated"
ACCEPTED = f'public_frame: {{accepted: "{REASON}"}}\n'
SIZES = {("a", "f"): 1, ("b", "f"): 2, ("b", "m"): 3, ("c", "m"): 4, ("d", "f"): 40}
"""Two counts below 3, one of them with a single record; three below 4."""


def survey(folder: Path, sizes: dict[tuple[str, str], int] = SIZES) -> Path:
    rows = [cell for cell, size in sizes.items() for _ in range(size)]
    table = pd.DataFrame(rows, columns=["ward", "sex"])
    path = folder / "clinic.parquet"
    table.assign(cost=np.linspace(1, 999, len(rows)), weight=2.0).to_parquet(path)
    return path


@pytest.mark.parametrize(("minimum", "few"), [("", 2), ("frame_minimum: 4\n", 3), ("frame_minimum: 41\n", 5)])
@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_validate_and_plan_say_how_many_counts_are_small_and_what_helps(
    verb: str, minimum: str, few: int, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB + minimum, encoding="utf-8")
    done = invoke(verb, tmp_path / "job.yaml", "--input", survey(tmp_path))
    shown = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 0, done.output
    assert f"{few} of the 5 published sample counts are below" in shown
    assert "1 of these is 1" in shown
    assert "coarser levels" in shown
    assert "adjacency: add_remove" in shown
    assert "predictors: {protect:" in shown


def test_the_columns_that_make_small_counts_are_named(tmp_path: Path) -> None:
    """Sizes by sex are 43 and 7, and by ward 1, 5, 4 and 40. Design strata that make them are said to be such."""

    def caution(text: str) -> str:
        found = cautions(dpdist.plan(parse_job(text), survey(tmp_path)))
        return next(str(one) for one in found if one.code == "small_counts")

    assert "They are counts by ward and sex; without ward, none would be small. Anyone who" in caution(JOB)
    strata = JOB.replace("weight: weight,", "weight: weight, design_strata: [ward],").replace(
        "by: [ward, sex]", "by: [sex]"
    )
    told = "by ward and sex; without ward of survey.design_strata, none would be small"
    assert told in caution(strata)
    with pytest.raises(JobError) as caught:
        dpdist.run(parse_job(strata), tmp_path / "ws", survey(tmp_path))
    assert told in caught.value.problems[0].fault
    one = caution(strata.replace("by: [sex]", "by: [ward]"))
    assert "They are counts by ward. Anyone who" in one


def test_what_helps_is_what_the_mechanism_takes(tmp_path: Path) -> None:
    """`tables` hides counts without `predictors`; under histograms it has a reference to name first."""
    text = JOB.replace("{name: laplace_composed, sensitivity: public}", "{name: tables}") + "frame_minimum: 3\n"
    with pytest.raises(JobError) as caught:
        dpdist.run(parse_job(text), tmp_path / "ws", survey(tmp_path))
    (problem,) = caught.value.problems
    assert "add_remove, with a file or an earlier release as reference)" in problem.remedy
    assert "predictors" not in problem.remedy


def test_a_run_refuses_them_before_it_spends_or_writes(tmp_path: Path) -> None:
    """Nothing is charged and no folder is made; control: sizes of 3 and more."""
    path, work = survey(tmp_path), tmp_path / "ws"
    with pytest.raises(JobError, match="2 of the 5 published sample counts are below 3, and 1 of these is 1") as caught:
        dpdist.run(parse_job(JOB), work, path)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (work / "public").exists()
    enough = survey(tmp_path, {cell: max(3, size) for cell, size in SIZES.items()})
    assert "public_frame" not in dpdist.run(parse_job(JOB), work, enough).statement


PACKAGE = (
    JOB.replace("{name: laplace_composed, sensitivity: public}", "{name: tables}")
    .replace('ledger: {total: "1"}\n', "")
    .replace(
        "tables: [{name: t, by: [ward, sex],", "tables: [{name: w, by: [ward], statistics: [count]}, {name: t, by: [sex],"
    )
)


def test_a_package_crosses_tables_and_states_small_counts_that_no_table_asks_for(tmp_path: Path) -> None:
    """Plan, run and statement say them. Control: a job that states the minimum is refused."""
    path, heard = survey(tmp_path), list[str]()
    done = dpdist.run(parse_job(PACKAGE), tmp_path / "ws", path, listener=lambda event: heard.append(event.note or ""))
    stated = done.statement["public_frame"]
    assert (stated["counts"], stated["below"], stated["of_one_record"], stated["frame_minimum"]) == (5, 2, 1, 3)
    assert "accepted" not in stated
    assert "2 of the 5 published sample counts are below 3, and 1 of these is 1. Under `adjacency: " in stated["in_words"]
    assert any("2 of the 5 published sample counts are below 3" in note and "frame_minimum" in note for note in heard)
    with pytest.raises(JobError, match="2 of the 5 published sample counts are below 3"):
        dpdist.run(parse_job(PACKAGE + "frame_minimum: 3\n"), tmp_path / "refused", path)
    again = Job.model_validate_json(parse_job(PACKAGE + "frame_minimum: 3\n").model_dump_json())
    with pytest.raises(JobError, match="2 of the 5 published sample counts are below 3"):
        dpdist.run(again, tmp_path / "again", path)
    enough = survey(tmp_path, {cell: max(3, size) for cell, size in SIZES.items()})
    assert "public_frame" not in dpdist.run(parse_job(PACKAGE), tmp_path / "enough", enough).statement


@pytest.mark.parametrize(
    ("former", "refused"), [("laplace_strict", True), ("reference_tables", True), ("table_package", False)]
)
def test_a_former_name_refuses_what_its_mechanism_refused(former: str, refused: bool, tmp_path: Path) -> None:
    """Packages alone published small counts that no table asks for."""
    text = JOB.replace("name: laplace_composed, sensitivity: public", f"name: {former}").replace("[ward, sex]", "[ward]")
    text = text.replace("ledger", "  - {name: u, by: [sex], statistics: [count]}\nledger")
    text = text.replace("tables: [{name: t", "tables:\n  - {name: t").replace("{mean: cost}]}]", "{mean: cost}]}")
    job = parse_job(text)
    if refused:
        with pytest.raises(JobError, match="below 3"):
            dpdist.run(job, tmp_path / "work", survey(tmp_path))
    else:
        assert dpdist.plan(job, input=survey(tmp_path)) is not None


def test_a_stated_reason_lets_them_pass_and_the_statement_prints_it(tmp_path: Path) -> None:
    """The figures are the published frame's own; the page of the report says it too."""
    dpdist.run(parse_job(JOB + ACCEPTED), tmp_path / "ws", survey(tmp_path))
    said = statement_of(tmp_path / "ws")["public_frame"]
    counts = pd.read_parquet(tmp_path / "ws" / "public" / "released" / "frame.parquet")["count"]
    assert said["below"] == (counts < 3).sum() == 2
    assert said["of_one_record"] == (counts == 1).sum() == 1
    assert said["counts"] == len(counts) == 5
    assert said["accepted"] == REASON
    shown = " ".join(invoke("report", tmp_path / "ws").output.split())
    assert f"The job accepts small counts, for the stated reason “{REASON}”." in shown


@pytest.mark.parametrize("reason", ['""', '"  - "', "null"])
def test_an_empty_reason_is_none(reason: str) -> None:
    with pytest.raises(JobError, match="public_frame"):
        parse_job(JOB + f"public_frame: {{accepted: {reason}}}\n")


HOUSEHOLDS = "privacy_unit: {column: household, most: 5}\n"


def homes(folder: Path, shared: tuple[str, ...] = ("a", "b")) -> Path:
    """Five records in every cell; in these wards all of a cell are of one household, elsewhere each has its own."""
    rows = [(ward, sex, k) for ward in "abcd" for sex in "fm" for k in range(5)]
    table = pd.DataFrame(rows, columns=["ward", "sex", "household"])
    table["household"] = [f"{w}{s}{0 if w in shared else k}" for w, s, k in rows]
    path = folder / "clinic.parquet"
    table.sample(frac=1, random_state=1).assign(cost=np.linspace(1, 999, len(rows)), weight=2.0).to_parquet(path)
    return path


def test_counts_of_few_households_are_small_however_many_records_they_have(tmp_path: Path) -> None:
    """The oracle is pandas. Control: the same file, with ε of a record, has no count below 3."""
    path = homes(tmp_path)
    households = pd.read_parquet(path).groupby(["ward", "sex"])["household"].nunique()
    assert ((households < 3).sum(), (households == 1).sum(), len(households)) == (4, 4, 8)
    dpdist.run(parse_job(JOB), tmp_path / "records", path)
    found = (
        "4 of the 8 published sample counts are below 3 units \\(column household\\), and 4 of these are of a single unit"
    )
    with pytest.raises(JobError, match=found):
        dpdist.run(parse_job(JOB.replace("clinic", "homes") + HOUSEHOLDS), tmp_path / "ws", path)
    assert not (tmp_path / "ws" / "public").exists()
    apart = homes(tmp_path, ())
    assert dpdist.run(parse_job(JOB.replace("clinic", "homes") + HOUSEHOLDS), tmp_path / "ws", apart)


def test_the_statement_has_no_figure_of_households(tmp_path: Path) -> None:
    """Of whose household a record is nothing is published; the custodian's screen has the counts, as a control."""
    path, text = homes(tmp_path), JOB + HOUSEHOLDS + ACCEPTED
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    shown = invoke("validate", tmp_path / "job.yaml", "--input", path).output
    assert "4 of the 8 published sample counts are below 3 units (column household)" in " ".join(
        shown.replace("│", " ").split()
    )
    for opened in (dpdist.run(parse_job(text), tmp_path / "ws", path), dpdist.publish(tmp_path / "ws")):
        said = opened.statement["public_frame"]
        assert set(said) == {"in_words", "frame_minimum", "accepted"}
        assert said["in_words"].startswith(
            "Some published sample counts may be smaller than 3 units (column household). The job accepts small counts"
        )
    frame = pd.read_parquet(tmp_path / "ws" / "public" / "released" / "frame.parquet")
    assert set(frame["count"]) == {5}, "nothing else of households is published"


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_units_are_counted_over_all_batches_and_after_truncation(batch: int, tmp_path: Path) -> None:
    """A household beyond its maximum is in fewer cells; a fifth household counts for a minimum of 5 alone."""
    frame = pd.DataFrame({"household": [1, 1, 1, 2, 3, 4, 5, 6] * 2, "ward": ["a", "b", "c", *"aaaaa"] * 2})
    frame.assign(sex="f", cost=5.0, weight=2.0).to_parquet(tmp_path / "f.parquet", row_group_size=batch)
    text = JOB + "privacy_unit: {column: household, most: 2, beyond: truncate}\n"
    for least, few in ((3, 1), (6, 1), (7, 2)):
        plan = dpdist.plan(parse_job(text + f"frame_minimum: {least}\n"), tmp_path / "f.parquet")
        assert plan.census.small == (few, 1, 2), least


def test_the_minimum_may_be_raised_and_not_lowered(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="frame_minimum"):
        parse_job(JOB + "frame_minimum: 2\n")
    with pytest.raises(JobError, match="3 of the 5 published sample counts are below 4"):
        dpdist.run(parse_job(JOB + "frame_minimum: 4\n"), tmp_path / "ws", survey(tmp_path))


def test_secret_sizes_have_no_small_counts(tmp_path: Path) -> None:
    """Under add_remove the published counts are noisy sums: nothing refuses, and no message tells of the true ones."""
    survey(tmp_path).rename(tmp_path / "earlier.parquet")
    table = pd.read_parquet(tmp_path / "earlier.parquet")
    table.assign(cost=table["cost"] / 2).to_parquet(tmp_path / "clinic.parquet")
    tables = JOB.replace("{name: laplace_composed, sensitivity: public}", "{name: tables}")
    secret = tables.replace("adjacency: substitution", "adjacency: add_remove")
    whole = pd.concat([table] * 4)
    cells = pd.MultiIndex.from_product([list("abcd"), list("fm")], names=["ward", "sex"]).to_frame(index=False)
    pd.concat([whole, cells.assign(cost=500.0, weight=2.0)]).to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(secret + f'reference: {{path: {tmp_path / "earlier.parquet"}, period: "0"}}\n')
    plan = dpdist.plan(job, tmp_path / "clinic.parquet")
    assert plan.crosstab.below(3).below_minimum == 2
    dpdist.run(job, tmp_path / "ws", tmp_path / "clinic.parquet")


def test_an_unset_key_is_not_part_of_the_published_job() -> None:
    """What says nothing of small counts is published, and resumed, as before; control: with a reason both differ."""
    plain, accepted = parse_job(JOB), parse_job(JOB + ACCEPTED)
    assert not {"public_frame", "frame_minimum"} & plain.public.keys()
    assert accepted.public["public_frame"] == {"accepted": REASON}
    assert accepted.identity["public_frame.accepted"] == REASON


def test_counts_below_a_minimum_are_those_of_rows_with_records() -> None:
    crosstab = Crosstab({}, {}, np.array([0, 1, 2, 3, 9, 1]), (), ())
    assert crosstab.below(3) == (3, 2, 5)
    assert crosstab.below(1) == (0, 2, 5)
