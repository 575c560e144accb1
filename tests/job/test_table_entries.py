"""Shorthand for several tables is listed out as plain tables, in one place, and messages point to what is written."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml

from dpdist.core.errors import JobError, Problem
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.job.tables import MOST_TABLES

pytestmark = pytest.mark.quick

TEXT = """
dataset: tiny
period: "2020"
columns:
  region: {levels: [South, West]}
  state: {levels: [Texas, Utah, Ohio]}
  sex: {levels: [f, m]}
  pay in 2020: {levels: [low, high]}
  pay: {bounds: [0, 1000], outside: clip}
  weight: {bounds: [1, 50], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: tables}
budget: {epsilon: "1", adjacency: substitution}
tables:
"""


def job(*entries: str, more: str = "") -> Job:
    return parse_job(TEXT + "".join(f"  - {entry}\n" for entry in entries) + more)


def problems(*entries: str) -> tuple[Problem, ...]:
    with pytest.raises(JobError) as refused:
        job(*entries)
    return refused.value.problems


def columns(read: Job) -> dict[str, tuple[str, ...]]:
    return {table.name: table.by for table in read.tables}


def test_lists_of_columns_are_tables_named_by_their_columns() -> None:
    read = job("{name: pay, by: [[state, sex], [region], []], margins: false, statistics: [count, {mean: pay}]}")
    assert columns(read) == {"pay-state-sex": ("state", "sex"), "pay-region": ("region",), "pay": ()}
    assert {(table.margins, len(table.statistics)) for table in read.tables} == {(False, 2)}


def test_every_pair_and_triple_have_a_table_in_the_order_of_the_columns() -> None:
    pairs = job("{name: t, every_pair_of: [state, sex, region], statistics: [count]}")
    assert list(columns(pairs)) == ["t-state-sex", "t-state-region", "t-sex-region"]
    triples = job("{name: t, every_triple_of: [state, sex, region], statistics: [count]}")
    assert columns(triples) == {"t-state-sex-region": ("state", "sex", "region")}


def test_a_column_that_no_name_may_have_gives_underscores() -> None:
    assert list(columns(job("{name: t, by: [[pay in 2020, sex]], statistics: [count]}"))) == ["t-pay_in_2020-sex"]


def test_columns_of_other_scripts_have_names_of_their_own() -> None:
    """They were one underscore each, so that two of them made one name. Control: marks are still underscores."""
    declared = '  "المنطقة": {levels: [a, b]}\n  "地域": {levels: [a, b]}\n  "Åland (sum)": {levels: [a, b]}\n'
    entry = '  - {name: t, by: [["المنطقة"], ["地域"], ["Åland (sum)"]], statistics: [count]}\n'
    declared += '  "राज्य": {levels: [a, b]}\n  "m²": {levels: [a, b]}\n'
    entry = entry.replace("]], statistics", '], ["राज्य"], ["m²"]], statistics')
    names = list(columns(parse_job(TEXT.replace("columns:\n", f"columns:\n{declared}") + entry)))
    assert names == ["t-المنطقة", "t-地域", "t-Åland_sum_", "t-राज्य", "t-m_"]
    with pytest.raises(JobError, match="letters of any script"):
        job('{name: "a/b", by: [state], statistics: [count]}')


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("表" * 54, "160 bytes"),
        ("pay\ufeff", "U\\+FEFF"),
        ("e\u0301t", "Unicode form NFC"),
        ("\u0301t", "the first a letter"),
    ],
)
def test_a_name_of_files_is_short_and_looks_like_no_other(name: str, found: str) -> None:
    """Files have 255 bytes at most. Control: one character less, and the letter with its accent as one."""
    with pytest.raises(JobError, match=found):
        job(f"{{name: {json.dumps(name)}, by: [state], statistics: [count]}}")
    for allowed in ("表" * 53, "ét"):
        job(f"{{name: {allowed}, by: [state], statistics: [count]}}")


def test_shorthand_is_the_same_job_as_its_tables_written_out() -> None:
    short = job("{name: t, by: [[state, sex], [sex]], statistics: [count], priority: 3}", "{name: u, statistics: [count]}")
    tables = ("{name: t-state-sex, by: [state, sex], statistics: [count], priority: 3}",)
    tables += ("{name: t-sex, by: [sex], statistics: [count], priority: 3}", "{name: u, statistics: [count]}")
    assert short == job(*tables)
    assert short.identity == job(*tables).identity
    assert Job.model_validate(short.public).public == short.public
    assert Job.model_validate_json(short.model_dump_json()) == short


def test_an_error_to_aim_at_is_a_priority_and_survives_publication() -> None:
    read = job("{name: a, by: [sex], statistics: [count], error: .5}", "{name: b, by: [state], statistics: [count]}")
    assert [table.priority for table in read.tables] == [4.0, 1.0]
    assert [table.weighted for table in read.tables] == [True, False]
    published = read.public["tables"]
    assert published[0]["error"] == 0.5
    assert not {"error", "priority"} & set(published[1])
    assert [table.priority for table in Job.model_validate(read.public).tables] == [4.0, 1.0]


@pytest.mark.parametrize("key", ["priority: 2", "error: .5"])
def test_priority_and_error_change_the_identity(key: str) -> None:
    plain = "{name: a, by: [sex], statistics: [count]}"
    assert job(plain).identity != job(plain.replace("[count]", f"[count], {key}")).identity


def test_a_problem_of_one_entry_is_told_once_at_the_line_and_place_where_it_is_written() -> None:
    """Control: the second entry has a table of its own position, 3, which no file has."""
    wrong = problems(
        "{name: t, every_pair_of: [state, sex, region], statistics: [count]}",
        "{name: u, by: [[sex], [state, sx]], statistics: [count, {mean: wages}]}",
    )
    assert [(problem.where, problem.places) for problem in wrong] == [
        ("tables.1.by.1.1", ("line 17",)),
        ("tables.1.statistics.1", ("line 17",)),
    ]
    assert "did you mean 'sex'" in wrong[0].remedy


def test_settings_on_the_command_line_change_what_is_written() -> None:
    from dpdist.job.loading import SourcedKeys, freeze

    keys: dict[str, Any] = yaml.safe_load(TEXT + "  - {name: t, by: [[state, sex], [sex]], statistics: [count]}\n")
    assert list(columns(freeze(SourcedKeys(keys).with_settings(["tables.0.by.1=[region]"])))) == ["t-state-sex", "t-region"]


def test_a_thousand_tables_are_read_within_seconds_and_one_more_is_refused() -> None:
    entries = [f"{{name: t{k}, by: [[state], [sex], [region], [state, sex]], statistics: [count]}}" for k in range(250)]
    began = time.process_time()
    assert len(job(*entries).tables) == MOST_TABLES
    assert time.process_time() - began < 4.0
    (refused,) = problems(*entries, "{name: more, statistics: [count]}")
    assert (refused.where, refused.fault) == ("tables", "more than 1,000 tables")


def test_a_hierarchy_is_its_columns_or_columns_with_a_map_and_survives_publication() -> None:
    tables = "{name: t, by: [region, state], statistics: [count]}"
    listed = job(tables, more="hierarchies: {place: [region, state]}\n")
    assert listed.hierarchies["place"].columns == ("region", "state")
    within = "within: {state: {Texas: South, Utah: West, Ohio: West}}"
    mapped = job(tables, more=f"hierarchies: {{place: {{columns: [region, state], {within}}}}}\n")
    (nesting,) = mapped.nestings([])
    assert nesting.parents[0].tolist() == [0, 1, 1]
    for read in (listed, mapped):
        assert Job.model_validate(read.public).hierarchies == read.hierarchies
    assert len({str(read.identity) for read in (listed, mapped, job(tables))}) == 3
    assert "hierarchies" not in job(tables).public


def test_tables_of_the_same_cells_in_another_order_are_refused() -> None:
    """Their figures would be measured twice. Control: other statistics, another universe, and other columns."""
    first = "  - {name: one, by: [state, sex], statistics: [count]}\n"
    with pytest.raises(JobError, match="table 'one' has count for the same cells, with its columns in another order"):
        parse_job(TEXT + first + "  - {name: two, by: [sex, state], statistics: [count, {mean: pay}]}\n")
    with pytest.raises(JobError, match="in another order"):
        parse_job(TEXT + "  - {name: t, by: [[state, sex], [sex, state]], statistics: [count]}\n")
    for other in (
        "by: [sex, state], statistics: [{mean: pay}]",
        "by: [sex, state], universe: {region: [West]}, statistics: [count]",
        "by: [sex], statistics: [count]",
    ):
        parse_job(TEXT + first + f"  - {{name: two, {other}}}\n")
