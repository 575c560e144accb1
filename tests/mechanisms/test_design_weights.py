"""Public weights of design strata: a job declares them, a file may not contradict them, and nothing is spent on weights."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from named_draws import named
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.job import Job
from dpdist.ledger.book import Ledger
from dpdist.quality.predicted.prediction import predicted

WEIGHTS = {f"k{k}": weight for k, weight in enumerate(np.geomspace(3.0, 37_000.0, 8).round(1).tolist())}
REGIONS = ["r0", "r1", "r2", "r3"]
JOB = """
dataset: classes
period: "1"
input: {{path: {folder}/now.parquet}}
columns:
  kind: {{levels: [k0, k1, k2, k3, k4, k5, k6, k7]}}
  region: {{levels: [r0, r1, r2, r3]}}
  income: {{bounds: [0, 400000], outside: clip}}
  weight: {{bounds: [1, 40000], outside: clip}}
survey: {{weight: weight, design_strata: [kind]{more}}}
outcome: income
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
{reference}tables: [{{name: incomes, by: {by}, statistics: [count, {{mean: income}}]}}]
runtime: {{executor: serial}}
"""
LISTED = ", ".join(f"{level}: {weight}" for level, weight in WEIGHTS.items())
DECLARED = f", design_weights: {{by: [kind], weights: {{{LISTED}}}}}"
REFERENCE = "reference: {{path: {folder}/before.parquet, provenance: an earlier file}}\n"


def classes(seed: int, growth: float = 1.0, n: int = 4000) -> pd.DataFrame:
    """Eight kinds with weights from 3 to 37,000, the rarer the heavier, in four regions."""
    rng, size = np.random.default_rng(seed), np.geomspace(1.0, 0.15, len(WEIGHTS))
    number = rng.choice(len(WEIGHTS), n, p=size / size.sum())
    kind = np.array(list(WEIGHTS))[number]
    income = np.clip(np.exp(rng.normal(10.2 + 0.05 * number, 0.6)), 0.0, 400_000.0)
    weight = growth * np.array([WEIGHTS[name] for name in kind])
    return pd.DataFrame({"kind": kind, "region": rng.choice(REGIONS, n), "income": income, "weight": weight})


def text(folder: Path, more: str = DECLARED, reference: str = "", by: str = "[kind, region]") -> str:
    return JOB.format(folder=folder, more=more, reference=reference.format(folder=folder), by=by)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two periods, in which weights differ by a tenth."""
    folder = tmp_path_factory.mktemp("classes")
    classes(1, 1.1).to_parquet(folder / "before.parquet")
    classes(2).to_parquet(folder / "now.parquet")
    return folder


def errors(job: Job, workspace: Path) -> pd.DataFrame:
    """Relative errors of counts and means of the table's cells, (cell, statistic), under noise of a fixed key."""
    with named("public weights"):
        public = dpdist.run(job, workspace, counted=False)
    columns, rows = list(job.tables[0].by), pd.read_parquet(str(job.input.path))
    table = pd.read_parquet(public / "tables" / "incomes.parquet")
    cells = table[(table[columns] != "Total").all(axis=1) & (table["estimator"] == "parameters")]
    groups = rows.assign(total=rows["weight"] * rows["income"]).groupby(columns)[["weight", "total"]].sum()
    truth = pd.DataFrame({"count": groups["weight"], "mean": groups["total"] / groups["weight"]})
    return (cells.pivot(index=columns, columns="statistic", values="estimate") / truth - 1.0).abs()


def test_public_weights_leave_counts_without_noise(folder: Path, tmp_path: Path) -> None:
    """Counts are exact. Control: without the declaration no count is exact.

    The statement says which weights are public, and does not call them protected.
    """
    public = errors(dpdist.parse_job(text(folder, reference=REFERENCE)), tmp_path / "public")
    measured = errors(dpdist.parse_job(text(folder, more="", reference=REFERENCE)), tmp_path / "measured")
    assert public["count"].max() < 1e-9
    assert measured["count"].median() > 1e-4
    assert public["mean"].max() < 0.5
    declared, before = statement_of(tmp_path / "public"), statement_of(tmp_path / "measured")
    assert (declared["protected"], before["protected"]) == (["income"], ["income", "weight"])
    assert "weight" in declared["not_protected"]
    assert any("the weights by kind, which the job lists" in fact for fact in declared["public"])
    assert any("The job declares that weights by kind are public" in text for text in declared["assumptions"])
    assert not any("treated as part of its own record" in text for text in declared["assumptions"])
    assert declared["epsilon"] == before["epsilon"] == "1"
    records = pd.read_parquet(next((tmp_path / "public" / "public" / "synthetic").glob("*.parquet")))
    assert np.allclose(records["weight"], records["kind"].astype(str).map(WEIGHTS), rtol=1e-12)


def test_without_a_reference_public_weights_leave_means_a_smaller_error(folder: Path, tmp_path: Path) -> None:
    """Control: without the declaration no count is exact, and means err by more."""
    public = errors(dpdist.parse_job(text(folder)), tmp_path / "public")
    measured = errors(dpdist.parse_job(text(folder, more="")), tmp_path / "measured")
    assert public["count"].max() < 1e-9
    assert measured["count"].median() > 0.01
    assert public["mean"].median() < 0.75 * measured["mean"].median()


def test_a_cell_that_mixes_strata_has_a_count_without_noise_too(folder: Path, tmp_path: Path) -> None:
    """Columns of public weights become columns of base cells. The weights are a file's, and those of a reference differ."""
    written = "kind,weight\n" + "".join(f"{kind},{weight}\n" for kind, weight in WEIGHTS.items())
    (tmp_path / "weights.csv").write_text(written, encoding="utf-8")
    job = text(folder, ", design_weights: {by: [kind], path: weights.csv}", REFERENCE, "[region]")
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    loaded = dpdist.load_job(tmp_path / "job.yaml")
    assert loaded.survey.design_weights is not None
    assert loaded.survey.design_weights.weights == WEIGHTS
    public = errors(loaded, tmp_path / "public")
    assert public["count"].max() < 1e-9
    assert public["mean"].max() < 0.5
    prediction = predicted(dpdist.plan(loaded), times=(Fraction(1),))
    of_count, of_mean = prediction.statistics()
    assert of_count.median < 1e-6 < of_mean.median, "plan predicts it, though weights of the reference are others"


def test_a_file_with_other_weights_is_refused_by_every_verb_and_nothing_is_charged(folder: Path, tmp_path: Path) -> None:
    """The words do not depend on how many records disagree, or by how much. Control: rounded weights are accepted."""
    ledger = Ledger(f"{tmp_path}/ledger.sqlite")
    ledger.begin()
    job = dpdist.parse_job(text(tmp_path) + f"ledger: {{url: {tmp_path}/ledger.sqlite}}\n")
    refused = set[str]()
    for rows, other in ((1, 31_234.5), (300, 7.0)):
        changed = classes(2)
        changed.loc[: rows - 1, "weight"] = other
        changed.to_parquet(tmp_path / "now.parquet")
        for verb in (dpdist.validate, dpdist.plan, lambda job: dpdist.run(job, tmp_path / "ws")):
            with pytest.raises(DataError, match=r"differ from those that survey\.design_weights declares") as met:
                verb(job)
            refused.add(str(met.value))
    assert len(refused) == 1
    assert len(list(ledger.entries())) == 1, "the beginning alone"
    classes(2, 1.0 + 1e-8).to_parquet(tmp_path / "now.parquet")
    dpdist.plan(job)


@pytest.mark.parametrize(
    ("before", "after", "where", "found"),
    [
        ("k3: ", "k9: ", "survey.design_weights.weights.k9", "'k9' is not a combination of levels of kind"),
        (", k7: 37000.0", "", "survey.design_weights.weights", "1 of 8 combinations have no weight, the first 'k7'"),
        ("k0: 3.0", "k0: 0", "survey.design_weights.weights.k0", "a number above 0"),
        ("k0: 3.0", "k0: .inf", "survey.design_weights.weights.k0", "finite"),
        ("k0: 3.0", "k0: .5", "survey.design_weights.weights.k0", "lies outside of columns.weight.bounds"),
        ("by: [kind]", "by: [income]", "survey.design_weights.by", "'income' has no declared levels"),
        ("weight: weight, ", "", "survey.design_weights", "the job has no weight"),
        ("{name: tables}", "{name: laplace_composed, sensitivity: public}", "survey.design_weights", "does not use public"),
        (
            "[kind], weights",
            "[kind], path: none.csv, weights",
            "survey.design_weights.path",
            "both path and weights are given",
        ),
        (f"weights: {{{LISTED}}}", "path: none.csv", "survey.design_weights.path", "cannot be read"),
        ("tables:", "rake: [{by: [], totals: {Total: 9e6}}]\ntables:", "rake", "raking would change weights"),
        ("[kind], design", "[kind], weights_constant_in: [kind], design", "survey.weights_constant_in", "already state"),
    ],
)
def test_a_job_whose_weights_cannot_be_used_is_refused(before: str, after: str, where: str, found: str) -> None:
    job = text(Path("nowhere"))
    assert before in job
    with pytest.raises(JobError, match=found) as met:
        dpdist.parse_job(job.replace(before, after))
    assert where in str(met.value)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("kind,weights\nk0,3\n", "no column 'weight'"),
        ("kind,weight\nk0,3\nk0,3\n", "line 3 has 'k0' a second time"),
        ("kind,weight\nk0,three\n", "allowed: a number"),
        ("kind,weight\nk0\n", "allowed: a number"),
    ],
)
def test_a_file_of_weights_that_cannot_be_read_is_refused(rows: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "weights.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(JobError, match=found):
        dpdist.parse_job(text(tmp_path, ", design_weights: {by: [kind], path: weights.csv}"), folder=tmp_path)
