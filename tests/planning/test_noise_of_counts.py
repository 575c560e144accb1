"""A plan states the noise of counts in the weight's own unit, exactly; never beside a direct error that it cannot know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke

from dpdist import plan
from dpdist.job.loading import parse_job
from dpdist.planning.plan import hidden, noise_of_counts

COUNTS = {"north": 2000, "south": 500, "tiny": 4}
JOB = """
dataset: people
period: "2024"
input: {path: current.parquet}
columns:
  region: {levels: [north, south, tiny]}
  income: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: laplace_composed, sensitivity: public}
budget: {epsilon: "1", adjacency: substitution}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
runtime: {executor: serial}
"""
REFERRING = ("{name: laplace_composed, sensitivity: public}", "{name: tables}\nreference: {path: earlier.parquet}")


def people(seed: int, counts: dict[str, int] = COUNTS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    region = np.repeat(list(counts), list(counts.values()))
    income = np.exp(rng.normal(10.3, 0.5, len(region))).round()
    return pd.DataFrame({"region": region, "income": income, "weight": rng.gamma(4.0, 8.0, len(region)) + 1.0})


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed).to_parquet(f"{name}.parquet")


def test_noise_of_counts_is_that_of_their_noisy_sums() -> None:
    """√2·4/ε records of the heaviest weight: a record is in a cell and in the margin. Control: ε halves it."""
    (noise,) = noise_of_counts(plan(parse_job(JOB)))
    one = np.sqrt(2.0) * 4.0 * 60.0
    assert noise.smallest == pytest.approx(one, rel=1e-4)
    assert noise.largest == pytest.approx(one, rel=1e-4)
    (halved,) = noise_of_counts(plan(parse_job(JOB.replace('"1"', '"2"'))))
    assert halved.largest == pytest.approx(noise.largest / 2.0, rel=1e-4)


def test_counts_that_noise_hides_for_certain_are_named() -> None:
    """Four records of weight 60 are below 1.64 deviations of their noise at ε = 1. Control: at ε = 8 they are above."""
    (line,) = map(str, hidden(plan(parse_job(JOB))))
    assert line.startswith(
        "incomes: noise hides 1 of 4 published counts, even if all weights in these cells are at the bound"
    )
    assert "tiny" in line
    assert list(hidden(plan(parse_job(JOB.replace('"1"', '"8"'))))) == []


def test_a_plan_states_no_noise_that_sizes_or_a_reference_decide() -> None:
    """Of secret sizes, and of limits that are learned. Control: under public bounds and sizes it does."""
    assert noise_of_counts(plan(parse_job(JOB)))
    assert noise_of_counts(plan(parse_job(JOB.replace(*REFERRING)))) == []
    assert noise_of_counts(plan(parse_job(JOB.replace(*REFERRING).replace("substitution", "add_remove")))) == []


def test_without_a_public_file_no_figure_stands_for_an_unknown_error() -> None:
    """A plan once said "at least .61 direct standard errors" where 31 were measured."""
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    shown = " ".join(invoke("plan", "job.yaml").output.split())
    assert "not known before the run, because no public file shows how weights and outcomes vary" in shown
    assert "direct standard errors" not in shown
    refused = invoke("plan", "job.yaml", "--for-error", ".5")
    assert refused.exit_code == 2
    assert "errors are not known before the run" in refused.output
    negative = invoke("plan", "job.yaml", "--for-error", "-1")
    assert (negative.exit_code, "a number above 0" in negative.output) == (2, True)
