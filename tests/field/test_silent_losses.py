"""Files that lost records, or kept wrong groups of them, without a word: each is read right, or refused with its cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest
from command_line import succeed

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.survey.census import take_census
from dpdist.survey.source import open_source

JOB: dict[str, Any] = {
    "dataset": "people",
    "period": "2024",
    "columns": {
        "region": {"levels": ["n", "s"]},
        "income": {"bounds": [0, 20000], "outside": "clip"},
        "weight": {"bounds": [1, 60], "outside": "clip"},
    },
    "survey": {"weight": "weight"},
    "outcome": "income",
    "mechanism": {"name": "tables"},
    "budget": {"epsilon": "1", "adjacency": "substitution"},
    "public_frame": {"accepted": "test"},
    "tables": [{"name": "pay", "by": ["region"], "statistics": ["count", {"mean": "income"}]}],
}


def people(records: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"region": rng.choice(["n", "s"], records), "income": rng.gamma(2, 900, records).round(-1)})
    return rows.assign(weight=rng.uniform(5, 50, records).round(2))


def checked(data: Path | pd.DataFrame, **changes: Any) -> int:
    """The number of records of the release; raises what is wrong with the file."""
    job = dpdist.parse_job(json.dumps({**JOB, **changes}))
    return int(take_census(job, open_source(job, data)).crosstab.count.sum())


@pytest.mark.parametrize("kind", ["int64", "float64"])
@pytest.mark.parametrize("declared", [False, True])
def test_codes_of_eleven_digits_are_levels_of_floats_too(kind: str, declared: bool) -> None:
    """Arrow writes 60371234001.0 as 6.0371234001e+10. Control: other codes are outside the universe."""
    codes = [6_037_123_400, 60_371_234_001]
    rows = people().assign(tract=np.array([*codes, 7] * 40).astype(kind))
    columns = {**JOB["columns"], "tract": {"levels": [*codes, 7], "missing": "category"}} if declared else JOB["columns"]
    assert checked(rows, columns=columns, universe=[{"column": "tract", "keep": codes}]) == 80


def test_an_even_number_of_open_quotes_is_found(tmp_path: Path) -> None:
    """Control: line breaks and doubled marks within closed quotes, and inches."""
    rows = people().assign(note=['5" pipe', '"a ""b""\nc"'] * 60)
    lines = [",".join(rows.columns), *(",".join(map(str, row)) for row in rows.itertuples(index=False))]
    (tmp_path / "closed.csv").write_text("\n".join(lines) + "\n")
    assert checked(tmp_path / "closed.csv") == 120
    lines = [line.replace('"a ""b""\nc"', "c") for line in lines]
    for line in (20, 100):
        lines[line] = f'{lines[line].rsplit(",", 1)[0]},"x'
    (tmp_path / "open.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"a quotation mark that is not closed \(line 21\)"):
        checked(tmp_path / "open.csv")


def test_characters_of_code_0_are_no_utf_16(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "data.csv", index=False)
    text = (tmp_path / "data.csv").read_text().replace("weight\n", "weight\0\n")
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(DataError, match="a character of code 0") as caught:
        checked(tmp_path / "data.csv")
    assert "utf-16" not in str(caught.value)
    (tmp_path / "data.csv").write_bytes(people().to_csv(index=False).encode("utf-16-le"))
    with pytest.raises(DataError, match="encoding: utf-16-le"):
        checked(tmp_path / "data.csv")


@pytest.mark.parametrize("absent", ["category", "drop"])
def test_a_level_that_spss_declares_as_missing_is_refused(absent: str, tmp_path: Path) -> None:
    """Control: without the declaration it is a level."""
    rows, columns = people().assign(region=[1.0, 2.0, 8.0] * 40), dict(JOB["columns"])
    columns["region"] = {"levels": [1, 2, 8], "missing": absent}
    for name, ranges in (("plain.sav", {}), ("declared.sav", {"region": [8.0]})):
        pyreadstat.write_sav(rows, tmp_path / name, missing_ranges=ranges)
    assert checked(tmp_path / "plain.sav", columns=columns) == 120
    with pytest.raises(DataError, match="region: the file declares 8 as missing"):
        checked(tmp_path / "declared.sav", columns=columns)
    universe = [{"column": "area", "keep": [8]}]
    pyreadstat.write_sav(people().assign(area=rows["region"]), tmp_path / "area.sav", missing_ranges={"area": [8.0]})
    with pytest.raises(DataError, match="area: the file declares 8 as missing"):
        checked(tmp_path / "area.sav", universe=universe)


@pytest.mark.parametrize("names", [["7", "07"], ["7", "7.0"], ["a", "A "], ["a", "NA"], ["a", "\u00a0"], [1.0, np.inf]])
def test_names_of_psus_that_are_no_others_are_refused(names: list[object]) -> None:
    """Control: names of their own, and one name in two design strata, spelled in two ways."""
    survey = {"weight": "weight", "psu": "psu"}
    assert checked(people().assign(psu=["7", "8"] * 60), survey=survey) == 120
    with pytest.raises(DataError, match="psu"):
        checked(people().assign(psu=names * 60), survey=survey)
    apart = people().sort_values("region", kind="stable").reset_index(drop=True)
    apart["psu"] = np.where(apart["region"] == "n", "7", "07")
    assert checked(apart, survey={**survey, "design_strata": ["region"]}) == 120


def test_replicate_factors_are_no_replicate_weights() -> None:
    rng = np.random.default_rng(0)
    rows, factors = people(), rng.choice([0.5, 1.5], (120, 20))
    survey = {"weight": "weight", "replicate_weights": {"kind": "fay", "prefix": "r", "number": 20, "fay": 0.5}}
    names = [f"r{k}" for k in range(1, 21)]
    weights = rows.join(pd.DataFrame(factors * rows[["weight"]].to_numpy(), columns=names))
    assert checked(weights, survey=survey) == 120
    with pytest.raises(DataError, match="if they are factors, multiply the weight by each"):
        checked(rows.join(pd.DataFrame(factors, columns=names)), survey=survey)


def test_levels_beyond_64_bits_are_refused_with_the_job() -> None:
    columns = {**JOB["columns"], "region": {"levels": [1, 2**64]}}
    with pytest.raises(JobError, match="quote them all"):
        dpdist.parse_job(json.dumps({**JOB, "columns": columns}))


def test_missing_values_of_a_column_that_no_table_uses_are_dropped() -> None:
    """Control: without the rule they stay."""
    rows = people().assign(sex=["f", "m", None] * 40)
    columns = {**JOB["columns"], "sex": {"levels": ["f", "m"], "missing": "drop"}}
    assert checked(rows, columns=columns) == 80
    assert checked(rows, columns={**columns, "sex": {"levels": ["f", "m"]}}) == 120


@pytest.mark.parametrize(
    ("columns", "options", "begin"),
    [
        (["PWGTP", *(f"PWGTP{k}" for k in range(1, 81))], [], "survey: {weight: PWGTP}"),
        (["finalwt"], [], "survey: {weight: finalwt}"),
        (["weight", "hh_weight"], [], "# TODO fill: survey: {weight: …}"),
        (["V005"], [], "# TODO fill: survey: {weight: …}"),
        (["V005", "stratum"], [], "# TODO fill: weight: … in the next line"),
        (["weight", "stratum"], ["--weight", "none"], "survey: {design_strata: [stratum]"),
        (["x"], ["--weight", "none"], "# survey: {weight: …}  # no weight"),
    ],
)
def test_init_leaves_no_weight_out_without_a_word(
    columns: list[str], options: list[str], begin: str, tmp_path: Path
) -> None:
    people().drop(columns="weight").assign(**dict.fromkeys(columns, 2.5)).to_csv(tmp_path / "people_2024.csv", index=False)
    said = ["init", str(tmp_path / "people_2024.csv"), "-y", "--outcome", "income", "--out", str(tmp_path / "job.yaml")]
    succeed(*said, *options)
    lines = (tmp_path / "job.yaml").read_text().splitlines()
    assert any(line.startswith(begin) for line in lines), lines
