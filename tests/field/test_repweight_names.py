"""Names of replicate weights as agencies write them: numbers after zeros, the main weight as number 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.cli.design_columns import by_name
from dpdist.core.errors import DataError, JobError
from dpdist.opening.results import open_evaluation
from dpdist.survey.schema import replicates

JOB = """
dataset: cps
period: "2024"
input: {{path: {path}}}
columns:
  region: {{levels: [n, s]}}
  income: {{bounds: [0, 20000], outside: clip}}
  {weight}: {{bounds: [1, 60], outside: clip}}
survey: {{weight: {weight}, replicate_weights: {{kind: fay, prefix: {prefix}, number: 20, fay: 0.5}}}}
outcome: income
mechanism: {{name: tables}}
budget: {{epsilon: "1000", adjacency: substitution}}
public_frame: {{accepted: test file}}
tables:
  - {{name: pay, by: [region], statistics: [count, {{mean: income}}]}}
runtime: {{executor: serial}}
"""
# svrepdesign(type = "Fay", rho = .5, mse = TRUE), R survey 4.1-1
ERRORS = {("count", "n"): 421.7552, ("count", "s"): 437.1767, ("mean", "n"): 75.93694, ("mean", "s"): 120.37197}
DF = 19


def survey(weight: str, name: Callable[[int], str]) -> pd.DataFrame:
    """A file with the columns `name(1)` to `name(20)`."""
    rng = np.random.default_rng(12)
    rows = pd.DataFrame({"region": rng.choice(["n", "s"], 300), "income": rng.gamma(2, 900, 300).round(-1)})
    rows[weight] = rng.uniform(5, 50, 300).round(3)
    again = np.round(rows[weight].to_numpy()[:, None] * rng.choice([0.5, 1.5], (300, 20)), 3)
    return rows.assign(**{name(r): again[:, r - 1] for r in range(1, 21)})


def released(rows: pd.DataFrame, weight: str, prefix: str, folder: Path) -> pd.DataFrame:
    rows.to_csv(folder / "data.csv", index=False)
    job = dpdist.parse_job(JOB.format(path=folder / "data.csv", weight=weight, prefix=prefix))
    dpdist.run(job, folder / "ws", counted=False)
    return open_evaluation(folder / "ws")["pay"].set_index(["statistic", "region"])


NAMES = {
    "the main weight is number 0": ("PWWGT0", "PWWGT", "PWWGT{}"),
    "four digits": ("wtsurvy", "rw", "rw{:04d}"),
    "two digits": ("ORIGWT", "SRWT", "SRWT{:02d}"),
    "lower case": ("pwwgt0", "pwwgt", "pwwgt{}"),
    "the main weight is the prefix": ("PWGTP", "PWGTP", "PWGTP{}"),
    "three digits, and the main weight is number 000": ("wt_000", "wt_", "wt_{:03d}"),
}


@pytest.mark.parametrize(("weight", "prefix", "name"), NAMES.values(), ids=NAMES)
def test_replicates_are_known_however_columns_are_named(weight: str, prefix: str, name: str) -> None:
    """In their order, to a job and to `init`, which leave the main weight out."""
    columns, numbered = survey(weight, name.format).columns, tuple(name.format(r) for r in range(1, 21))
    job = dpdist.parse_job(JOB.format(path="data.csv", weight=weight, prefix=prefix))
    assert replicates(job, reversed(columns)) == numbered
    likely = by_name(columns).replicates
    assert likely is not None
    assert (likely.prefix, likely.columns) == (prefix, numbered)


@pytest.mark.parametrize("of", ["two digits", "the main weight is the prefix"])
def test_errors_are_those_of_r(of: str, tmp_path: Path) -> None:
    weight, prefix, name = NAMES[of]
    found = released(survey(weight, name.format), weight, prefix, tmp_path)
    for cell, error in ERRORS.items():
        assert found.loc[cell, "direct_se"] == pytest.approx(error, rel=1e-6)
    assert (found["direct_df"] == DF).all()


def test_a_column_of_another_part_of_the_job_is_no_replicate(tmp_path: Path) -> None:
    """A table's column has the prefix and a number beyond the replicates'. Control: an unknown column is refused."""
    rows = survey("weight", "w{}".format).assign(w2015=1)
    with pytest.raises(DataError, match="21 columns w<number>, not 20 of them from w1"):
        released(rows, "weight", "w", tmp_path)
    text = JOB.format(path=tmp_path / "data.csv", weight="weight", prefix="w").replace(
        "by: [region]", "by: [region, w2015]"
    )
    text = text.replace("  region:", "  w2015: {levels: [1]}\n  region:")
    dpdist.run(dpdist.parse_job(text), tmp_path / "ws", counted=False)


REFUSED = {
    "capitals": ("PWWGT0", "PWWGT", "pwwgt{}", {}, "did you mean prefix: pwwgt?"),
    "an unused number 0": (
        "w",
        "rw",
        "rw{:02d}",
        {"rw00": 1.0},
        "if rw00 is the full-sample weight",
    ),
    "two spellings": ("w", "rw", "rw{:02d}", {"rw1": 1.0}, "several columns rw<number> with the number 1"),
    "a replicate too many": ("w", "rw", "rw{}", {"rw21": 1.0}, "21 columns rw<number>, not 20 of them from rw1"),
}


@pytest.mark.parametrize(("weight", "prefix", "name", "more", "why"), REFUSED.values(), ids=REFUSED)
def test_columns_that_are_not_the_replicates_are_refused_once(
    tmp_path: Path, weight: str, prefix: str, name: str, more: dict[str, float], why: str
) -> None:
    with pytest.raises(DataError) as refused:
        released(survey(weight, name.format).assign(**more), weight, prefix, tmp_path)
    (problem,) = refused.value.problems
    assert why in problem.text()


def test_texts_in_place_of_replicate_weights_are_one_problem(tmp_path: Path) -> None:
    rows = survey("w", "rw{:02d}".format)
    rows.astype({f"rw{r:02d}": str for r in range(1, 21)}).to_parquet(tmp_path / "data.parquet")
    job = dpdist.parse_job(JOB.format(path=tmp_path / "data.parquet", weight="w", prefix="rw"))
    with pytest.raises(DataError) as refused:
        dpdist.run(job, tmp_path / "ws", counted=False)
    (problem,) = refused.value.problems
    assert problem.where == "rw01, rw02, rw03 and 17 more"
    assert problem.fault.startswith("wrong type")


def test_a_replicate_weight_has_no_other_part() -> None:
    with pytest.raises(JobError, match="'rw01' is used as outcome, weight, category or universe as well"):
        dpdist.parse_job(JOB.format(path="data.csv", weight="rw01", prefix="rw"))
