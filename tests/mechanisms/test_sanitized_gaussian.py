"""Sanitised statistics under Gaussian noise: releases end to end, what they state, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from public_files import statement_of
from rich.console import Console
from test_sanitized_statistics import job as laplace_job, survey

import dpdist
from dpdist.cli.plan_text import plan_text
from dpdist.core.errors import JobError
from dpdist.core.progress import Event
from dpdist.core.records import TOTAL, Floats
from dpdist.job import Job, epsilon_of, rho_of
from dpdist.mechanisms.sanitized_lognormal.sensitivity import EXCHANGE, MOVED_2
from dpdist.privacy.guarantees import NoisyQuery, neighbour_of
from dpdist.quality.predicted.prediction import ErrorPrediction

GAUSSIAN = ("{name: sanitized_statistics}", "{name: sanitized_statistics, noise: gaussian}")
BY_EPSILON = 'epsilon: "10", delta: "1e-6"'


def job(folder: Path, budget: str = BY_EPSILON, *edits: tuple[str, str]) -> Job:
    """The job of Laplace noise, with a budget under Gaussian noise."""
    return laplace_job(folder, GAUSSIAN, ('epsilon: "1", adjacency: zero_out', budget), *edits)


@pytest.fixture(scope="module")
def files(two_periods: Callable[..., Path]) -> Path:
    return two_periods(survey, 0.1)


@pytest.fixture(scope="module")
def workspace(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gaussian") / "ws"
    dpdist.run(job(files), folder)
    return folder


def test_a_release_states_rho_epsilon_and_delta_and_that_epsilon_is_not_pure(workspace: Path) -> None:
    said, rho = statement_of(workspace), rho_of(Fraction(10), Fraction("1e-6"))
    told = ("guarantee", "adjacency", "epsilon", "epsilon_per_set", "delta")
    assert [said[name] for name in told] == ["strict zCDP", "zero_out", "10", "10", "0.000001"]
    assert Fraction(str(said["rho"])) == rho
    assert Fraction(str(said["substitution_rho"])) == rho * EXCHANGE
    assert Fraction(str(said["substitution_epsilon"])) == epsilon_of(rho * EXCHANGE, Fraction("1e-6"))
    assert "no finite ε at δ = 0" in str(said["guarantee_in_words"])
    assert "1/n" not in str(said["guarantee_in_words"])
    assert said["mechanism"]["noise"] == "gaussian"  # type: ignore[index]
    assumed = " ".join(said["assumptions"])  # type: ignore[arg-type]
    assert "discrete Gaussian noise" in assumed
    assert "Laplace" not in assumed
    released = json.loads((workspace / "public" / "released" / "set-1.json").read_text())["strata"]["all"]
    scale = NoisyQuery.losing_rho("it", MOVED_2, rho, "off").scale
    assert released["noise_law"].startswith(f"discrete Gaussian, σ = {scale}")
    text = dpdist.report(workspace)
    assert "strict zCDP, ρ = " in text
    assert "ε = 10 at δ = 0.000001" in " ".join(text.split())


def test_a_release_lies_near_the_direct_estimate(workspace: Path) -> None:
    """ε = 10: within 2 direct standard errors everywhere, and nearer than the reference in the median. False alarm below
    1e-9: over 60 runs the largest error was .74 with an sd of .04, the medians' ratio at most .27 with .02."""
    found = pd.read_parquet(workspace / "confidential" / "evaluation" / "salaries.parquet")
    assert (found["synthetic_error_in_se"] < 2).all()
    for _, rows in found.groupby("statistic"):
        assert rows["synthetic_error_in_se"].median() < rows["reference_only_error_in_se"].median()
    table = pd.read_parquet(workspace / "public" / "tables" / "salaries.parquet")
    assert (table["standard_error"] > 0).all()


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_noise_is_drawn_once_for_all_sets_at_the_scale_that_rho_needs(
    files: Path, tmp_path: Path, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpdist.privacy.noise import whole_gaussian

    found: list[tuple[Fraction, int]] = []

    def recording(scale: Fraction, size: int, draw: Callable[[Fraction, int], Floats] = whole_gaussian) -> Floats:
        found.append((scale, size))
        return draw(scale, size)

    monkeypatch.setattr("dpdist.privacy.noise.whole_gaussian", recording)
    said = job(files, f'rho: "0.5", delta: "1e-7", adjacency: {adjacency}')
    dpdist.run(said, tmp_path / "ws")
    assert found == [(NoisyQuery.losing_rho("it", MOVED_2, Fraction(1, 2), neighbour_of(said)).scale, 15)]
    assert statement_of(tmp_path / "ws")["rho"] == "0.5"
    assert Fraction(str(statement_of(tmp_path / "ws")["epsilon"])) == epsilon_of(Fraction(1, 2), Fraction("1e-7"))
    assert len(list((tmp_path / "ws" / "confidential" / "noise").rglob("*.npz"))) == 1


def test_standard_errors_follow_the_noise(files: Path, workspace: Path, tmp_path: Path) -> None:
    """ρ a thousandth, cells that stand alone: every figure's error is larger, that of a finest cell's mean by far. False
    alarm below 1e-6: over 60 runs the least ratio was 1.16 with an sd of .022, of finest cells' means 1.65 with .087."""
    rho = rho_of(Fraction(10), Fraction("1e-6")) / 1000
    alone = ("noise: gaussian", "noise: gaussian, shrinkage: false")
    dpdist.run(job(files, f'rho: "{rho}", delta: "1e-6"', alone), tmp_path / "ws")
    tables = [pd.read_parquet(space / "public" / "tables" / "salaries.parquet") for space in (workspace, tmp_path / "ws")]
    ratio = tables[1]["standard_error"] / tables[0]["standard_error"]
    finest = (tables[0]["field"] != TOTAL) & (tables[0]["sex"] != TOTAL) & (tables[0]["statistic"] == "mean")
    assert ratio[finest & (tables[0]["estimator"] == "parameters")].min() > 1.2
    assert ratio.min() > 1.0


def test_a_delta_that_is_not_below_one_over_n_is_said_before_and_in_the_statement(files: Path, tmp_path: Path) -> None:
    """6,000 records: 1/6000 is too much, a little less is not."""
    notes: list[str] = []

    def listening(event: Event) -> None:
        notes.extend([event.note] if event.kind == "note" else [])

    said = job(files, 'epsilon: "10", delta: "1/6000"')
    plan = dpdist.plan(said, listener=listening)
    assert "not below 1/n = 1/6000" in " ".join(notes)
    console = Console(width=300)
    with console.capture() as captured:
        console.print(plan_text(plan, ErrorPrediction(plan.job, {}, "none is made here")))
    assert "not below 1/n" in captured.get()
    assert "ε = 10 at δ = 1/6000" in captured.get()
    assert "plus at most 1/6000" in captured.get()
    dpdist.run(said, tmp_path / "ws")
    assert "not below 1/n" in str(statement_of(tmp_path / "ws")["guarantee_in_words"])
    notes.clear()
    dpdist.plan(job(files, 'epsilon: "10", delta: "1/6001"'), listener=listening)
    assert not notes


@pytest.mark.parametrize(
    ("budget", "edit", "told"),
    [
        ('epsilon: "1"', ("", ""), "add delta"),
        ('rho: "1"', ("", ""), "rho needs a delta"),
        ('rho: "1", epsilon: "1", delta: "1e-6"', ("", ""), "epsilon follows from rho"),
        ('epsilon: "1", delta: "1"', ("", ""), "below 1"),
        ('epsilon: "1", delta: "0"', ("", ""), "below 1"),
        ('epsilon: "1", delta: "few"', ("", ""), "number in quotes"),
        ('delta: "1e-6"', ("", ""), "epsilon"),
        ('epsilon: "1", delta: "1e-6"', (", noise: gaussian", ""), "has a delta only with Gaussian noise"),
        ('rho: "1", delta: "1e-6"', (", noise: gaussian", ""), "has a rho only with Gaussian noise"),
        (
            'epsilon: "1", delta: "1e-6"',
            (
                "model: {family: lognormal}\nmechanism: {name: sanitized_statistics",
                "mechanism: {name: laplace_composed, sensitivity: public",
            ),
            "has no noise",
        ),
    ],
)
def test_budgets_that_do_not_go_with_the_noise_are_refused(
    files: Path, budget: str, edit: tuple[str, str], told: str
) -> None:
    with pytest.raises(JobError, match=told):
        job(files, budget, edit)
