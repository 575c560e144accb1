"""A universe's column with other spellings, gaps and other codes: nobody is lost without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

JOB = """
dataset: univ
period: "2024"
columns:
  region: {levels: [n, s]}
  employed: {levels: ["yes", "no"]}
  income: {bounds: [0, 20000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
universe: [{column: employed, keep: ["yes"]}]
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "1000", adjacency: substitution}
tables:
  - {name: pay, by: [region], statistics: [count, {mean: income}]}
"""
PEOPLE, EMPLOYED, EXACT = 600, 364, 278
SPELLINGS = {"Yes": "capital letters", "yes ": "spaces before or after them", "": "missing values", "yés": "accents"}


def people() -> pd.DataFrame:
    """By the generator of the case: 364 of 600 people meant yes."""
    rng = np.random.default_rng(32)
    base = rng.choice(["yes", "no"], PEOPLE, p=[0.6, 0.4])
    region, income = rng.choice(["n", "s"], PEOPLE), rng.gamma(2, 900, PEOPLE).round(-1)
    weight = rng.uniform(5, 50, PEOPLE).round(2)
    frame = pd.DataFrame({"region": region, "employed": base, "income": income, "weight": weight})
    u = rng.random(PEOPLE)
    limits = [(0.1, "Yes"), (0.2, "yes "), (0.25, ""), (0.27, "yés")]
    spelled = [next((text for limit, text in limits if x < limit), "yes") for x in u]
    return frame.assign(spelled=np.where(base == "yes", spelled, "no"))


def counted(job: Job, given: Any) -> int:
    return int(take_census(job, open_source(job, given)).crosstab.count.sum())


def written(frame: pd.DataFrame, kind: str, folder: Path) -> Path:
    path = folder / f"people.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_spellings_of_a_declared_level_are_refused_by_their_cause(kind: str, tmp_path: Path) -> None:
    """86 of 364 people were lost. Control: the clean file has all of them."""
    frame, job = people(), parse_job(JOB)
    assert counted(job, written(frame, kind, tmp_path)) == EMPLOYED
    assert (frame["spelled"] == "yes").sum() == EXACT
    mixed = frame.assign(employed=frame["spelled"])
    with pytest.raises(DataError) as refused:
        counted(job, written(mixed, kind, tmp_path))
    told = {
        problem.fault.removeprefix("values that differ from declared levels only by "): problem.count
        for problem in refused.value.problems
    }
    assert told == {cause: int((mixed["employed"] == text).sum()) for text, cause in SPELLINGS.items()}
    assert sum(told.values()) == EMPLOYED - EXACT == 86


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_rule_of_missing_values_holds_in_a_universe(kind: str, tmp_path: Path) -> None:
    """Left out by `drop`; a level of their own by `category`, which the universe may keep."""
    frame = people()
    frame["employed"] = frame["employed"].where(frame["spelled"] != "", "")
    without = EMPLOYED - int((frame["employed"] == "").sum())
    path = written(frame, kind, tmp_path)
    for rule, keep, records in (
        ("drop", '"yes"', without),
        ("category", '"yes"', without),
        ("category", '"yes", "Not reported"', EMPLOYED),
    ):
        text = JOB.replace('levels: ["yes", "no"]', f'levels: ["yes", "no"], missing: {rule}')
        assert counted(parse_job(text.replace('keep: ["yes"]', f"keep: [{keep}]")), path) == records


@pytest.mark.parametrize("declared", [True, False])
def test_codes_with_another_number_of_digits_are_no_silent_loss(declared: bool, tmp_path: Path) -> None:
    """01 and 1, 02 and 2: a part of the file writes codes otherwise."""
    frame, number = people(), np.arange(PEOPLE)
    frame["employed"] = np.where(frame["employed"] == "yes", np.where(number % 3, "1", "01"), "2")
    text = JOB.replace('levels: ["yes", "no"]', "levels: [1, 2]").replace('keep: ["yes"]', "keep: [1]")
    text = text if declared else text.replace("  employed: {levels: [1, 2]}\n", "")
    with pytest.raises(DataError, match=r"leading zeros|list all values of the column in columns.employed.levels"):
        counted(parse_job(text), written(frame, "csv", tmp_path))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_without_declared_levels_names_values_like_the_kept_ones(kind: str, tmp_path: Path) -> None:
    """Others are outside of the universe. Control: with declared levels, a level of its own is outside, too."""
    text = JOB.replace('  employed: {levels: ["yes", "no"]}\n', "")
    frame = people()
    frame.loc[frame["employed"] == "no", "employed"] = "unknown"
    assert counted(parse_job(text), written(frame, kind, tmp_path)) == EMPLOYED
    spelled = frame.assign(employed=frame["employed"].where(frame.index % 9 > 0, frame["employed"].str.title()))
    with pytest.raises(DataError, match=r"capital letters(.|\n)*list all values of the column in columns.employed.levels"):
        counted(parse_job(text), written(spelled, kind, tmp_path))
    levels = JOB.replace('["yes", "no"]', '["yes", "Yes", unknown, Unknown]')
    assert counted(parse_job(levels), written(spelled, kind, tmp_path)) == int((spelled["employed"] == "yes").sum())


@pytest.mark.parametrize("levels", ["[true, false]", None])
def test_truth_values_are_a_universe(levels: str | None, tmp_path: Path) -> None:
    frame = people().assign(employed=people()["employed"] == "yes")
    text = JOB.replace('keep: ["yes"]', "keep: [true]")
    text = text.replace('  employed: {levels: ["yes", "no"]}\n', f"  employed: {{levels: {levels}}}\n" if levels else "")
    assert [counted(parse_job(text), written(frame, kind, tmp_path)) for kind in ("csv", "parquet")] == [EMPLOYED] * 2


def test_a_later_filter_holds_only_records_that_pass_the_earlier_ones(tmp_path: Path) -> None:
    """Who is not asked has no answer: a gap outside of the first filter is none. Control: the filters in turn."""
    frame = people().assign(adult=lambda rows: np.where(rows.index % 5, 1, 0))
    frame["employed"] = frame["employed"].where(frame["adult"] == 1)
    filters = ['{column: adult, keep: [1]}, {column: employed, keep: ["yes"]}']
    filters += ['{column: employed, keep: ["yes"]}, {column: adult, keep: [1]}']
    first, turned = (parse_job(JOB.replace('{column: employed, keep: ["yes"]}', each)) for each in filters)
    path = written(frame, "parquet", tmp_path)
    assert counted(first, path) == int((frame["employed"] == "yes").sum())
    with pytest.raises(DataError, match="employed: missing values"):
        counted(turned, path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_filter_that_keeps_every_level_leaves_other_values_out(kind: str, tmp_path: Path) -> None:
    """As of a file of all ages a table of adults. Controls: another spelling, a missing value, a part of the levels."""
    text = JOB.replace('["yes", "no"]', '["yes"]')
    assert counted(parse_job(text), written(people(), kind, tmp_path)) == EMPLOYED
    frame, wrong = people(), {"Yes": "capital letters", None: "missing values"}
    for value, told in wrong.items():
        path = written(frame.assign(employed=frame["employed"].where(frame.index != 7, value)), kind, tmp_path)
        with pytest.raises(DataError, match=told):
            counted(parse_job(text), path)
    other = written(frame.assign(employed=frame["employed"].where(frame.index != 7, "retired")), kind, tmp_path)
    with pytest.raises(DataError, match="employed: the file contains values that are not among the declared levels"):
        counted(parse_job(JOB), other)
