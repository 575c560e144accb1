"""Weights beyond their public bounds: clipped to both of them when a file is read, with the file's own ones kept beside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import DataError
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.privacy.adjacency import domain
from dpdist.storage.tables import each_block
from dpdist.storage.workspace import Workspace
from dpdist.survey.census import place, records_as_they_came, take_census
from dpdist.survey.source import open_source

FEW_RECORDS = True
JOB = """
dataset: weights
period: "1"
columns:
  field: {levels: [arts, law]}
  y: {bounds: [0, 1], outside: clip}
  weight: {bounds: [2, 200], outside: clip}
survey: {weight: weight}
outcome: y
mechanism: {name: tables}
budget: {epsilon: "1"}
tables: [{name: t, by: [field], statistics: [count, {mean: y}]}]
"""
WEIGHTS = np.array([1e-200, 0.001, 2.0, 50.0, 200.0, 37_000.0, 1e200, 50.0])
CLIPPED = np.array([2.0, 2.0, 2.0, 50.0, 200.0, 200.0, 200.0, 50.0])
CLIP, REFUSE = "[2, 200], outside: clip", "[2, 200]"


def rows(weights: np.ndarray = WEIGHTS) -> pd.DataFrame:
    return pd.DataFrame({"field": ["arts", "law"] * 4, "y": np.linspace(-1.0, 2.0, 8), "weight": weights})


def read(job: Job, folder: Path, weights_clipped: bool = True) -> np.ndarray:
    """Weights as a run stores them, in the file's order."""
    rows().to_parquet(folder / "file.parquet")
    source = open_source(job, folder / "file.parquet")
    stored = place(job, source, take_census(job, source), folder, weights_clipped=weights_clipped)
    return np.array(stored.weight[np.argsort(stored.record)])


def test_weights_are_clipped_to_both_bounds(tmp_path: Path) -> None:
    """Control: a reference keeps its own."""
    assert read(parse_job(JOB), tmp_path).tolist() == CLIPPED.tolist()
    assert read(parse_job(JOB), tmp_path, weights_clipped=False).tolist() == WEIGHTS.tolist()


def test_direct_estimates_have_the_weights_and_the_outcome_of_the_file(tmp_path: Path) -> None:
    job = parse_job(JOB)
    rows().to_parquet(tmp_path / "file.parquet")
    source = open_source(job, tmp_path / "file.parquet")
    census = take_census(job, source)
    (as_it_came,), (coded,) = (list(records_as_they_came(job, source, census, which)) for which in (0, None))
    assert as_it_came.weight.tolist() == coded.weight.tolist() == WEIGHTS.tolist()
    assert as_it_came.outcome.tolist() == rows()["y"].tolist()
    assert coded.outcomes[:, 0].tolist() == np.clip(rows()["y"], 0.0, 1.0).tolist()


@pytest.mark.parametrize("mechanism", ["tables", "modips, law: normal"])
def test_a_run_stores_clipped_weights_and_compares_with_the_files_own(mechanism: str, tmp_path: Path) -> None:
    job = parse_job(JOB.replace("{name: tables", f"{{name: {mechanism}"))
    few = rows(np.where(WEIGHTS > 1e6, 1000.0, WEIGHTS))
    dpdist.run(job, tmp_path / "ws", few)
    stored = np.concatenate([block.weight for block in each_block(Workspace.of_place(tmp_path / "ws").records)])
    assert (stored.min(), stored.max()) == (2.0, 200.0)
    compared = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "t.parquet")
    of_counts = compared[compared["statistic"] == "count"].set_index("field")
    assert of_counts.loc["arts", "direct"] == pytest.approx(few["weight"][::2].sum())
    assert of_counts.loc["arts", "direct_clipped"] == pytest.approx(np.clip(few["weight"][::2], 2.0, 200.0).sum())


def refused(job: Job, weight: float) -> bool:
    try:
        dpdist.validate(job, rows(np.append(np.full(7, 50.0), weight)))
    except DataError:
        return True
    return False


DOMAINS = {
    "clipped": (CLIP, CLIP, "with values outside the bounds clipped", ()),
    "refused": (CLIP, REFUSE, "within [2, 200]", (1e-20, 1.0, 300.0, 1e20)),
    "without bounds": (f"  weight: {{bounds: {CLIP}}}\n", "", "from 1e-15 to 1e15", (1e-20, 1e20)),
}


@pytest.mark.parametrize("what", DOMAINS)
def test_what_the_domain_says_of_weights_is_what_is_refused(what: str) -> None:
    old, new, words, beyond = DOMAINS[what]
    text = JOB.replace(old, new)
    if new != old:  # strict mechanisms clip weights
        text = text.replace("{name: tables", "{name: laplace")
    job = parse_job(text)
    (line,) = [line for line in domain(job) if line.startswith("weight: ")]
    assert line == f"weight: not missing, finite, above 0, {words}"
    tried = (1e-20, 1.0, 50.0, 300.0, 1e20)
    assert tuple(weight for weight in tried if refused(job, weight)) == beyond
    assert all(refused(job, weight) for weight in (0.0, -1.0, np.inf, np.nan))
