"""Plain scalars of a job file: text stays text, numbers are decimal, and nothing is read as another value than is written.

YAML 1.1 reads 010 as 8, 0x10 as 16, 1_0 as 10, 1:30 as 90 and `no` as false; the core schema of YAML 1.2 does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpdist.core.errors import JobError, StudyError
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job
from dpdist.job.yaml_lines import as_yaml, flow, value
from dpdist.studies.kinds import parse_study

pytestmark = pytest.mark.quick

JOB = """\
dataset: literals
period: {period}
input: {{path: survey.csv}}
columns:
  code: {{levels: [{level}, other]}}
  pay: {{bounds: [-1, {bound}], outside: clip}}
  {weight}: {{bounds: [1, 60], outside: clip}}
universe: [{{column: code, keep: [{level}]}}]
survey: {{weight: {weight}}}
outcome: pay
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
tables:
  - {{name: t, by: [code], margins: {margins}, statistics: [count, {{mean: pay}}]}}
"""
PLAIN = {"period": "p", "level": "some", "bound": "9", "weight": "w", "margins": "true"}
TEXTS = (
    *("010", "001", "0o10", "0x10", "0b11", "020000", "2023_24", "1_0", "1:30", "190:20:30", "+5", "-0", "1e3", "2E5"),
    *("yes", "Yes", "NO", "no", "on", "Off", "y", "n", "2024-01-02", "2024-01-02 03:04:05", "0x", "08", "00", "0_1.5"),
)
"""Literals that YAML 1.1 reads as something else, or that a number does not print as."""
NUMBERS = {"010": 10.0, "020000": 20_000.0, "08": 8.0, "+5": 5.0, "1e3": 1000.0, "1.50": 1.5, "12": 12.0, ".5": 0.5}
"""Decimal numbers as they are read where a number is wanted."""
NO_NUMBERS = ("0x10", "0o10", "0b11", "1:30", "190:20:30", "yes", "no", "2024-01-02", "~", "null", ".inf", ".nan", "")
NO_TEXTS = ("1.50", "true", "null", "~", ".inf", "")
"""Literals that are no text, and that are refused where one is wanted."""


def job(**literals: str) -> Job:
    return parse_job(JOB.format(**PLAIN | literals))


@pytest.mark.parametrize("literal", TEXTS)
def test_a_text_stays_as_it_is_written(literal: str) -> None:
    """As a period, a level and a kept level, the name of a column, and a value set on the command line."""
    assert job(period=literal).period == literal
    of_level = job(level=literal)
    assert of_level.columns["code"].levels == (literal, "other")
    assert of_level.universe[0].keep == (literal,)
    named = job(weight=literal)
    assert (named.survey.weight, *named.columns) == (literal, "code", "pay", literal)
    assert value(literal, "a setting", JobError) == literal


@pytest.mark.parametrize(("literal", "number"), NUMBERS.items())
def test_a_number_is_decimal(literal: str, number: float) -> None:
    assert job(bound=literal).columns["pay"].bounds == (-1.0, number)


@pytest.mark.parametrize("literal", NO_NUMBERS)
def test_what_is_no_decimal_number_is_no_bound(literal: str) -> None:
    with pytest.raises(JobError) as refused:
        job(bound=literal)
    assert any("line 6" in problem.places for problem in refused.value.problems)


@pytest.mark.parametrize("literal", NO_TEXTS)
@pytest.mark.parametrize(("place", "line"), [("period", 2), ("level", 5)])
def test_a_number_or_null_in_place_of_a_text_is_refused_with_its_line(literal: str, place: str, line: int) -> None:
    """Only booleans are levels, too. The remedy is to quote it."""
    if (literal, place) == ("true", "level"):
        with pytest.raises(JobError, match="of one type: quote them all"):
            job(level=literal)
        return
    if (literal, place) == ("", "level"):
        literal = "[]"
    with pytest.raises(JobError) as refused:
        job(**{place: literal})
    assert any(f"line {line}" in problem.places and "quote" in str(problem) for problem in refused.value.problems)


def test_codes_with_zeros_in_front_are_levels_in_a_list_and_no_range() -> None:
    """Mixed with whole numbers they are refused: quoting is asked for."""
    text = JOB.format(**PLAIN)
    levels = "levels: [some, other]"
    assert parse_job(text.replace(levels, "levels: [001, 002, 010, 011]").replace("keep: [some]", "keep: [010]")).columns[
        "code"
    ].levels == ("001", "002", "010", "011")
    with pytest.raises(JobError, match="of one type: quote them all"):
        parse_job(text.replace(levels, "levels: [008, 009, 10]").replace("keep: [some]", "keep: [10]"))
    with pytest.raises(JobError, match="whole numbers"):
        parse_job(text.replace(levels, "levels: {range: [001, 010]}"))


@pytest.mark.parametrize(("literal", "margins"), [("true", True), ("no", False), ("off", False), ("False", False)])
def test_a_truth_value_may_be_written_in_words_where_one_is_wanted(literal: str, margins: bool) -> None:
    assert job(margins=literal).tables[0].margins is margins


def test_files_that_are_extended_and_values_that_are_set_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(JOB.format(**PLAIN | {"level": "010", "period": "0o17"}), encoding="utf-8")
    (tmp_path / "job.yaml").write_text("extends: base.yaml\noutcome: pay\n", encoding="utf-8")
    extended = load_job(tmp_path / "job.yaml", ["columns.pay.bounds=[0, 020000]"])
    assert (extended.period, extended.columns["code"].levels) == ("0o17", ("010", "other"))
    assert extended.columns["pay"].bounds == (0.0, 20_000.0)
    assert load_job(tmp_path / "job.yaml", ["period=2023_24"]).period == "2023_24"


def test_a_study_is_read_alike() -> None:
    with pytest.raises(StudyError, match="'0x10'") as refused:
        parse_study("name: s\nkind: simulation\nreplicates: 0x10\n")
    assert any("line 3" in problem.places for problem in refused.value.problems)


@pytest.mark.parametrize("literal", [*TEXTS, *NUMBERS, *NO_TEXTS, "=", "<", "5", "-7", "1.0e+16", "1.5e3"])
def test_a_text_that_is_written_is_read_again(literal: str) -> None:
    """So is every value, whoever reads YAML: the writer quotes what YAML 1.1 reads as another value."""
    for read in (literal, value(literal, "a value", JobError)):
        assert value(flow(read), "a value", JobError) == read or read != read
        assert value(as_yaml({"key": read}), "a value", JobError) == {"key": read} or read != read
    again: Any = yaml.safe_load(flow(literal))
    assert again == literal


@pytest.mark.parametrize(
    ("tagged", "read"), [("!!int 010", 10), ("!!int 0x10", 16), ("!!str 010", "010"), ("!!int -7", -7)]
)
def test_a_tag_gives_the_type(tagged: str, read: object) -> None:
    assert value(tagged, "a value", JobError) == read


@pytest.mark.parametrize("tagged", ["!!int 1:30", "!!int x", "!!bool 7", "!!float x", "!!int"])
def test_a_tag_that_does_not_fit_is_refused_with_its_line(tagged: str) -> None:
    with pytest.raises(JobError) as refused:
        value(f"# a comment\n{tagged}", "a value", JobError)
    assert refused.value.problems[0].places == ("line 2",)
