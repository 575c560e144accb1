"""Protected predictors, from the job to the public folder: noise is drawn once, and nothing else tells of sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from public_files import statement_of

import dpdist
from dpdist.core.errors import JobError, WorkspaceError
from dpdist.job.loading import parse_job
from dpdist.ledger.accounts import charges
from dpdist.ledger.book import Ledger

Noise = Callable[[str], AbstractContextManager[None]]
FIELDS, SEXES, REGIONS = ("arts", "law", "music"), ("f", "m"), ("n", "s")
COLUMNS: dict[str, Any] = {
    "field": {"levels": list(FIELDS)},
    "sex": {"levels": list(SEXES)},
    "region": {"levels": list(REGIONS)},
    "salary": {"bounds": [0, 1000], "outside": "clip"},
    "weight": {"bounds": [1, 5], "outside": "clip"},
}
EVERY = len(FIELDS) * len(SEXES) * len(REGIONS)


def said(folder: Path, **keys: Any) -> dict[str, Any]:
    """A small job; its file has one combination of one record, and some without any."""
    rng = np.random.default_rng(3)
    field, sex, region = rng.choice(FIELDS[:2], 300), rng.choice(SEXES, 300), rng.choice(REGIONS, 300)
    salary, weight = rng.uniform(10, 900, 300), rng.uniform(1, 5, 300)
    rows = pd.DataFrame({"field": field, "sex": sex, "region": region, "salary": salary, "weight": weight})
    rows.loc[0, "field"] = "music"
    rows.to_parquet(folder / "now.parquet")
    rows.assign(field=rng.choice(FIELDS, 300), salary=salary[::-1]).to_parquet(folder / "before.parquet")
    return {
        "dataset": "shielded",
        "period": "2021",
        "input": {"path": str(folder / "now.parquet")},
        "columns": COLUMNS,
        "survey": {"weight": "weight", "design_strata": ["region"]},
        "outcome": "salary",
        "mechanism": {"name": "modips", "law": "normal"},
        "budget": {"epsilon": "1", "adjacency": "add_remove"},
        "predictors": {"protect": {"epsilon": "1/4"}},
        "tables": [{"name": "t", "by": ["field", "sex"], "statistics": ["count", {"mean": "salary"}]}],
        "runtime": {"executor": "serial"},
    } | keys


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_synthetic_records_and_the_frame_are_the_noisy_counts(tmp_path: Path, noise_of: Noise) -> None:
    with noise_of("shielded"):
        dpdist.run(said(tmp_path), tmp_path / "work")
    public = tmp_path / "work" / "public"
    frame = pd.read_parquet(public / "released" / "frame.parquet")
    assert len(frame) == EVERY, "combinations without a record have a count too"
    exact = pd.read_parquet(tmp_path / "now.parquet").groupby(["region", "field", "sex"]).size()
    noisy = frame.set_index(["region", "field", "sex"])["count"]
    assert noisy.reindex(exact.index).tolist() != exact.tolist()
    assert np.abs(noisy.sum() - exact.sum()) < 60, "control: they are these counts, at some noise"
    records = pd.read_parquet(public / "synthetic" / "set-1.parquet").groupby(["field", "sex"], observed=True).size()
    by_cell = noisy.groupby(level=["field", "sex"]).sum()
    assert records.to_dict() == by_cell[by_cell > 0].to_dict()
    statement = statement_of(public)
    assert statement["epsilon"] == "1"
    assert statement["protected_predictors"]["epsilon"] == "0.25"
    shown = {tuple(each["by"]): each["scale"] for each in statement["protected_predictors"]["measured"]}
    assert shown == {(): "40", ("field", "sex"): "80/9", ("field", "sex", "region"): "80/9"}
    assert "ε = 0.25 of the total goes to noisy sample counts" in statement["composition"]


def test_a_replay_has_the_same_bytes_and_lost_noise_is_not_drawn_again(tmp_path: Path) -> None:
    job = said(tmp_path)
    dpdist.run(job, tmp_path / "one")
    dpdist.run(job, tmp_path / "again", replay=tmp_path / "one" / "confidential")
    one, again = files(tmp_path / "one" / "public"), files(tmp_path / "again" / "public")
    assert {name for name in one if one[name] != again[name]} == set()
    dpdist.run(job, tmp_path / "other")
    assert files(tmp_path / "other" / "public")["released/frame.parquet"] != one["released/frame.parquet"], "control"
    confidential = tmp_path / "one" / "confidential"
    (confidential / "noise" / "frame-000000-001.npz").unlink()
    (confidential / "marks" / "noisy-frame.json").unlink()
    with pytest.raises(WorkspaceError, match=r"frame-000000-001\.npz is missing"):
        dpdist.run(job, tmp_path / "one")


def test_a_ledger_is_charged_for_the_counts_and_the_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger(url).begin()
    dpdist.run(said(tmp_path, ledger={"url": url, "total": "2"}), tmp_path / "work")
    assert [str(charge.budget) for charge in charges(Ledger(url).entries(), "shielded")] == ["1"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing to protect": ({"budget": {"epsilon": "1"}}, "predictors", "have the same sample counts"),
    "the same x": (
        {"budget": {"epsilon": "1", "adjacency": "substitution"}},
        "predictors",
        "have the same sample counts",
    ),
    "counts that would be exact": (
        {"predictors": {"protect": {"columns": ["field"], "epsilon": "1/4"}}},
        "predictors.protect.columns",
        "those by region, sex would be exact",
    ),
    "no such column": (
        {"predictors": {"protect": {"columns": ["field", "sex", "region", "salary"], "epsilon": "1/4"}}},
        "predictors.protect.columns.3",
        "'salary' is not a column with sample counts",
    ),
    "the whole budget": (
        {"predictors": {"protect": {"epsilon": "1"}}},
        "predictors.protect.epsilon",
        "leave nothing of the release's budget",
    ),
    "raking": ({"rake": [{"by": ["sex"], "totals": {"f": 500, "m": 500}}]}, "rake", "may be 0 under noise"),
    "a domain of public sizes": (
        {"mechanism": {"name": "modips", "law": "normal", "truncation": "bounded"}},
        "predictors",
        "'modips': the truncated noise (bounded) needs the domain of each sum",
    ),
    "partitions": (
        {
            "mechanism": {"name": "flat_laplace"},
            "columns": {**COLUMNS, "salary": {"bounds": [0, 9], "outside": "clip", "whole": True}},
        },
        "predictors",
        "'flat_laplace': nothing is proven",
    ),
    "local sensitivities": ({"mechanism": {"name": "laplace"}}, "predictors", "'laplace': local sensitivities"),
    "a likelihood": (
        {"mechanism": {"name": "weighted"}, "model": {"family": "lognormal"}},
        "predictors",
        "'weighted': nothing is proven about fits",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_name(case: str, tmp_path: Path) -> None:
    changed, where, found = REFUSED[case]
    with pytest.raises(JobError) as refused:
        parse_job(yaml.safe_dump(said(tmp_path, **changed)))
    problems = {problem.where: problem for problem in refused.value.problems}
    assert found in problems[where].fault
    if case in ("a domain of public sizes", "local sensitivities", "partitions", "a likelihood"):
        assert "perturbed_histogram" in problems[where].remedy
    parse_job(yaml.safe_dump(said(tmp_path)))


def test_small_counts_are_not_refused_where_they_are_noisy(tmp_path: Path) -> None:
    dpdist.run(said(tmp_path), tmp_path / "work")
    exact = said(tmp_path)
    exact["budget"] = {"epsilon": "1"}
    del exact["predictors"]
    with pytest.raises(JobError, match="published sample counts is below 3"):
        dpdist.run(exact, tmp_path / "control")
    shown = str(dpdist.plan(exact))
    assert "300" in shown
    assert "300" not in str(dpdist.plan(said(tmp_path)))


def test_strata_without_a_record_are_released_too(tmp_path: Path, noise_of: Noise) -> None:
    job = said(tmp_path, strata=["field", "region"])
    rows = pd.read_parquet(tmp_path / "now.parquet")
    assert (
        len(rows[(rows["field"] == "music") & (rows["region"] == "n")])
        * len(rows[(rows["field"] == "music") & (rows["region"] == "s")])
        == 0
    )
    with noise_of("empty strata"):
        dpdist.run(job, tmp_path / "work")
    released = json.loads((tmp_path / "work" / "public" / "released" / "set-1.json").read_text())
    assert len(released["strata"]) == len(FIELDS) * len(REGIONS)


def test_counts_by_columns_that_are_not_protected_are_refused_where_they_are_small(tmp_path: Path) -> None:
    """Control: all columns protected."""
    changed = {"budget": {"epsilon": "1", "adjacency": "substitution", "exchange": "anywhere"}, "frame_minimum": 10_000}
    dpdist.run(said(tmp_path, **changed), tmp_path / "all")
    some = changed | {"predictors": {"protect": {"columns": ["field", "sex"], "epsilon": "1/4"}}}
    with pytest.raises(JobError, match="published sample counts are below 10000"):
        dpdist.run(said(tmp_path, **some), tmp_path / "some")
