"""The noisy-measurement file: from it alone others get the published figures, and it says of what law its noise is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from small_release import JOB, survey

import dpdist
from dpdist.job.loading import parse_job

TABLES = JOB.replace("strata: [field]\n", "")
TABLES = TABLES.replace("{name: tables", "{name: laplace_composed, sensitivity: public")
HISTOGRAM = JOB.replace("{name: tables", "{name: perturbed_histogram, bins: 5")
HISTOGRAM = HISTOGRAM.replace("survey: {weight: weight}\n", "").replace("by: [field, sex]", "by: [field]")
HISTOGRAM = HISTOGRAM.replace("  weight: {bounds: [1, 60], outside: clip}\n", "") + "synthetic_sets: 2\n"
REFERENCE = JOB.replace("strata: [field]\n", "")
REFERENCE = REFERENCE + "reference: {path: before.parquet, provenance: public}\n"
REFERENCE = REFERENCE.replace("  weight: {bounds: [1, 60], outside: clip}\n", "")
SANITIZED = REFERENCE.replace(
    "mechanism: {name: tables", "model: {family: lognormal}\nmechanism: {name: sanitized_statistics"
)
SANITIZED = SANITIZED.replace("bounds: [0, 200000]", "bounds: [1000, 200000]")
KINDS = {"tables": TABLES, "histogram": HISTOGRAM, "sanitized": SANITIZED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    people = survey(8000)
    people.head(4000).to_parquet(folder / "survey.parquet")
    people.tail(4000).to_parquet(folder / "before.parquet")
    return folder


@pytest.fixture(scope="module")
def released(folder: Path) -> dict[str, Path]:
    made = {}
    for name, text in KINDS.items():
        job = parse_job(text.replace("path: before", f"path: {folder}/before"), folder=folder)
        made[name] = Path(dpdist.run(job, folder / name, input=folder / "survey.parquet"))
    return made


def read(public: Path) -> pd.DataFrame:
    return pd.read_parquet(public / "measurements.parquet")


def exact(people: pd.DataFrame, row: pd.Series) -> float:
    """A measured sum again from the records of its cell, by its definition."""
    for column in ("field", "sex"):
        if isinstance(level := row.get(f"cell {column}"), str) and level != "Total":
            people = people[people[column] == level]
    y, w = people["salary"].clip(0, 200000), people["weight"]
    a = np.minimum(w, row["weight_cap"]) / row["weight_cap"]
    low, high = row["centre"] - row["half_width"], row["centre"] + row["half_width"]
    values = {
        "a": a,
        "b": a * (y.clip(low, high) - row["centre"]) / row["half_width"],
        "count_in_bin": ((y >= low) & (y < high)).astype(float),
    }
    return float(values[row["statistic"]].sum())


@pytest.mark.parametrize("kind", ["tables", "histogram"])
def test_a_value_is_the_sum_that_is_defined_plus_noise_of_the_stated_scale(
    kind: str, released: dict[str, Path], folder: Path
) -> None:
    measured, people = read(released[kind]), pd.read_parquet(folder / "survey.parquet")
    grouped = measured.groupby("measurement")
    sums = grouped.apply(lambda own: sum(exact(people, row) for _, row in own.iterrows()), include_groups=False)
    noise = (grouped["value"].first() - sums) / grouped["scale"].first()
    assert len(noise) >= 8
    assert np.abs(noise).max() < 12  # of a Laplace law: once in e^12
    assert 0.15 < np.abs(noise).mean() < 3.0  # its mean absolute value is the scale; of 8 values once in 10,000 outside
    assert (measured["value"] / measured["lattice"]).apply(float.is_integer).all()
    wrong = (1.05 * grouped["value"].first() - sums) / grouped["scale"].first()
    assert np.abs(wrong).mean() > 3.0  # the check sees values that are a twentieth too large


SENSITIVITY = {"tables": 8.0, "histogram": 1.0, "sanitized": 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_scale_is_sensitivity_over_epsilon_and_every_statistic_is_defined(kind: str, released: dict[str, Path]) -> None:
    measured = read(released[kind])
    assert set(measured["sensitivity"]) == {SENSITIVITY[kind]}
    epsilon = 3.0 / (2 if kind == "histogram" else 1)
    assert np.allclose(measured["scale"], measured["sensitivity"] / epsilon, rtol=1e-12)
    assert set(measured["law"]) == {"discrete_laplace"}
    said = json.loads(pq.read_schema(released[kind] / "measurements.parquet").metadata[b"dpdist.measurements"])
    assert set(said["statistics"]) == set(measured["statistic"])
    assert set(said["columns"]) == {name for name in measured.columns if not name.startswith("cell ")}


def test_sensitivities_of_the_file_itself_are_in_no_measurement(folder: Path) -> None:
    text = TABLES.replace("laplace_composed, sensitivity: public", "laplace_composed")
    text = text.replace("  weight: {bounds: [1, 60], outside: clip}\n", "")
    job = parse_job(text.replace("[0, 200000], outside: clip", "[0, 2000000]"))
    measured = read(Path(dpdist.run(job, folder / "local", input=folder / "survey.parquet")))
    assert measured[["scale", "lattice", "sensitivity"]].isna().all().all()
    assert set(measured["statistic"]) == {"count", "mean"}


def test_a_posterior_measures_nothing(folder: Path) -> None:
    text = JOB.replace(
        "mechanism: {name: tables", "model: {family: lognormal, predictors: [sex]}\nmechanism: {name: weighted"
    )
    text = text.replace("  weight: {bounds: [1, 60], outside: clip}\n", "").replace("[0, 200000]", "[0, 2000000]")
    job = parse_job(text)
    public = Path(dpdist.run(job, folder / "posterior", input=folder / "survey.parquet"))
    assert not (public / "measurements.parquet").exists()
