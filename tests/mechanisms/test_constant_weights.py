"""Weights that are the same in a stratum: a job says so, a file may not contradict it, and synthetic records keep it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.ledger.book import Ledger

WEIGHTS = {("north", "heavy"): 3.0, ("north", "light"): 800.0, ("south", "heavy"): 12.5, ("south", "light"): 2600.0}
JOB = """
dataset: trucks
period: "2"
input: {{path: {folder}/now.parquet}}
columns:
  state: {{levels: [north, south]}}
  type: {{levels: [heavy, light]}}
  miles: {{bounds: [0, 200000], outside: clip}}
  weight: {{bounds: [1, 40000], outside: clip}}
survey: {{weight: weight, design_strata: [state, type]{more}}}
outcome: miles
mechanism: {{name: tables}}
budget: {{epsilon: "2", adjacency: substitution}}
reference: {{path: {folder}/before.parquet, provenance: an earlier file}}
tables: [{{name: trucks, by: [state, type], statistics: [count, {{mean: miles}}]}}]
runtime: {{executor: serial}}
"""
KEPT = ", weights_constant_in: [state, type]"


def trucks(seed: int, growth: float = 1.0, n: int = 1600) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    state, kind = rng.choice(["north", "south"], n), rng.choice(["heavy", "light"], n)
    miles = np.exp(rng.normal(np.where(kind == "heavy", 10.4, 9.2), 0.7)).round(-2)
    weight = growth * np.array([WEIGHTS[key] for key in zip(state, kind, strict=True)])
    return pd.DataFrame({"state": state, "type": kind, "miles": miles, "weight": weight})


def released(folder: Path, more: str) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Synthetic records, the table and the statement's steps."""
    folder.mkdir(exist_ok=True)
    trucks(1).to_parquet(folder / "before.parquet")
    trucks(2, 1.05).to_parquet(folder / "now.parquet")
    public = dpdist.run(dpdist.parse_job(JOB.format(folder=folder, more=more)), folder / f"ws{len(more)}", counted=False)
    statement = statement_of(public)
    steps = [*statement["post_processing"], *statement["public"]]
    tables = pd.read_parquet(public / "tables" / "trucks.parquet")
    return pd.read_parquet(next((public / "synthetic").glob("*.parquet"))), tables, steps


def test_a_weight_that_is_constant_in_a_stratum_stays_so_where_the_job_says_it(tmp_path: Path) -> None:
    """One weight a stratum, and records agree with the table as before. Control: without the key there are many."""
    records, table, steps = released(tmp_path, KEPT)
    groups = records.groupby(["state", "type"])
    assert groups["weight"].nunique().eq(1).all()
    cells = table[(table[["state", "type"]] != "Total").all(axis=1) & (table["estimator"] == "parameters")]
    published = cells.set_index(["state", "type", "statistic"])["estimate"]
    for key, rows in groups:
        assert rows["weight"].sum() == pytest.approx(published[(*key, "count")], rel=1e-9)
        assert np.average(rows["miles"], weights=rows["weight"]) == pytest.approx(published[(*key, "mean")], rel=1e-9)
    assert any("The job states that all records with the same" in step for step in steps)
    assert any("other files are refused" in step for step in steps), "a refusal is in no ε"
    others, _, said = released(tmp_path, "")
    assert others.groupby(["state", "type"])["weight"].nunique().gt(50).all()
    assert any("weights of its synthetic records vary" in step for step in said)
    assert not any("weights of its synthetic records vary" in step for step in steps)


def test_a_file_that_contradicts_the_job_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """No value is named. Controls: the same file without the key; a file whose weights differ by rounding alone."""
    trucks(1).to_parquet(tmp_path / "before.parquet")
    rows = trucks(2)
    rows.loc[0, "weight"] = 31_234.5
    rows.to_parquet(tmp_path / "now.parquet")
    with pytest.raises(
        DataError, match=r"weights vary within a combination of state, type[^\n]*\n.*\n.*weights_constant_in"
    ) as met:
        dpdist.run(dpdist.parse_job(JOB.format(folder=tmp_path, more=KEPT)), tmp_path / "ws", counted=False)
    assert "31" not in str(met.value).replace(str(tmp_path), "")
    assert not (tmp_path / "ws" / "public").exists()
    dpdist.run(dpdist.parse_job(JOB.format(folder=tmp_path, more="")), tmp_path / "without", counted=False)
    rows = trucks(2)
    rows["weight"] *= 1.0 + 1e-9 * (rows.index % 2)
    rows.to_parquet(tmp_path / "now.parquet")
    dpdist.run(dpdist.parse_job(JOB.format(folder=tmp_path, more=KEPT)), tmp_path / "rounded", counted=False)


def test_every_verb_refuses_such_a_file_in_the_same_words_and_charges_nothing(tmp_path: Path) -> None:
    """The words do not tell which stratum, how many records or what weights disagree. A reference is refused, too.

    Controls: the file that agrees is planned, and then charged.
    """
    ledger = Ledger(f"{tmp_path}/ledger.sqlite")
    ledger.begin()
    job = dpdist.parse_job(JOB.format(folder=tmp_path, more=KEPT) + f"ledger: {{url: {tmp_path}/ledger.sqlite}}\n")
    trucks(1).to_parquet(tmp_path / "before.parquet")
    refused = set[str]()
    for changed in (slice(0, 1), slice(5, 400)):
        rows = trucks(2)
        rows.loc[rows.index[changed], "weight"] = 900.0
        rows.to_parquet(tmp_path / "now.parquet")
        for verb in (dpdist.validate, dpdist.plan, lambda job: dpdist.run(job, tmp_path / "ws")):
            with pytest.raises(DataError, match="weights vary within a combination of state, type") as met:
                verb(job)
            refused.add(str(met.value))
    assert len(refused) == 1
    before = len(list(ledger.entries()))
    trucks(2).to_parquet(tmp_path / "now.parquet")
    trucks(1).assign(weight=range(1, 1601)).to_parquet(tmp_path / "before.parquet")
    with pytest.raises(DataError, match="weights vary within a combination"):
        dpdist.plan(job)
    trucks(1).to_parquet(tmp_path / "before.parquet")
    dpdist.plan(job)
    dpdist.run(job, tmp_path / "ws")
    assert len(list(ledger.entries())) > before


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (KEPT, ", weights_constant_in: [state]", "tables and strata are by state, type"),
        ("survey: {weight: weight, ", "survey: {", "the job has no weight"),
        (
            "{name: tables}",
            "{name: laplace_composed, sensitivity: public}",
            "does not give records the weight of their cell",
        ),
        ("tables:", "rake: [{by: [sex], totals: {m: 1, f: 2}}]\ntables:", "raking to totals by 'sex'"),
    ],
)
def test_a_job_that_cannot_keep_it_is_refused_with_what_is_allowed(before: str, after: str, found: str) -> None:
    text = JOB.format(folder="nowhere", more=KEPT).replace("  miles:", "  sex: {levels: [m, f]}\n  miles:")
    text = text.replace("  sex: {levels: [m, f]}\n", "") if "rake" not in after else text
    text = text.replace(before, after)
    if "laplace" in after:
        text = "".join(line + "\n" for line in text.splitlines() if not line.startswith("reference:"))
    with pytest.raises(JobError, match=found) as met:
        dpdist.parse_job(text)
    assert "leave weights_constant_in out" in str(met.value)
