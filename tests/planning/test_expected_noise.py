"""A plan tells the noise of each published cell before anything is spent, and the ε that brings it to a wanted size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpdist import plan, run
from dpdist.cli.main import app
from dpdist.core.errors import JobError
from dpdist.core.table_cells import first_named
from dpdist.job import Job
from dpdist.job.loading import load_job, parse_job
from dpdist.opening.results import open_evaluation
from dpdist.planning.expected_noise import epsilon_for, expected_noise, in_words
from dpdist.planning.plan import together

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
OF_STATED_EPSILON = 'reference: {histogram: {epsilon: "0.3"}}\n'
COUNTS = {"north": 2000, "south": 500, "tiny": 4}


def people(seed: int, counts: Mapping[str, int] = COUNTS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    region = np.repeat(list(counts), list(counts.values()))
    income = np.exp(rng.normal(10.3, 0.5, len(region))).round()
    return pd.DataFrame({"region": region, "income": income, "weight": rng.gamma(4.0, 8.0, len(region)) + 1.0})


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed).to_parquet(f"{name}.parquet")
    return parse_job(JOB)


def test_noise_of_every_cell_follows_from_public_sizes(job: Job) -> None:
    """√2·2/ε of a record under public bounds, over √n, of counts and of means; the margin has three cells' noise."""
    found = expected_noise(plan(job))
    assert found is not None
    assert found.at_least
    for _, rows in found.by_statistic:
        noise = rows.set_index("cell")["noise"]
        for cell, n in COUNTS.items():
            assert noise[cell] == pytest.approx(2.0 * np.sqrt(2.0 / n))
        assert noise["Total"] == pytest.approx(2.0 * np.sqrt(2.0 * 3 / 2504))
    assert found.drowned == 2


def test_means_are_told_apart_from_counts(job: Job) -> None:
    """Under a reference 6b and 12b over √n (METHODS §7b); control: a table of counts alone says nothing of means."""
    text = JOB.replace(*REFERRING)
    found, counts = (expected_noise(plan(parse_job(each))) for each in (text, text.replace(", {mean: income}", "")))
    assert found is not None
    assert counts is not None
    noise = found.cells.set_index(["statistic", "cell"])["noise"]
    for cell, n in COUNTS.items():
        assert noise["counts", cell] == pytest.approx(12.0 / np.sqrt(n))
        assert noise["means", cell] == pytest.approx(24.0 / np.sqrt(n))
    assert set(counts.cells["statistic"]) == {"counts"}
    assert found.median == pytest.approx(2.0 * counts.median)
    words = list(in_words(found))
    assert words[2] == "about 1 of 4 counts and 2 of 4 means above 1, which noise would drown"
    assert not any("at least" in line for line in words)


def validated(job: str) -> str:
    Path("job.yaml").write_text(job, encoding="utf-8")
    found = CliRunner().invoke(app, ["validate", "job.yaml"])
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def test_validate_says_in_a_line_how_many_cells_noise_drowns(job: Job) -> None:
    """Control: at an ε that drowns none it says nothing."""
    drowned = validated(JOB.replace('"1"', '"0.0001"'))
    assert drowned.startswith("The job is valid, but noise would drown every cell: at least 1,122 direct")
    assert "caution: at ε = 0.0001 noise would drown at least 4 of 4 counts and 4 of 4 means" in drowned
    assert validated(JOB).startswith("The job is valid: 2,504 records")
    assert "at ε = 1 noise would drown at least 1 of 4 counts and 1 of 4 means" in validated(JOB)
    assert "drown" not in validated(JOB.replace('"1"', '"8"'))


def test_validate_names_the_rehearsal_where_noise_is_not_known(job: Job) -> None:
    """Of sets drawn from noisy statistics; control: at a usual ε it says nothing."""
    drawn = JOB.replace("laplace_strict}", "modips, law: normal}")
    assert "ε = 0.0001 is small" in validated(drawn.replace('"1"', '"0.0001"'))
    assert "dpdist rehearse" in validated(drawn.replace('"1"', '"0.0001"'))
    assert "rehearse" not in validated(drawn)


def test_noise_halves_when_epsilon_doubles(job: Job) -> None:
    one, two = (expected_noise(plan(parse_job(JOB.replace('"1"', f'"{e}"')))) for e in (1, 2))
    assert one is not None
    assert two is not None
    assert np.allclose(one.cells["noise"], 2.0 * two.cells["noise"])


def test_a_release_errs_about_as_much_as_its_plan_tells(job: Job, tmp_path: Path) -> None:
    """Counts of reference_tables at an ε where noise is near the direct errors; control: at ε = 8 it is not that large."""
    for epsilon, low, high in (("0.2", 0.25, 3.0), ("8", 0.0, 0.25)):
        own = parse_job(JOB.replace(*REFERRING).replace('"1"', f'"{epsilon}"'))
        found = expected_noise(plan(own))
        assert found is not None
        assert not found.at_least
        said = next(rows for name, rows in found.by_statistic if name == "counts").set_index("cell")["noise"]
        assert low < said["south"] < 3.0 * high
        run(own, tmp_path / epsilon, counted=False)
        rows = open_evaluation(tmp_path / epsilon)["incomes"]
        error = rows[rows["statistic"] == "count"].set_index("region")["synthetic_error_in_se"]
        assert error["south"] < 6.0 * said["south"] + 0.3


def test_the_epsilon_for_an_error_brings_the_median_cell_there(job: Job) -> None:
    """At most the wanted error; at a tenth less ε it would be more."""
    for wanted in (0.5, 0.05):
        epsilon = epsilon_for(plan(job), wanted).epsilon
        now, less = (
            expected_noise(plan(parse_job(JOB.replace('"1"', f'"{e}"')))) for e in (float(epsilon), 0.9 * float(epsilon))
        )
        assert now is not None
        assert less is not None
        assert now.median <= wanted < less.median


def test_the_epsilon_for_every_cell_leaves_none_drowned(job: Job) -> None:
    """As the caution names it; control: at a tenth less one is drowned."""
    enough = epsilon_for(plan(job), 1.0, every=True).epsilon
    assert f"at ε = {float(enough):g} none" in validated(JOB)
    for epsilon, drowned in ((float(enough), 0), (0.9 * float(enough), 2)):
        found = expected_noise(plan(parse_job(JOB.replace('"1"', f'"{epsilon}"'))))
        assert found is not None
        assert found.drowned == drowned


@pytest.mark.parametrize("histograms", ["", "0.3", "0.21"])
@pytest.mark.parametrize("mechanism", ["laplace_strict", "reference_tables"])
def test_the_settings_of_a_caution_leave_none_drowned(job: Job, mechanism: str, histograms: str) -> None:
    """With 32 records in the smallest cell ε is 6.1 under histograms of 3/10 of it. Control: a tenth less drowns some.

    The part of histograms is rounded too. Rounded up to 1.9 it left too little to the table.
    """
    people(1, {**COUNTS, "tiny": 32}).to_parquet("current.parquet")
    text, paid = JOB.replace("laplace_strict", mechanism), mechanism == "reference_tables"
    text += f'reference: {{histogram: {{epsilon: "{histograms}"}}}}\n' if histograms and paid else ""
    text = text if paid else text.replace('"1"', '"0.3"')
    found = re.search(r"at ε = ([0-9.]+)(?:, ([0-9.]+) of it for histograms,)? none", validated(text))
    assert found is not None
    assert (found[2] is not None) == paid
    for scale, none in ((1.0, True), (0.9, False)):
        settings = [f"budget.epsilon={scale * float(found[1]):.6g}"]
        settings += [f"reference.histogram.epsilon={scale * float(found[2]):.6g}"] if paid else []
        noise = expected_noise(plan(load_job("job.yaml", settings)))
        assert noise is not None
        assert (noise.drowned == 0) == none, found[0]


def test_a_plan_says_that_noise_is_not_the_whole_error_and_how_many_sums_a_margin_has(job: Job) -> None:
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    found = CliRunner().invoke(app, ["plan", "job.yaml"])
    words = " ".join(found.output.split())
    assert "this is noise alone" in words
    assert "they do not compare with those of another mechanism" in words
    assert "Total (2,504 records in 3 noisy sums)" in words
    assert "a set)" not in words
    assert "log-likelihood" not in words


def test_a_plan_names_ten_cells_in_a_line_and_counts_the_others(job: Job) -> None:
    """Of forty cells, which all exceed two errors and are all collapsed. Control: three cells are named whole."""
    names = [f"r{number:02}" for number in range(40)]
    assert first_named(names[:10]) == "; ".join(names[:10])
    for name, seed in (("current", 1), ("earlier", 2)):
        people(seed, dict.fromkeys(names, 50)).to_parquet(f"{name}.parquet")
    text = JOB.replace(*REFERRING).replace("north, south, tiny", ", ".join(names)).replace('"1"', '"0.1"')
    found = plan(parse_job(text))
    (together_now,) = together(found).values()
    noises = expected_noise(found)
    assert noises is not None
    (also,) = [line for line in in_words(noises) if "also above 2" in line]
    assert together_now.endswith("; r09; and 30 more")
    assert (also.count("; "), also.endswith("more)")) == (10, True)
    people(2).to_parquet("earlier.parquet")
    people(1).to_parquet("current.parquet")
    few = together(plan(parse_job(JOB.replace(*REFERRING).replace('"1"', '"0.001"'))))
    assert few == {"sums together": "north; south; tiny"}


def test_plan_prints_cells_and_epsilon(job: Job) -> None:
    Path("job.yaml").write_text(JOB, encoding="utf-8")
    found = CliRunner().invoke(app, ["plan", "job.yaml"])
    assert found.exit_code == 0, found.output
    assert "at least 1 of 4 counts and 1 of 4 means above 1, which noise would drown" in " ".join(found.output.split())
    assert re.search(r"tiny \(4 records\): counts at least 1.4, means at least 1.4", " ".join(found.output.split()))
    found = CliRunner().invoke(app, ["plan", "job.yaml", "--for-error", ".5"])
    assert re.search(
        r"at ε = 0\.\d+ the median cell's noise, in its least figure, is at most 0.5", " ".join(found.output.split())
    ), found.output
    assert re.search(r"at ε = \d\.\d no cell's noise, in its least figure, is more", " ".join(found.output.split())), (
        found.output
    )
    found = CliRunner().invoke(app, ["plan", "job.yaml", "--for-error", "-1"])
    assert (found.exit_code, "a number above 0" in found.output) == (2, True)


@pytest.mark.parametrize(
    "said",
    [
        "",
        OF_STATED_EPSILON,
        OF_STATED_EPSILON + 'accept: {epsilon: "0.1", gates: [{measure: median, of: count, limit: 20}]}\n',
    ],
)
def test_the_printed_settings_bring_a_job_with_histograms_there(job: Job, said: str) -> None:
    """Histograms of a stated ε keep their part of what gates leave, so they are set as well."""
    Path("job.yaml").write_text(JOB.replace("laplace_strict", "reference_tables") + said, encoding="utf-8")
    found = CliRunner().invoke(app, ["plan", "job.yaml", "--for-error", "0.05"])
    assert found.exit_code == 0, found.output
    settings = re.findall(r"--set (\S+)", found.output)[:2]
    assert [setting.split("=")[0] for setting in settings] == ["budget.epsilon", "reference.histogram.epsilon"]
    noise = expected_noise(plan(load_job("job.yaml", settings)))
    assert noise is not None
    assert 0.045 < noise.median <= 0.05
    before = load_job("job.yaml")
    assert before.reference is not None
    assert before.reference.paid is not None
    control = expected_noise(plan(load_job("job.yaml", settings[:1])))
    assert control is not None
    assert (control.median < 0.045) == bool(said), "an ε of histograms that stays leaves more to the table than is asked"


def test_secret_sizes_are_not_told_by_noise(job: Job) -> None:
    """Control: under substitution they are told."""
    text = JOB.replace(*REFERRING)
    assert expected_noise(plan(parse_job(text))) is not None
    secret = plan(parse_job(text.replace("substitution", "add_remove")))
    assert expected_noise(secret) is None
    with pytest.raises(JobError, match="dpdist rehearse"):
        epsilon_for(secret, 0.5)


def test_noise_of_a_tilted_posterior_is_not_known_beforehand(job: Job) -> None:
    said = "weighted}\nmodel: {family: lognormal}\nstrata: [region]"
    text = JOB.replace("laplace_strict}", said).replace("[1, 60], outside: clip", "[0.5, 1000]").replace("[0, 2", "[1, 2")
    asymptotic = parse_job(text.replace("north, south, tiny", "north, south, tiny").replace('"1"', '"9"'))
    with pytest.raises(JobError, match="is not known beforehand here"):
        epsilon_for(plan(asymptotic, input=people(1).query("region != 'tiny'")), 0.5)
