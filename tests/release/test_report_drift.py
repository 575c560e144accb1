"""A release whose cells have moved away from their reference says so when it is made and when it is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from named_draws import named
from typer.testing import CliRunner

import dpdist
from dpdist.cli.main import app

JOB = """
dataset: people
publish: always
period: "2024"
input: {path: now.parquet}
columns:
  region: {levels: [north, south]}
  income: {bounds: [1, 1000000], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: reference_tables}
budget: {epsilon: "4", adjacency: zero_out}
reference: {path: before.parquet}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
runtime: {executor: serial}
"""


def people(seed: int, spread: float) -> pd.DataFrame:
    """Incomes whose logarithms have this standard deviation."""
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(10.3, spread, 4000)).round(1)
    return pd.DataFrame(
        {"region": rng.choice(["north", "south"], 4000), "income": income, "weight": rng.uniform(5, 60, 4000)}
    )


@pytest.mark.parametrize(("spread", "told"), [(1.5, True), (0.5, False)])
def test_drift_is_told_by_run_and_report(
    spread: float, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incomes that spread three times as wide in logarithms; control: another sample of the same law."""
    monkeypatch.chdir(tmp_path)
    people(1, 0.5).to_parquet("before.parquet")
    people(2, spread).to_parquet("now.parquet")
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    for command in (["run", "job.yaml", "--workspace", "ws"], ["report", "ws"]):
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, found.output
        assert ("moved away from the reference (" in " ".join(found.output.split())) is told


MANY = (
    JOB.replace("region: {levels: [north, south]}", "region: {levels: [" + ", ".join(f"r{k}" for k in range(60)) + "]}")
    .replace("input: {path: now.parquet}\n", "")
    .replace('epsilon: "4", adjacency: zero_out', 'epsilon: "1", adjacency: substitution')
)


def equal_weights(seed: int, times: float = 1.0) -> pd.DataFrame:
    """60 regions, each with one weight for all its records, the same for every seed; `times` it in the last."""
    rng = np.random.default_rng(seed)
    region, income = rng.integers(0, 60, 4000), np.exp(rng.normal(10.3, 0.5, 4000)).round(1)
    weight = (5.0 + region) * np.where(region == 59, times, 1.0)
    return pd.DataFrame({"region": [f"r{k}" for k in region], "income": income, "weight": weight})


def test_where_weights_are_the_same_no_cell_has_drifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their departures are Laplace noise alone. Six releases with recorded noise, of at most one in twenty each.

    At 3.3 standard deviations, as for normal errors, one of these six would name a cell. Control: one cell's weights
    are a third as large.
    """
    monkeypatch.chdir(tmp_path)
    equal_weights(1).to_parquet("before.parquet")
    drifts = []
    for k, times in enumerate([*6 * [1.0], 0.3]):
        with named(f"drift {k}"):
            release = dpdist.run(MANY, tmp_path / str(k), equal_weights(10 + k, times))
        drifts.append({name: cells for name, cells in release.statement.get("drift", {}).items() if name != "in_words"})
    assert drifts[:6] == 6 * [{}]
    assert drifts[6] == {"weight": ["r59"]}
