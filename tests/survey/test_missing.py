"""What is missing is decided once: the same of every reader and in every use, whatever stands for a missing value."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import pytest

from dpdist.core.errors import DataError, JobError
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

RECORDS = 60
GAPS = (3, 17, 40, 58)
TEXTS = ("region", "sector", "class", "town")
"""Columns of texts; all others have numbers."""


def people() -> pd.DataFrame:
    number = np.arange(RECORDS)
    return pd.DataFrame(
        {
            "region": np.array(["n", "s"], dtype=object)[number % 2],
            "sector": np.array(["a", "b"], dtype=object)[number // 2 % 2],
            "class": np.array(["x", "y"], dtype=object)[number // 4 % 2],
            "town": np.array([f"t{town}" for town in number // 4], dtype=object),
            "code": (1 + number % 2).astype(float),
            "income": 100.0 + number,
            "weight": 5.0 + number // 4 % 2,
            "psu": 1.0 + number // 4,
            "fpc": np.full(RECORDS, 500.0),
            "rw1": 5.0 + number % 7,
            "rw2": 6.0 + number % 7,
            "unit": 1.0 + number,
        }
    )


COLUMNS = """
  region: {levels: [n, s]}
  sector: {levels: [a, b]}
  class: {levels: [x, y]}
  code: {levels: [1, 2]}
  income: {bounds: [0, 1000], outside: clip}
"""
TABLES = """
dataset: people
period: "1"
columns:COLUMNS  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: MECHANISM}
budget: {epsilon: "1", adjacency: substitution}
"""
MODEL = """
dataset: people
period: "1"
columns:COLUMNS
survey: {weight: weight}
outcome: income
mechanism: {name: weighted}
budget: {epsilon: "1"}
"""
BY = "tables: [{name: t, by: [NAME], statistics: [count]}]\n"
ALL = "tables: [{name: t, statistics: [count]}]\n"
PLAIN = "tables: [{name: t, by: [region], statistics: [count]}]\n"
UNIVERSE = "universe: [{column: NAME, keep: [KEEP]}]\n"
STRICT = TABLES.replace("MECHANISM", "tables")


def design(text: str, survey: str, more: str = PLAIN) -> str:
    return text.replace("{weight: weight}", f"{{weight: weight, {survey}}}") + more


USES: dict[str, tuple[str, str]] = {
    "outcome": ("income", MODEL + "model: {family: lognormal}\n" + ALL),
    "weight": ("weight", STRICT + PLAIN),
    "table column of texts": ("sector", STRICT + BY.replace("NAME", "sector")),
    "table column of codes": ("code", STRICT + BY.replace("NAME", "code")),
    "universe of a table": ("sector", STRICT + PLAIN.replace("by: [region]", "by: [region], universe: {sector: [a]}")),
    "universe of texts": ("sector", STRICT + PLAIN + UNIVERSE.replace("NAME", "sector").replace("KEEP", "a, b")),
    "universe of codes": ("code", STRICT + PLAIN + UNIVERSE.replace("NAME", "code").replace("KEEP", "1, 2")),
    "stratum": ("class", MODEL + "strata: [class]\nmodel: {family: lognormal}\n" + ALL),
    "predictor": ("class", MODEL + "model: {family: lognormal, predictors: [class]}\n" + ALL),
    "design stratum": ("class", design(STRICT, "design_strata: [class]")),
    "psu of texts": ("town", design(STRICT, "psu: town")),
    "psu of numbers": ("psu", design(STRICT, "psu: psu")),
    "declared psu": (
        "psu",
        design(STRICT, "psu: psu").replace("columns:", "columns:\n  psu: {levels: [{range: [1, 20]}]}"),
    ),
    "fpc": ("fpc", design(STRICT, "fpc: [fpc]")),
    "replicate weight": ("rw2", design(STRICT, "replicate_weights: {kind: bootstrap, prefix: rw, number: 2}")),
    "privacy unit of numbers": ("unit", STRICT + PLAIN + "privacy_unit: {column: unit, most: 1}\n"),
    "privacy unit of texts": ("town", STRICT + PLAIN + "privacy_unit: {column: town, most: 4}\n"),
    "hierarchy": (
        "sector",
        TABLES.replace("MECHANISM", "tables")
        + BY.replace("NAME", "region, sector")
        + "hierarchies: {places: {columns: [region, sector], within: {sector: {a: n, b: s}}}}\n"
        + "public_frame: {accepted: test}\n",
    ),
    "public weights": (
        "class",
        design(
            TABLES.replace("MECHANISM", "tables"),
            "design_weights: {by: [class], weights: {x: 5, y: 6}}",
            BY.replace("NAME", "class"),
        ),
    ),
}
"""The column that is used, and the job."""
DROPPED = (
    *("table column of texts", "table column of codes", "stratum", "predictor", "universe of texts"),
    *("universe of codes", "universe of a table", "design stratum", "outcome", "declared psu"),
)
"""Uses whose columns have a rule for missing values; of the others a missing value is refused."""


@cache
def job_of(use: str, rule: str) -> Job:
    column, text = USES[use]
    stated = re.sub(rf"(\n  {column}: {{.*)}}\n", rf"\1, missing: {rule}}}\n", text.replace("COLUMNS", COLUMNS))
    return parse_job(stated)


def _arrow(frame: pd.DataFrame, at: str, gap: Any, form: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """NaN stays NaN, and None is null."""
    arrays = {name: pa.array(frame[name], from_pandas=False) for name in frame}
    values = frame[at].tolist()
    for row in GAPS:
        values[row] = gap
    arrays[at] = form(pa.array(values, from_pandas=False))
    return pa.table(arrays)


def _typed(gap: Any, form: Callable[[pa.Array], pa.Array] = lambda values: values) -> Callable[..., Any]:
    return lambda frame, at, folder: _arrow(frame, at, gap, form)


def _parquet(gap: Any) -> Callable[..., Any]:
    def written(frame: pd.DataFrame, at: str, folder: Path) -> Path:
        pq.write_table(_arrow(frame, at, gap, lambda values: values), folder / "people.parquet")
        return folder / "people.parquet"

    return written


def _csv(gap: str, name: str = "people.csv") -> Callable[..., Any]:
    def written(frame: pd.DataFrame, at: str, folder: Path) -> Path:
        texts = frame.astype(object)
        texts.loc[list(GAPS), at] = gap
        content = texts.to_csv(index=False).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return folder / name

    return written


def _pandas(gap: Any) -> Callable[..., Any]:
    def framed(frame: pd.DataFrame, at: str, folder: Path) -> pd.DataFrame:
        frame = frame.copy()
        frame.loc[list(GAPS), at] = gap
        return frame

    return framed


def _sav(frame: pd.DataFrame, at: str, folder: Path) -> Path:
    """Values that the file declares as missing; of texts, an empty text."""
    frame = frame.copy()
    text = at in TEXTS
    frame.loc[list(GAPS), at] = "zz" if text else 999.0
    pyreadstat.write_sav(frame, str(folder / "people.sav"), missing_ranges={at: ["zz" if text else 999]})
    return folder / "people.sav"


def _dta(gap: Any, **how: Any) -> Callable[..., Any]:
    def written(frame: pd.DataFrame, at: str, folder: Path) -> Path:
        frame = frame.astype({at: object})
        frame.loc[list(GAPS), at] = gap
        frame = frame if how or at in TEXTS else frame.astype({at: float})
        user = {"missing_user_values": {at: ["a"]}} if how else {}
        pyreadstat.write_dta(frame, str(folder / "people.dta"), **user)
        return folder / "people.dta"

    return written


BOTH: dict[str, Callable[..., Any]] = {
    "CSV, empty": _csv(""),
    "CSV, NA": _csv("NA"),
    "CSV, blank": _csv("  "),
    "compressed CSV, empty": _csv("", "people.csv.gz"),
    "Parquet, null": _parquet(None),
    "Arrow, null": _typed(None),
    "Arrow, null in a dictionary": _typed(None, lambda values: values.dictionary_encode()),
    "pandas, None": _pandas(None),
    "SPSS, declared as missing": _sav,
}
READERS_OF_TEXTS = BOTH | {
    "Parquet, empty": _parquet(""),
    "Arrow, blank": _typed(" \t"),
    "Arrow, empty in a dictionary": _typed("", lambda values: values.dictionary_encode()),
    "Arrow, empty in views": _typed("", lambda values: values.cast(pa.string_view())),
    "Arrow, empty in a large text": _typed("", lambda values: values.cast(pa.large_string())),
    "pandas, NaN": _pandas(np.nan),
    "Stata, empty": _dta(""),
}
READERS_OF_NUMBERS = BOTH | {
    "CSV, NaN": _csv("NaN"),
    "Parquet, NaN": _parquet(float("nan")),
    "Arrow, NaN": _typed(float("nan")),
    "Arrow, NaN in a dictionary": _typed(float("nan"), lambda values: values.dictionary_encode()),
    "Arrow, NaN in half precision": _typed(float("nan"), lambda values: values.cast(pa.float16())),
    "pandas, NaN": _pandas(np.nan),
    "pandas, NA": lambda frame, at, folder: _pandas(pd.NA)(frame.astype({at: "Float64"}), at, folder),
    "Stata, .": _dta(None),
    "Stata, .a": _dta("a", user=True),
}
CASES = [
    pytest.param(use, reader, id=f"{use}-{reader}")
    for use, (column, _) in USES.items()
    for reader in (READERS_OF_TEXTS if column in TEXTS else READERS_OF_NUMBERS)
]


def counted(job: Job, given: Any) -> int:
    return int(take_census(job, open_source(job, given)).crosstab.count.sum())


def written(use: str, reader: str, folder: Path) -> Any:
    column = USES[use][0]
    write = (READERS_OF_TEXTS if column in TEXTS else READERS_OF_NUMBERS)[reader]
    return write(people(), column, folder)


@pytest.mark.parametrize(("use", "reader"), CASES)
def test_a_missing_value_is_refused_in_every_use_of_every_reader_or_left_out(use: str, reader: str, tmp_path: Path) -> None:
    """Under `missing: error`, which is the default: one problem, of the column and its four records."""
    given = written(use, reader, tmp_path)
    with pytest.raises(DataError) as refused:
        counted(job_of(use, "error"), given)
    (problem,) = refused.value.problems
    assert (problem.where, problem.count) == (USES[use][0], len(GAPS))
    assert "missing" in problem.fault
    if use in DROPPED:
        assert counted(job_of(use, "drop"), given) == RECORDS - len(GAPS)


@pytest.mark.parametrize("use", USES)
def test_a_complete_file_is_read_in_every_use(use: str) -> None:
    for rule in ("error", "drop")[: 1 + (use in DROPPED)]:
        assert counted(job_of(use, rule), people()) == RECORDS


@pytest.mark.parametrize("given", ["frame", "table"])
def test_no_time_is_a_missing_value(given: str) -> None:
    """Not a time (NaT), in a column of dates that names PSUs."""
    job = parse_job(design(STRICT, "psu: day").replace("COLUMNS", COLUMNS))
    frame = people().assign(day=pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(RECORDS) // 4, unit="D"))
    assert counted(job, frame) == RECORDS
    frame.loc[list(GAPS), "day"] = pd.NaT
    with pytest.raises(DataError, match=r"day: missing values.*\n.*a PSU for every record"):
        counted(job, frame if given == "frame" else pa.Table.from_pandas(frame))


@pytest.mark.parametrize("mark", ["nan", "NaT", "None", "<NA>", "null", "."])
@pytest.mark.parametrize("use", ["psu of texts", "privacy unit of texts"])
def test_a_text_that_marks_a_missing_value_elsewhere_names_no_unit(mark: str, use: str) -> None:
    """Frames whose gaps became texts have one unit of that name. Control: the same as a level that is declared."""
    frame = people()
    frame.loc[list(GAPS), "town"] = mark
    with pytest.raises(DataError, match="town: names that are marks of missing values in other programs"):
        counted(job_of(use, "error"), frame)
    frame.loc[list(GAPS), "sector"] = mark
    declared = USES["table column of texts"][1].replace("COLUMNS", COLUMNS).replace("[a, b]", f"[a, b, '{mark}']")
    assert counted(parse_job(declared), frame) == RECORDS


@pytest.mark.parametrize(("rule", "told"), [("missing: category", "one group"), ("outside: clip", "neither moved")])
def test_a_rule_that_would_make_one_psu_of_several_is_refused(rule: str, told: str) -> None:
    text = USES["declared psu"][1].replace("COLUMNS", COLUMNS)
    with pytest.raises(JobError, match=told):
        parse_job(text.replace("[1, 20]}]", f"[1, 20]}}], {rule}"))
