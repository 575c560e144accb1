"""A plan states the noise of counts in the weight's own unit, exactly; never beside a direct error that it cannot know."""

from __future__ import annotations

import html
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpdist import plan, run
from dpdist.cli.main import app
from dpdist.core.table_cells import first_named
from dpdist.job.loading import parse_job
from dpdist.planning.noise_of_counts import noise_of_counts, warned
from dpdist.planning.plan import together

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
mechanism: {name: laplace_strict}
budget: {epsilon: "1", adjacency: substitution}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
runtime: {executor: serial}
"""
REFERRING = ("laplace_strict}", "reference_tables}\nreference: {path: earlier.parquet}")


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
    """√2·2/ε records of the heaviest weight in a base cell; the margin has three cells' noise. Control: ε halves it."""
    (noise,) = noise_of_counts(plan(parse_job(JOB)))
    one = np.sqrt(2.0) * 2.0 * 60.0
    assert noise.smallest == pytest.approx(one, rel=1e-4)
    assert noise.largest == pytest.approx(one * np.sqrt(3.0), rel=1e-4)
    assert noise.where == ("Total",)
    (halved,) = noise_of_counts(plan(parse_job(JOB.replace('"1"', '"2"'))))
    assert halved.largest == pytest.approx(noise.largest / 2.0, rel=1e-4)


def test_counts_that_noise_hides_for_certain_are_named() -> None:
    """Four records of weight 60 are below 1.64 deviations of their noise at ε = 1. Control: at ε = 4 they are above."""
    (line,) = map(str, warned(plan(parse_job(JOB))))
    assert line.startswith("incomes: noise hides 1 of 4 published counts, even if all of their weights are at the bound")
    assert "tiny" in line
    assert list(warned(plan(parse_job(JOB.replace('"1"', '"4"'))))) == []


def test_a_plan_states_no_noise_that_sizes_or_a_reference_decide() -> None:
    """Of secret sizes, and of limits that are learned. Control: under public bounds and sizes it does."""
    assert noise_of_counts(plan(parse_job(JOB)))
    assert noise_of_counts(plan(parse_job(JOB.replace(*REFERRING)))) == []
    assert noise_of_counts(plan(parse_job(JOB.replace(*REFERRING).replace("substitution", "add_remove")))) == []


LEARNED = (REFERRING[0], "reference_tables}")


def test_cells_that_noise_makes_like_their_group_are_named_before_the_run() -> None:
    """Four records at ε = 1. Controls: none is named at ε = 30, without shrinkage, or where a reference has its figure."""
    text = JOB.replace(*LEARNED)
    (line,) = map(str, warned(plan(parse_job(text))))
    assert line.startswith(
        "incomes: noise outweighs the records of 1 base cell (tiny), which are mostly in base cells of at"
    )
    assert "a cell of a kind of its own: name a reference, drop or merge such a cell, or raise epsilon" in line
    Path("job.yaml").write_text(text, encoding="utf-8")
    for command in ("validate", "plan"):
        assert line in " ".join(CliRunner().invoke(app, [command, "job.yaml", "--json"]).output.split())
    unshrunk = text.replace("reference_tables", "reference_tables, shrinkage: false")
    for control in (text.replace('"1"', '"30"'), unshrunk, JOB.replace(*REFERRING)):
        assert list(warned(plan(parse_job(control)))) == []


@pytest.mark.parametrize("replaced", [REFERRING, LEARNED], ids=["reference", "histograms"])
def test_page_and_workbook_name_exactly_the_cells_that_the_statement_names(
    replaced: tuple[str, str], noise_of: Callable[[str], AbstractContextManager[None]]
) -> None:
    """A small cell among large ones. Control: at ε = 100 none is named."""
    for epsilon in ("1", "100"):
        with noise_of("like their group"):
            release = run(parse_job(JOB.replace(*replaced).replace('"1"', f'"{epsilon}"')), f"ws-{epsilon}")
        lists = release.statement.get("shrunk", {})
        named = {cell for cells in lists.values() if not isinstance(cells, str) for cell in cells}
        assert ("tiny" in named, bool(named)) == (epsilon == "1", epsilon == "1")
        sheet = openpyxl.load_workbook(Path(release) / "tables.xlsx")["Table 1"]
        notes = [str(cell.value) for row in sheet.iter_rows() for cell in row if "Noise leaves" in str(cell.value)]
        assert [set(note.rpartition(": ")[2][:-1].split("; ")) for note in notes] == ([named] if named else [])
        page = (Path(release) / "index.html").read_text(encoding="utf-8")
        assert page.count("Noise leaves") == len(notes)
        assert all(note in html.unescape(page) for note in notes)


def test_without_a_public_file_no_figure_stands_for_an_unknown_error() -> None:
    """The plan of `laplace_strict` said "at least .61 direct standard errors" where 31 were measured."""
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    shown = " ".join(CliRunner().invoke(app, ["plan", "job.yaml"]).output.split())
    assert "not known before the run, because no public file tells how weights and outcomes vary" in shown
    assert "direct standard errors" not in shown
    refused = CliRunner().invoke(app, ["plan", "job.yaml", "--for-error", ".5"])
    assert refused.exit_code == 2
    assert "errors are not known before the run" in refused.output
    negative = CliRunner().invoke(app, ["plan", "job.yaml", "--for-error", "-1"])
    assert (negative.exit_code, "a number above 0" in negative.output) == (2, True)


def test_a_plan_names_ten_cells_in_a_line_and_counts_the_others() -> None:
    """Of forty cells, all collapsed. Control: three cells are named whole."""
    names = [f"r{number:02}" for number in range(40)]
    assert first_named(names[:10]) == "; ".join(names[:10])
    few = together(plan(parse_job(JOB.replace(*REFERRING).replace('"1"', '"0.001"'))))
    assert few == {"sums together": "north; south; tiny"}
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, dict.fromkeys(names, 50)).to_parquet(f"{name}.parquet")
    text = JOB.replace(*REFERRING).replace("north, south, tiny", ", ".join(names)).replace('"1"', '"0.1"')
    (together_now,) = together(plan(parse_job(text))).values()
    assert together_now.endswith("; r09; and 30 more")
