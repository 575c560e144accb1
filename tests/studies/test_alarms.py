"""How often alarms stand on releases without drift, and on releases whose current file has drifted in a stated way.

`pytest -m slow -s tests/studies/test_alarms.py` prints shares of docs/explanation/accuracy.md again. Both files have
twelve regions of 200 to 2,000 records, drawn anew for every release. Drifts are in region g, of 760 records.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

import dpdist
from dpdist.core.keys import Key
from dpdist.job.loading import parse_job
from dpdist.opening.results import open_evaluation
from dpdist.publish.predicted_errors import FAR_NAMED
from dpdist.quality.errors import number_of_statistics
from dpdist.quality.predicted.prediction import predicted
from dpdist.quality.predicted.words import alarms
from dpdist.quality.summary import verdicts
from dpdist.quality.verdict import FALSE_ALARM

pytestmark = pytest.mark.slow
RELEASES = 12
SIZES = np.geomspace(200, 2000, 12).astype(int)
REGIONS, DRIFTED = list("abcdefghijkl"), "g"
JOB = """
dataset: people
period: "2024"
input: {{path: {folder}/now.parquet}}
columns:
  region: {{levels: [a, b, c, d, e, f, g, h, i, j, k, l]}}
  income: {{bounds: [0, 400000], outside: clip}}
  weight: {{bounds: [0.5, 600], outside: clip}}
survey: {{weight: weight}}
outcome: income
mechanism: {{name: tables}}
reference: {{path: {folder}/before.parquet, provenance: simulated, period: "2022"}}
budget: {{epsilon: "{epsilon}", adjacency: substitution}}
tables: [{{name: incomes, by: [region], statistics: [count, {{mean: income}}]}}]
runtime: {{executor: serial}}
"""
WEIGHTS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "weights vary": lambda rng, region: np.exp(rng.normal(3.3 + 0.03 * region, 0.6)),
    "one weight a region": lambda rng, region: 20.0 + 3.0 * region,
    "one weight": lambda rng, region: np.full(len(region), 25.0),
}


def people(weights: str, rng: np.random.Generator) -> pd.DataFrame:
    region = np.repeat(np.arange(12), SIZES)
    income = np.exp(rng.normal(10.3 + 0.03 * region, 0.6))
    return pd.DataFrame({"region": np.array(REGIONS)[region], "income": income, "weight": WEIGHTS[weights](rng, region)})


def heavier(rows: pd.DataFrame, there: np.ndarray) -> pd.DataFrame:
    return rows.assign(weight=rows["weight"] * np.where(there, 1.3, 1.0))


def richer(rows: pd.DataFrame, there: np.ndarray) -> pd.DataFrame:
    return rows.assign(income=rows["income"] * np.where(there, 1.5, 1.0))


def new_kind(rows: pd.DataFrame, there: np.ndarray) -> pd.DataFrame:
    """A tenth of the region's records have four times the weight and a fifth of the income."""
    new = there & (np.arange(len(rows)) % 10 == 0)
    return rows.assign(weight=rows["weight"] * np.where(new, 4.0, 1.0), income=rows["income"] * np.where(new, 0.2, 1.0))


DRIFTS: dict[str, Callable[[pd.DataFrame, np.ndarray], pd.DataFrame]] = {
    "none": lambda rows, there: rows,
    "weights × 1.3": heavier,
    "outcome × 1.5": richer,
    "a new kind": new_kind,
}


def alarms_of(weights: str, drift: str, epsilon: str, draw: int, folder: Path) -> dict[str, object]:
    """Whether each alarm stands on one release."""
    key = Key(bytes(32)).child(f"{weights} {drift} {draw}")
    moved, rng = DRIFTS[drift], key.generator("files")
    people(weights, rng).to_parquet(folder / "before.parquet")
    now = people(weights, rng)
    moved(now, (now["region"] == DRIFTED).to_numpy()).to_parquet(folder / "now.parquet")
    job = parse_job(JOB.format(folder=folder, epsilon=epsilon))
    release = dpdist.run(job, folder / f"ws-{draw}", study=key)
    statement, rows = release.statement, open_evaluation(folder / f"ws-{draw}")["incomes"]
    off = rows[rows["synthetic_error_in_se"].abs() > FAR_NAMED]
    by_name = verdicts({"incomes": rows}, False, number_of_statistics(rows))
    judged = [verdict for verdict in by_name.values() if verdict is not None]
    return {
        "drift": any(
            "the reference's prediction; in single levels and cells" in text for text in statement.get("cautions", [])
        ),
        "beyond_direct": "beyond_direct" in statement,
        "verdict fails": any(verdict.fails for verdict in judged),
        "a figure over 4": len(off) > 0,
        "plan": bool(list(alarms(predicted(dpdist.plan(job))))) if drift == "none" and draw < RELEASES // 4 else np.nan,
    }


@pytest.mark.parametrize("epsilon", ["1"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_alarms_have_their_stated_rates_and_see_stated_drifts(
    weights: str, epsilon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without drift an alarm stands more often than stated with a probability of at most .001. Controls: the drifts."""
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path / "cache"))
    rates = {}
    for drift in DRIFTS:
        folder = tmp_path / drift.replace(" ", "_")
        folder.mkdir()
        rates[drift] = pd.DataFrame([alarms_of(weights, drift, epsilon, draw, folder) for draw in range(RELEASES)]).mean()
    table = pd.DataFrame(rates).T
    print(f"\n{weights}, ε = {epsilon}\n{table.round(2).to_string()}", flush=True)
    allowed = scipy.stats.binom.isf(0.001, RELEASES, [0.05, FALSE_ALARM]) / RELEASES
    assert (table.loc["none", ["drift", "verdict fails"]].to_numpy(dtype=float) <= allowed).all()
    assert table.loc["none", "beyond_direct"] == 0.0
    assert table.loc["none", "plan"] == 0.0
    assert table.loc["outcome × 1.5", "drift"] > 0.9
    assert table.loc["weights × 1.3", "drift"] > 0.6
