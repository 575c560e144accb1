"""A table that is asked for later costs nothing where it follows from what was released, and is refused otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_jobs import parsed, rooted, said
from small_runs import run

import dpdist
from dpdist.core.errors import JobError
from dpdist.job import Job
from dpdist.opening.verifying import problems

CASES: dict[str, dict[str, Any]] = {
    "strict sums": said("tables", "zero_out", "cell_sums"),
    "reference": said("tables", "zero_out", "reference_cells"),
    "posterior": said("weighted", "zero_out", "lognormal"),
    "statistics": said("sanitized_statistics", "zero_out", "lognormal"),
}
for case in CASES.values():
    case["tables"][0]["margins"] = True


def more(job: dict[str, Any], *tables: dict[str, Any]) -> dict[str, Any]:
    return job | {"tables": [*job["tables"], *tables]}


def of(job: dict[str, Any], inputs: Path) -> Job:
    return parsed(rooted(job, inputs))


@pytest.mark.parametrize("name", CASES)
def test_a_table_that_follows_from_the_release_costs_nothing(name: str, inputs: Path, tmp_path: Path) -> None:
    """Oracle: the same cells of the released table, and its margin over every other column."""
    job = CASES[name]
    run(f"derived-{name}", job, inputs, tmp_path / "ws")
    statistics = job["tables"][0]["statistics"]
    by = job["tables"][0]["by"][:1]
    again = {"name": "again", "by": job["tables"][0]["by"], "margins": True, "statistics": statistics}
    coarse = {"name": "coarse", "by": by, "margins": False, "statistics": statistics}
    before = json.loads((tmp_path / "ws" / "public" / "manifest.json").read_text())["files"]
    made = dpdist.publish(tmp_path / "ws", job=of(more(job, again, coarse), inputs))
    assert problems(tmp_path / "ws" / "public") == []
    after = json.loads((tmp_path / "ws" / "public" / "manifest.json").read_text())["files"]
    kept = {n for n in before if n.startswith(("synthetic/", "tables/t.")) or n in SPENT}
    assert {n: after[n] for n in kept} == {n: before[n] for n in kept}, "nothing is drawn or released anew"
    tables = {n: made.tables[n] for n in ("t", "again", "coarse")}
    pd.testing.assert_frame_equal(tables["again"], tables["t"])
    others = [column for column in job["tables"][0]["by"] if column not in by]
    margin = tables["t"][(tables["t"][others] == "Total").all(axis=1) & (tables["t"][by[0]] != "Total")]
    figures = ["estimate", "standard_error", "lower", "upper"]
    np.testing.assert_allclose(tables["coarse"][figures], margin[figures], rtol=1e-9)


SPENT = ("released/set-1.json", "released/promise.json", "released/seed", "released/frame.parquet")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"budget": {"epsilon": "13"}}, "budget"),
        ({"tables": [{"name": "t", "by": ["sex"], "statistics": ["count"]}]}, "tables"),
        ({"hierarchies": {"places": ["field", "sex"]}}, "hierarchies"),
    ],
)
def test_what_does_not_follow_says_what_it_would_spend(
    change: dict[str, Any], where: str, inputs: Path, tmp_path: Path
) -> None:
    job = CASES["strict sums"]
    run("refused", job, inputs, tmp_path / "ws")
    with pytest.raises(JobError) as refused:
        dpdist.publish(tmp_path / "ws", job=of(job | change, inputs))
    (problem,) = refused.value.problems
    assert problem.where == where
    epsilon = change.get("budget", job["budget"])["epsilon"]
    assert f"which spends ε = {epsilon} under zero_out in addition to this release" in problem.remedy
    assert (tmp_path / "ws" / "public" / "tables" / "t.csv").exists(), "what was released stays"


def test_figures_that_were_noised_one_by_one_tell_of_no_other_table(inputs: Path, tmp_path: Path) -> None:
    job = said("laplace", "zero_out", "noisy_tables")
    run("one by one", job, inputs, tmp_path / "ws")
    coarse = {"name": "coarse", "by": ["sex"], "margins": False, "statistics": ["count"]}
    with pytest.raises(JobError, match="has its own noise"):
        dpdist.publish(tmp_path / "ws", job=of(more(job, coarse), inputs))
    assert dpdist.publish(tmp_path / "ws", job=of(job | {"presentation": {"title": "Pay"}}, inputs)), "control"
