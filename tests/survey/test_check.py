"""Checking a batch: values, their types and spellings, the stated rules, and what is told of a wrong value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from dpdist.job import Job
from dpdist.survey.batch import Batch, Findings, positions
from dpdist.survey.checks import CheckedBatch, check
from dpdist.survey.schema import check_schema, needed_columns

BASE: dict[str, Any] = {
    "dataset": "tiny",
    "period": "2020",
    "columns": {"sex": {"levels": ["f", "m"]}, "salary": {"bounds": [10, 100]}},
    "survey": {"weight": "weight"},
    "outcome": "salary",
    "model": {"family": "lognormal", "predictors": ["sex"]},
    "mechanism": {"name": "weighted"},
    "budget": {"epsilon": "1"},
    "tables": [{"name": "t", "statistics": ["count"]}],
}


def make_job(sex: dict[str, Any] | None = None, salary: dict[str, Any] | None = None, **changes: Any) -> Job:
    columns = {"sex": {"levels": ["f", "m"]} | (sex or {}), "salary": {"bounds": [10, 100]} | (salary or {})}
    return Job.model_validate(BASE | {"columns": columns} | changes)


def batch(text: bool = False, **columns: Any) -> pa.RecordBatch:
    """Three good records, with columns replaced; `text` as a CSV gives them."""
    values: dict[str, Any] = {"sex": ["f", "m", "f"], "salary": [20.0, 30.0, 40.0], "weight": [1.0, 2.0, 3.0]} | columns
    arrays = {name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in values.items()}
    if text:
        arrays = {name: value.cast(pa.string()) for name, value in arrays.items()}
    return pa.RecordBatch.from_pydict(arrays)


def checked(job: Job, records: pa.RecordBatch, text: bool = False, first_row: int = 0) -> tuple[CheckedBatch, Findings]:
    findings = Findings()
    assert check_schema(job, records.schema, text) == []
    return check(job, records, first_row, findings, text), findings


def told(findings: Findings) -> list[tuple[str, str, int, tuple[str, ...], tuple[str, ...]]]:
    return [(p.where, p.fault, p.count, p.places, p.values) for p in findings.problems.values()]


def test_good_records_pass_as_they_are() -> None:
    found, findings = checked(make_job(), batch(), first_row=100)
    assert (findings.problems, findings.removed, findings.records) == ({}, {}, 3)
    assert found.row.tolist() == [100, 101, 102]
    assert found.codes["sex"].tolist() == [0, 1, 0]
    assert found.outcomes[0].tolist() == [20.0, 30.0, 40.0]
    assert found.weight.tolist() == [1.0, 2.0, 3.0]
    assert found.psu is None


STORED_LEVELS = {
    "string": (["f", "m"], pa.array(["m", "f", "m"])),
    "int64": ([7, -3], pa.array([-3, 7, -3])),
    "int8": ([7, -3], pa.array([-3, 7, -3], type=pa.int8())),
    "uint16": ([7, 3], pa.array([3, 7, 3], type=pa.uint16())),
    "int8 with levels beyond it": ([300, 3], pa.array([3, 3, 3], type=pa.int8())),
    "boolean": ([True, False], pa.array([False, True, False])),
}


@pytest.mark.parametrize(("levels", "values"), STORED_LEVELS.values(), ids=STORED_LEVELS)
def test_levels_are_found_whatever_their_type_and_encoding(levels: list[Any], values: pa.Array) -> None:
    found, findings = checked(make_job({"levels": levels}), batch(sex=values))
    assert findings.problems == {}
    assert [levels[code] for code in found.codes["sex"]] == values.to_pylist()


@pytest.mark.parametrize("levels", [["f", "m"], [7, -3], ["1.0", "1"], ["001", "010"]])
def test_levels_in_csv_are_the_text_of_the_declared_ones(levels: list[Any]) -> None:
    found, findings = checked(make_job({"levels": levels}), batch(True, sex=[str(levels[i]) for i in (1, 0, 1)]), True)
    assert findings.problems == {}
    assert found.codes["sex"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("missing", ["error", "category"])
def test_a_whole_number_with_a_decimal_point_is_a_level_of_csv(missing: str) -> None:
    """As many programs write whole numbers beside missing ones. Controls: a fraction, 01, and a file with types."""
    job = make_job({"levels": [1, 2, 5], "missing": missing}, universe=[{"column": "sex", "keep": [1, 5]}])
    found, findings = checked(job, batch(True, sex=["1.0", "2.0", "5.00"]), True)
    assert (findings.problems, findings.removed) == ({}, {"sex: outside the universe": 1})
    assert found.codes["sex"].tolist() == [0, 2]
    column = {"levels": [1, 2, 5], "missing": missing, "outside": "clip"}
    found, findings = checked(make_job(column), batch(True, sex=["14.0", "2.0", "-1.0"]), True)
    assert (findings.problems, found.codes["sex"].tolist()) == ({}, [2, 1, 0])
    wrong = (["1.5", "01", "01.0"], True), (["1.0", "2.0", "5.0"], False)
    for sex, text in wrong:
        _, findings = checked(make_job({"levels": ["1", "2", "5"], "missing": missing}), batch(text, sex=sex), text)
        assert [problem[:3] for problem in told(findings)] == [
            ("sex", "the file contains values that are not among the declared levels", 3)
        ]
    both, findings = checked(make_job({"levels": ["1", "1.0"]}), batch(True, sex=["1.0", "1", "1.0"]), True)
    assert (findings.problems, both.codes["sex"].tolist()) == ({}, [1, 0, 1])


@pytest.mark.parametrize("spelling", [("False", "True"), ("false", "true"), ("FALSE", "TRUE")])
def test_boolean_levels_in_csv_are_read_in_every_usual_spelling(spelling: tuple[str, str]) -> None:
    values = [spelling[i] for i in (0, 1, 0)]
    found, findings = checked(make_job({"levels": [True, False]}), batch(True, sex=values), True)
    assert findings.problems == {}
    assert found.codes["sex"].tolist() == [1, 0, 1]


def test_one_text_is_not_another_that_looks_like_it() -> None:
    values = ["F", " f", "f "]
    _, findings = checked(make_job(), batch(sex=values))
    assert told(findings) == [
        (
            "sex",
            "values that differ from declared levels only by spaces before or after them",
            2,
            ("row 2", "row 3"),
            ("' f'", "'f '"),
        ),
        ("sex", "values that differ from declared levels only by capital letters", 1, ("row 1",), ("'F'",)),
    ]


STORED_NUMBERS = {
    "double": pa.array([20.0, 30.0, 40.0]),
    "float": pa.array([20.0, 30.0, 40.0], type=pa.float32()),
    "half": pa.array([20.0, 30.0, 40.0], type=pa.float16()),
    "int64": pa.array([20, 30, 40]),
    "uint8": pa.array([20, 30, 40], type=pa.uint8()),
}


@pytest.mark.parametrize("values", STORED_NUMBERS.values(), ids=STORED_NUMBERS)
def test_numbers_are_read_whatever_their_type(values: pa.Array) -> None:
    found, findings = checked(make_job(), batch(salary=values, weight=values))
    assert findings.problems == {}
    assert found.outcomes[0].tolist() == found.weight.tolist() == [20.0, 30.0, 40.0]
    assert found.outcomes[0].dtype == found.weight.dtype == np.float64


@settings(max_examples=30)
@given(st.lists(st.floats(10, 100), min_size=1, max_size=20))
def test_a_number_in_csv_is_the_nearest_float_to_its_text(values: list[float]) -> None:
    columns = {"sex": ["f"] * len(values), "salary": [repr(v) for v in values], "weight": ["1"] * len(values)}
    found, findings = checked(make_job(), batch(True, **columns), True)
    assert findings.problems == {}
    assert found.outcomes[0].tolist() == values


@pytest.mark.parametrize("text", ["20", "20.", "+20", "2e1", "2.0E+01", " 20", "20 ", "\t20"])
def test_usual_spellings_of_a_number_in_csv_are_read(text: str) -> None:
    found, findings = checked(make_job(), batch(True, salary=[text, "30", "40"]), True)
    assert findings.problems == {}
    assert found.outcomes[0].tolist() == [20.0, 30.0, 40.0]


@pytest.mark.parametrize("text", ["twenty", "2 0", "2,0", "0x14", "20€", "1_000", "--20", "e5", ".", "inf", "٢٠"])
def test_anything_else_is_not_a_number_and_is_told_once(text: str) -> None:
    _, findings = checked(make_job(), batch(True, salary=["30", text, "40"]), True)
    assert told(findings) == [("salary", "values that are not numbers", 1, ("row 2",), (text,))]


WRONG_TYPES = {
    "text salary": ({"salary": ["a", "b", "c"]}, "salary", "string"),
    "boolean weight": ({"weight": [True, False, True]}, "weight", "bool"),
    "date salary": ({"salary": pa.array([1, 2, 3], type=pa.date32())}, "salary", "date32[day]"),
    "empty column": ({"salary": pa.nulls(3)}, "salary", "null"),
    "numbers for text levels": ({"sex": [1, 2, 3]}, "sex", "int64"),
    "truth values for text levels": ({"sex": [True, False, True]}, "sex", "bool"),
    "dictionary of numbers for text levels": ({"sex": pa.array([1, 2, 3]).dictionary_encode()}, "sex", "int64"),
}


@pytest.mark.parametrize(("columns", "where", "kind"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_wrong_type_is_one_problem_that_names_it(columns: dict[str, Any], where: str, kind: str) -> None:
    (problem,) = check_schema(make_job(), batch(**columns).schema, False)
    assert (problem.where, problem.fault) == (where, f"wrong type: {kind}")
    assert problem.values == ()


def test_levels_that_yaml_took_for_booleans_are_explained() -> None:
    (problem,) = check_schema(make_job({"levels": [False, True]}), batch(sex=["No", "Yes", "No"]).schema, False)
    assert "quote them in the job" in problem.remedy


def test_types_in_csv_are_nobodys_fault() -> None:
    assert check_schema(make_job(), batch(True).schema, True) == []


def test_only_the_columns_that_the_job_uses_are_needed_each_once() -> None:
    job = make_job(
        universe=[{"column": "status", "keep": ["x"]}],
        survey={"weight": "weight", "psu": "town", "design_strata": ["sex"]},
    )
    assert needed_columns(job) == ("status", "sex", "salary", "weight", "town")


WRONG_NUMBERS = {
    "negative outcome": ("salary", -20.0, "negative values"),
    "zero outcome": ("salary", 0.0, "zeros"),
    "minus zero outcome": ("salary", -0.0, "zeros"),
    "missing outcome": ("salary", None, "missing values"),
    "NaN outcome": ("salary", np.nan, "missing values"),
    "infinite outcome": ("salary", np.inf, "values that are not finite"),
    "minus infinite outcome": ("salary", -np.inf, "values that are not finite"),
    "outcome below": ("salary", 9.999, "values outside the public bounds"),
    "outcome above": ("salary", 100.001, "values outside the public bounds"),
    "negative weight": ("weight", -1.0, "negative weights"),
    "zero weight": ("weight", 0.0, "zero weights"),
    "missing weight": ("weight", None, "missing weights"),
    "NaN weight": ("weight", np.nan, "missing weights"),
    "infinite weight": ("weight", np.inf, "weights that are not finite"),
}


@pytest.mark.parametrize(("column", "value", "found"), WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_a_wrong_number_is_one_problem_at_its_row(column: str, value: float | None, found: str) -> None:
    values = pa.array([30.0, value, 40.0])
    _, findings = checked(make_job(), batch(**{column: values}), first_row=500)
    assert told(findings) == [(column, found, 1, ("row 502",), (str(values[1].as_py()),))]


def test_bounds_belong_to_the_domain() -> None:
    _, findings = checked(make_job(), batch(salary=[10.0, 100.0, 50.0]))
    assert findings.problems == {}


def test_declared_bounds_of_weights_are_kept() -> None:
    job = make_job()
    job = Job.model_validate(job.model_dump(mode="json") | {"columns": {**job.columns, "weight": {"bounds": [0, 2]}}})
    _, findings = checked(job, batch())
    assert told(findings) == [("weight", "weights outside the public bounds", 1, ("row 3",), ("3.0",))]


def test_a_missing_level_is_refused_unless_the_job_drops_it() -> None:
    records = batch(sex=["f", None, "m"])
    _, findings = checked(make_job(), records)
    assert told(findings) == [("sex", "missing values", 1, ("row 2",), ("None",))]
    found, findings = checked(make_job({"missing": "drop"}), records)
    assert (findings.problems, findings.removed) == ({}, {"sex: missing, dropped": 1})
    assert found.row.tolist() == [0, 2]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("missing", ["error", "category"])
def test_whole_numbers_that_are_no_level_count_in_the_nearest_one(text: bool, missing: str) -> None:
    """Also between levels, where the smaller is taken. Controls: no clip, and a number that is not whole."""
    sizes = [-3, 1, 3, 4, 5, 14]
    numbers = {"salary": [20.0] * 6, "weight": [1.0] * 6}
    column = {"levels": [1, 2, 5], "missing": missing}
    found, findings = checked(make_job(column | {"outside": "clip"}), batch(text, sex=sizes, **numbers), text)
    assert (findings.problems, findings.removed) == ({}, {"sex: not a level, counted as the nearest one": 4})
    assert found.codes["sex"].tolist() == [0, 0, 1, 2, 2, 2]
    _, findings = checked(make_job(column), batch(text, sex=sizes, **numbers), text)
    assert [(fault, count) for _, fault, count, *_ in told(findings)] == [
        ("the file contains values that are not among the declared levels", 4)
    ]
    assert "or state outside: clip there" in next(iter(findings.problems.values())).remedy
    _, findings = checked(make_job({"levels": ["f", "m"]}), batch(sex=["f", "x", "m"]))
    assert "clip" not in next(iter(findings.problems.values())).remedy
    halves = pa.array([1.0, 2.5, 14.0])
    _, findings = checked(make_job({"levels": [1, 2, 5], "outside": "clip"}), batch(sex=halves))
    assert told(findings) == [
        ("sex", "the file contains values that are not among the declared levels", 1, ("row 2",), ("2.5",))
    ]
    holes = pa.array([1, None, 7])
    found, findings = checked(make_job(column | {"outside": "clip"}), batch(sex=holes))
    assert len(findings.problems) == (missing == "error")
    assert found.codes["sex"].tolist() == ([0, 3, 2] if missing == "category" else [0, 2])


@pytest.mark.parametrize("levels", [["f", "m"], ["1", "m"], [True, False]])
def test_levels_that_are_no_whole_numbers_have_no_nearest_one(levels: list[Any]) -> None:
    with pytest.raises(ValidationError, match="is for levels that are whole numbers"):
        make_job({"levels": levels, "outside": "clip"})


def test_rules_drop_and_clip_in_the_order_that_their_counts_tell() -> None:
    job = make_job(
        {"missing": "drop"},
        {"missing": "drop", "zeros": "drop", "outside": "clip"},
        universe=[{"column": "status", "keep": ["in"]}],
    )
    records = pa.RecordBatch.from_pydict(
        {
            "status": ["out", "in", "in", "in", "in", "in", None, "in"],
            "sex": ["x", "x", "f", "f", None, "f", "f", "m"],
            "salary": [-1.0, None, 0.0, 500.0, 20.0, 1.0, 20.0, 20.0],
            "weight": [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        }
    )
    found, findings = checked(job, records)
    assert findings.problems == {}
    assert findings.removed == {
        "status: outside the universe": 2,
        "salary: missing, dropped": 1,
        "salary: zeros, dropped": 1,
        "salary: outside its bounds, clipped": 2,
        "sex: missing, dropped": 1,
    }
    assert found.row.tolist() == [3, 5, 7]
    assert found.outcomes[0].tolist() == [100.0, 10.0, 20.0]


def test_clipping_does_not_make_a_negative_value_valid() -> None:
    _, findings = checked(make_job(salary={"outside": "clip"}), batch(salary=[-5.0, 20.0, 30.0]))
    assert [(p.where, p.fault) for p in findings.problems.values()] == [("salary", "negative values")]


def test_a_rule_that_is_not_stated_drops_nothing() -> None:
    for salary, stated in ((None, "missing"), (0.0, "zeros")):
        records = batch(salary=pa.array([salary, 20.0, 30.0]))
        assert checked(make_job(), records)[1].problems
        assert checked(make_job(salary={stated: "drop"}), records)[1].removed == {
            f"salary: {'missing' if salary is None else 'zeros'}, dropped": 1
        }


UNIVERSES = {
    "string": (["a", "b"], pa.array(["a", "c", "b"])),
    "dictionary": (["a", "b"], pa.array(["a", "c", "b"]).dictionary_encode()),
    "int": ([1, 2], pa.array([1, 3, 2])),
    "float": ([1, 2], pa.array([1.0, 3.0, 2.0])),
    "boolean true": ([True], pa.array([True, False, True])),
    "boolean false": ([False], pa.array([False, True, False])),
    "missing": (["a"], pa.array(["a", None, "a"])),
}


@pytest.mark.parametrize(("keep", "values"), UNIVERSES.values(), ids=UNIVERSES)
def test_a_universe_keeps_the_named_values_whatever_their_type(keep: list[Any], values: pa.Array) -> None:
    job = make_job(universe=[{"column": "status", "keep": keep}])
    found, findings = checked(job, batch(status=values))
    assert found.row.tolist() == [0, 2]
    assert (findings.problems, findings.removed) == ({}, {"status: outside the universe": 1})


def test_filters_of_a_universe_add_up() -> None:
    job = make_job(universe=[{"column": "status", "keep": ["in"]}, {"column": "sex", "keep": ["f"]}])
    found, findings = checked(job, batch(status=["out", "in", "in"]))
    assert found.row.tolist() == [2]
    assert findings.removed == {"status: outside the universe": 1, "sex: outside the universe": 1}


@pytest.mark.parametrize("values", [["a", "b", "a"], [10, 9, 10], [1.5, 2.5, 1.5]])
def test_psus_are_named_by_their_text(values: list[Any]) -> None:
    job = make_job(survey={"weight": "weight", "psu": "town"})
    found, findings = checked(job, batch(town=values))
    assert findings.problems == {}
    assert found.psu is not None
    assert found.psu.to_pylist() == [str(value) for value in values]


def test_a_record_without_psu_is_refused() -> None:
    job = make_job(survey={"weight": "weight", "psu": "town"})
    _, findings = checked(job, batch(town=["a", None, "b"]))
    assert told(findings) == [("town", "missing values", 1, ("row 2",), ("None",))]


def test_a_problem_counts_all_its_records_and_shows_the_first_three_of_all_batches() -> None:
    job, findings = make_job(), Findings()
    for first_row in (0, 3, 6):
        check(job, batch(weight=[1.0, -1.0 - first_row, -2.0]), first_row, findings, False)
    assert told(findings) == [
        ("weight", "negative weights", 6, ("row 2", "row 3", "row 5"), ("-1.0", "-2.0", "-4.0")),
    ]
    assert findings.records == 9


def test_a_record_with_two_faults_is_told_for_the_first() -> None:
    _, findings = checked(make_job(), batch(salary=[-1.0, 20.0, 30.0], sex=["x", "f", "f"], weight=[-1.0, 1.0, 1.0]))
    assert [(p.where, p.fault) for p in findings.problems.values()] == [("salary", "negative values")]


def test_an_empty_batch_is_checked_without_complaint() -> None:
    for text in (False, True):
        found, findings = checked(make_job(), batch(text).slice(0, 0), text)
        assert len(found.row) == len(found.outcomes[0]) == 0
        assert findings.problems == {}


@pytest.mark.parametrize("level", ["NA", "null", "nan"])
def test_a_level_that_csv_reads_as_missing_is_refused_rather_than_lost(level: str) -> None:
    job = make_job({"levels": [level, "m"]})
    (problem,) = check_schema(job, batch(True).schema, True)
    assert problem.where == "sex"
    assert f"'{level}'" in problem.fault
    assert check_schema(job, batch().schema, False) == []


CODED = {"bounds": [0, 1], "codes": {"No": 0, "Yes": 1}}


def coded(**rules: str) -> Job:
    model = {"family": "bernoulli"}
    return make_job(columns={"salary": CODED | rules}, model=model, survey={})


@pytest.mark.parametrize("stored", [pa.array(["Yes", "No", "Yes"]), pa.array(["Yes", "No", "Yes"]).dictionary_encode()])
def test_texts_stand_for_the_numbers_that_the_job_codes(stored: pa.Array) -> None:
    job = coded()
    found, findings = checked(job, batch(salary=stored))
    assert findings.problems == {}
    assert found.outcomes[0].tolist() == [1.0, 0.0, 1.0]


def test_a_text_without_a_code_is_told_and_a_missing_one_follows_its_rule() -> None:
    job = coded(missing="drop")
    found, findings = checked(job, batch(salary=pa.array(["Yes", None, "Perhaps"])))
    assert told(findings) == [("salary", "texts without a code", 1, ("row 3",), ("Perhaps",))]
    assert findings.removed == {"salary: missing, dropped": 1}
    assert found.outcomes[0].tolist() == [1.0]


def test_a_coded_column_of_numbers_is_refused_by_its_type() -> None:
    job = coded()
    (problem,) = check_schema(job, batch().schema, False)
    assert (problem.where, problem.allowed) == ("salary", "text, according to its codes")


@pytest.mark.parametrize(
    ("declared", "value"),
    [("New York", "New\u00a0York"), ("New\u00a0York", "New York"), ("New York", "New  York"), ("New  York", "New York")],
)
def test_levels_that_differ_by_spaces_show_the_difference(declared: str, value: str) -> None:
    """As Python writes them, so that a no-break space is seen; of the file only to who asks. Control: another word."""
    _, findings = checked(make_job({"levels": [declared, "Reno"]}), batch(sex=[value, "Reno", "Newyork"]))
    (spaced, other) = told(findings)
    assert spaced[1:4] == (
        "values that differ from declared levels only by no-break spaces, or several spaces in a row",
        1,
        ("row 1",),
    )
    assert spaced[4] == (repr(value),)
    assert other[1] == "the file contains values that are not among the declared levels"
    (problem, _) = findings.problems.values()
    assert problem.allowed == f"as the job writes them: {declared!r}, 'Reno'", "of declared levels, and not of those met"


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32()], ids=str)
def test_levels_of_a_dictionary_are_found_as_those_of_plain_values(kind: pa.DataType) -> None:
    """127 entries fill an index of 8 bits; nulls may stand in the indices, and in the dictionary. Control: other levels."""
    entries = [*(f"l{k}" for k in range(126)), None]
    place = [None if k % 11 == 0 else k % 127 for k in range(400)]
    coded = pa.DictionaryArray.from_arrays(pa.array(place, kind), pa.array(entries, pa.string()))
    levels = [f"l{k}" for k in range(125, 3, -1)]

    def found(values: pa.Array, levels: list[str]) -> list[int]:
        batch = Batch(pa.record_batch({"x": values}), 0, Findings(), False)
        return [int(code) for code in batch.of_plain_values("x", lambda plain: positions(plain, levels, exact=True))]

    assert found(coded, levels) == found(coded.dictionary_decode(), levels)
    assert found(coded, levels) == [-1 if k is None or not 3 < k < 126 else 125 - k for k in place]
    assert found(coded, levels[1:]) != found(coded, levels)
