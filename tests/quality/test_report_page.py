"""The custodian's page: the verdict first, figures by hand, marked as confidential, self-contained."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import pytest
import small_release
from command_line import invoke, succeed
from markupsafe import Markup

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import WorkspaceError
from dpdist.estimation.estimators import STATISTICS
from dpdist.publish import noisy_figures
from dpdist.publish.folder import publish as publish_folder
from dpdist.publish.noisy_figures import NoiseErrors, release_key
from dpdist.publish.released import read_released
from dpdist.publish.standard_errors import ErrorSources, cells_key
from dpdist.quality import report_material, report_page
from dpdist.quality.microdata import ecdf
from dpdist.quality.report_page import ANSWERS, MARKING, _cells_drawn, _lighter, material_of, overall_verdict, write_report
from dpdist.quality.report_parts import ReportFigure, Section, axis, error
from dpdist.quality.summary import overall
from dpdist.storage.tables import each_block
from dpdist.storage.workspace import Workspace

LEVELS = ["arts", "<b>law</b>", "قانون"]
WEIGHTED = """
dataset: small
period: "2021"
input: {path: survey.parquet}
columns:
  field: {levels: [arts, "<b>law</b>", "قانون"]}
  sex: {levels: [f, m]}
  salary: {bounds: [1000, 90000], outside: clip}
survey: {weight: weight}
outcome: salary
model: {family: lognormal, predictors: [field, sex], synthesis: fbs}
mechanism: {name: weighted}
budget: {epsilon: "40"}
public_frame: {accepted: simulated records}
sampler: {name: exact, draws: 200}
tables: [{name: pay, by: [field, sex], margins: true, statistics: [count, {mean: salary}]}]
compare: [laplace, laplace_composed]
runtime: {executor: serial}
presentation: {quality: {cv: {caution: 0.05, unreliable: 0.5}}}
"""
STRICT = WEIGHTED.replace("model: {family: lognormal, predictors: [field, sex], synthesis: fbs}\n", "")
STRICT = STRICT.replace("{name: weighted}", "{name: tables}").replace("sampler: {name: exact, draws: 200}\n", "")
STRICT += "reference: {path: before.parquet, provenance: public}\n"


LONE = {1: 1, 2: 6}


def survey(seed: int, n: int = 700) -> pd.DataFrame:
    """One record of the third field, and in the earlier file three of either sex."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "field": np.where(np.arange(n) < LONE[seed], LEVELS[2], rng.choice(LEVELS[:2], n)),
            "sex": np.where(np.arange(n) % 2 == 0, "f", "m"),
            "salary": np.exp(rng.normal(10.8, 0.5, n)),
            "weight": np.exp(rng.normal(3.0, 0.4, n) + 3.0 * (np.arange(n) % 100 == 50)),
        }
    )


@pytest.fixture(scope="module", params=[WEIGHTED, STRICT], ids=["weighted", "tables"])
def workspace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    survey(1).to_parquet(folder / "survey.parquet")
    survey(2).to_parquet(folder / "before.parquet")
    (folder / "job.yaml").write_text(request.param, encoding="utf-8")
    succeed("run", folder / "job.yaml", "--workspace", folder / "ws", "-q")
    return folder / "ws"


@pytest.fixture(scope="module")
def html(workspace: Path) -> str:
    return (workspace / "confidential" / "report.html").read_text(encoding="utf-8")


def table(html: str, caption: str) -> list[list[str]]:
    """Texts of a table's rows below its head."""
    part = html[html.index(f"<caption>{caption}</caption>") :]
    body = part[part.index("<tbody>") : part.index("</tbody>")]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("<tr>")[1:]]
    return [[unescape(re.sub(r"</?bdi>", "", each)) for each in row] for row in rows]


def test_its_first_line_marks_it_and_so_does_what_is_seen_first(workspace: Path, html: str) -> None:
    assert MARKING in html.splitlines()[0]
    body = html[html.index("<body>") :]
    assert body.index(MARKING) < body.index("<h1>")
    assert stat.S_IMODE((workspace / "confidential" / "report.html").stat().st_mode) == 0o600
    assert "report.html" not in (workspace / "public" / "manifest.json").read_text()


def test_it_asks_for_nothing_from_a_network_and_is_light(html: str) -> None:
    assert len(html.encode()) < 1_000_000
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[a-z]", html)
    assert not re.search(r"<(?:img|link|iframe|script [^>]*src)", html)
    assert "default-src 'none'" in html
    assert "<b>law" not in html


def test_the_verdict_stands_first_and_the_worst_cells_are_those_furthest_off(workspace: Path, html: str) -> None:
    sections = re.findall(r'<section id="([^"]+)"', html)
    assert sections[0] == "verdict"
    assert sections[-2:] == ["diagnostics", "timings"]
    rows = pd.read_parquet(workspace / "confidential" / "evaluation" / "pay.parquet")
    far = rows.nlargest(1, "synthetic_error_in_se").iloc[0]
    (cell, figure, *_, off, _held) = table(html, "Worst cells")[0]
    assert cell == f"{far['field']}, {far['sex']}"
    assert figure == f"pay, {'count' if far['statistic'] == 'count' else 'mean of salary'}"
    assert float(off) == pytest.approx(far["synthetic_error_in_se"], rel=1e-3)


def test_errors_of_every_comparator_stand_by_cell_beside_their_guarantee(workspace: Path, html: str) -> None:
    rows = pd.read_parquet(workspace / "confidential" / "evaluation" / "pay.parquet")
    counts = rows[(rows["statistic"] == "count") & rows["synthetic_error_in_se"].notna()]
    shown = {row[0]: row[1:] for row in table(html, "count: errors by cell, in SE")}
    heads = html[html.index("count: errors by cell, in SE</caption>") :].split("</thead>")[0]
    assert "published (asymptotic)" in heads or "published (strict)" in heads
    assert "laplace (none)" in heads
    assert "laplace_composed (none)" in heads
    assert len(counts) > 6
    for _, row in counts.iterrows():
        name = f"{row['field']}, {row['sex']}"
        said = [error(row[f"{how}_error_in_se"]).text for how in ("synthetic", "laplace", "laplace_composed")]
        assert set(said) <= set(shown[name]), name


def test_more_records_than_are_drawn_are_counted_all_and_drawn_in_part(
    workspace: Path, html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pd.read_parquet(workspace / "confidential" / "bounds.parquet")
    monkeypatch.setattr(report_material, "MOST_DRAWN", 100)
    monkeypatch.setattr(report_material, "batches", partial(report_material.batches, most=64))
    made = report_material.evenly_spread(workspace / "confidential" / "bounds.parquet", ["record"])
    assert made["record"].to_pylist() == rows["record"][::7].tolist()
    write_report(material_of(Workspace(workspace)))
    again = (workspace / "confidential" / "report.html").read_text(encoding="utf-8")
    (workspace / "confidential" / "report.html").write_text(html, encoding="utf-8")
    assert ("records, evenly spread" in html, len(again) < len(html)) == (False, True)
    if rows["weighted_record_bound"].notna().any():
        assert "Quantiles and curves use 100 of 700 records, evenly spread." in again
        for drawn, whole in zip(table(again, "Record bounds"), table(html, "Record bounds"), strict=True):
            assert drawn[-1] == whole[-1], "the largest is of all records"
            assert drawn[:-1] != whole[:-1]
        down = table(again, "Records clipped or weighted down")[0]
        assert (down[0], down[1]) == ("privacy weight below 1", str(int((rows["privacy_weight"] < 1).sum())))


def test_no_block_of_records_outlives_its_turn(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[np.ndarray]] = []

    def blocks(path: Path) -> Iterator[Records]:
        (whole,) = each_block(path)
        for _ in range(4):
            block = whole.take(np.arange(len(whole)))
            kept.append(weakref.ref(block.weight))
            yield block
            del block

    monkeypatch.setattr(report_material, "each_block", blocks)
    drawn = report_material.ReportMaterial(
        Workspace(workspace), read_released(workspace / "public" / "released"), {}, {}, [], {}
    ).records
    assert len(drawn.weight) == 4 * 700
    assert [each() for each in kept[:-1]] == [None] * 3


def test_clipped_records_and_single_ones_are_counted(workspace: Path, html: str) -> None:
    known = survey(1)
    share = {row[0]: row[1:3] for row in table(html, "Records clipped or weighted down")}
    number = int((known["salary"] >= 90000).sum())
    assert number > 10, "the case does not clip: it shows nothing"
    assert share["salary at its public bounds or beyond"][0] == str(number)
    assert float(share["salary at its public bounds or beyond"][1]) == pytest.approx(number / 700, rel=1e-3)
    assert table(html, "Combinations with a single record") == [[f"{LEVELS[2]}, f"]]
    if not (workspace / "public" / "measurements.parquet").exists():
        weights = pd.read_parquet(workspace / "confidential" / "bounds.parquet")["privacy_weight"]
        assert share["privacy weight below 1"][0] == str(int((weights < 1).sum()))


def test_thresholds_of_the_job_that_failed_stand_first(workspace: Path, html: str) -> None:
    rows = table(html, "Thresholds")
    verdicts = [row[-1] for row in rows]
    assert verdicts == sorted(verdicts, key=ANSWERS.index)
    assert {row[0] for row in rows} >= {"pay: figures flagged caution", "pay: figures flagged unreliable"}
    published = pd.read_parquet(workspace / "public" / "tables" / "pay.parquet").query("estimator == 'parameters'")
    cv = (published["standard_error"] / published["estimate"]).abs()
    flagged = {row[0]: row[2] for row in rows}
    assert flagged["pay: figures flagged caution"] == str(int(((cv > 0.05) & (cv <= 0.5)).sum()))
    assert flagged["pay: figures flagged unreliable"] == str(int((cv > 0.5).sum()))


def test_flags_of_print_do_not_take_the_place_of_the_verdict(workspace: Path) -> None:
    """They stand after the sentences. Control: a failed gate stands in the first line, beside the verdict's answer."""
    material = material_of(Workspace(workspace))
    plain, said = overall(material.verdicts), overall_verdict(material)
    assert said.head == plain.head
    assert "figures flagged caution" not in said.head
    assert any("By the job's rules of quality, pay: figures flagged " in each for each in said.sentences)
    gate = {"gate": "coverage", "limit": 0.9, "measured": 0.5, "accepted": False}
    gated = replace(material, statement={**material.statement, "acceptance": {"gates": [gate]}})
    failed = overall_verdict(gated)
    if not plain.fails:
        assert failed.head == f"limits of the job exceeded: gate: coverage (under noise); {plain.head}"
    assert failed.fails


def test_times_are_the_finished_runs(workspace: Path, html: str) -> None:
    said = json.loads((workspace / "status.json").read_text(encoding="utf-8"))["stages"]
    assert [row[0] for row in table(html, "Stages of the run")] == list(said)
    (workspace / "status.json").rename(workspace / "status.kept")
    try:
        write_report(material_of(Workspace.of_place(workspace)))
        again = (workspace / "confidential" / "report.html").read_text(encoding="utf-8")
        assert "Timings are known once a run has ended" in again
    finally:
        (workspace / "status.kept").rename(workspace / "status.json")
        write_report(material_of(Workspace.of_place(workspace)))
    assert (workspace / "confidential" / "report.html").read_text(encoding="utf-8") == html


ADDED = "\n  - {name: added, by: [sex], statistics: [count]}\n"


def test_a_release_that_is_published_again_has_a_page_of_its_own(workspace: Path, html: str, tmp_path: Path) -> None:
    """It names its manifest, and what of it the run's evaluation does not hold; on the screen, too."""
    said = (workspace.parent / "job.yaml").read_text(encoding="utf-8")
    more = said.replace("tables: [{name: pay,", "tables:\n  - {name: pay,").replace(
        "{mean: salary}]}]", "{mean: salary}]}" + ADDED
    )
    fewer = said.replace(
        "margins: true, statistics: [count, {mean: salary}]", "margins: false, statistics: [count, {median: salary}]"
    )
    (tmp_path / "more.yaml").write_text(more, encoding="utf-8")
    (tmp_path / "fewer.yaml").write_text(fewer, encoding="utf-8")

    def published(*job: str) -> str:
        succeed("publish", workspace, "-q", *job)
        page = (workspace / "confidential" / "report.html").read_text(encoding="utf-8")
        manifest = (workspace / "public" / "manifest.json").read_bytes()
        assert f"manifest.json with SHA-256 {hashlib.sha256(manifest).hexdigest()}" in page
        return page

    assert "not judged" not in html
    page = published("--job", str(tmp_path / "more.yaml"))
    assert "; not judged: added." in page
    assert {row[1] for row in table(page, "Worst cells")} == {row[1] for row in table(html, "Worst cells")}
    shown = invoke("report", workspace, "--confidential")
    assert "not judged: added" in " ".join(shown.output.split())
    page = published("--job", str(tmp_path / "fewer.yaml"))
    assert "; not judged: pay, median of salary." in page
    assert {row[1] for row in table(page, "Worst cells")} == {"pay, count"}
    assert not any("Total" in row[0] for row in table(page, "count: errors by cell, in SE"))
    assert published("--job", str(workspace.parent / "job.yaml")) == html, "as it was"
    evaluation = workspace / "confidential" / "evaluation"
    evaluation.rename(workspace / "confidential" / "away")
    try:
        assert published() == html, "without an evaluation the page is left alone"
    finally:
        (workspace / "confidential" / "away").rename(evaluation)


def test_publish_in_python_writes_the_page_again_as_the_command_does(workspace: Path, html: str) -> None:
    """Where there is one. Control: without a page none is written, and nothing is said of it."""
    page, said = workspace / "confidential" / "report.html", list[str]()
    page.write_text("of another release", encoding="utf-8")
    dpdist.publish(workspace, lambda event: said.append(event.note))
    assert page.read_text(encoding="utf-8") == html
    page.unlink()
    dpdist.publish(workspace, lambda event: said.append(event.note))
    assert not page.exists()
    assert not any("report.html" in each for each in said)
    page.write_text(html, encoding="utf-8")
    page.chmod(0o600)


def test_a_verdict_after_a_publication_has_the_noise_errors_that_are_simulated_again(workspace: Path) -> None:
    """The process that published simulates no noise a second time. Control: other kept variances give other errors."""
    release = read_released(workspace / "public" / "released")
    publish_folder(release, workspace.parent / "again")
    (table,), noise = release.job.tables, NoiseErrors.of(release)
    cells = release.cells(table)
    key = ("salary", cells_key(cells))
    assert key in (noisy_figures._published.get(release_key(release)) or {})
    assert noise.known == (release.job.mechanism.name == "tables")
    kept = noise.errors(table, "salary")
    noisy_figures._published.clear()
    simulated = noise.errors(table, "salary")
    assert all(np.array_equal(kept[name], simulated[name], equal_nan=True) for name in STATISTICS)
    noisy_figures._published.replace(release_key(release), {key: [np.ones(len(cells))] * 3})
    assert np.isfinite(noise.errors(table, "salary")["mean"]).all() == noise.known


def test_only_a_run_simulates_noise_and_pages_read_it(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run keeps errors by noise with its evaluation, so that a page of another process need not simulate them. Control:
    another process's evaluation.
    """
    simulations, simulate = list[bool](), noisy_figures.simulate_errors

    def counted(*given: Any, noise_alone: bool) -> ErrorSources:
        simulations.append(noise_alone)
        return simulate(*given, noise_alone=noise_alone)

    monkeypatch.setattr(noisy_figures, "simulate_errors", counted)
    job = str(workspace.parent / "job.yaml")
    succeed("run", job, "--workspace", tmp_path / "ws", "-q")
    release = read_released(tmp_path / "ws" / "public" / "released")
    (table,), noise = release.job.tables, NoiseErrors.of(release)
    with Workspace.opened(tmp_path / "ws") as space:
        rows = material_of(space).tables["pay"]
        page = write_report(material_of(space)).read_bytes()
        noisy_figures._published.clear()
        report_page._last_judged.clear()
        assert write_report(material_of(space)).read_bytes() == page
        assert not simulations
    errors = noise.errors(table, "salary")
    assert simulations == [True] * noise.known
    for name in ("count", "mean"):
        kept = rows.loc[rows["statistic"] == name, "synthetic_noise_se"].to_numpy(dtype=float)
        assert np.array_equal(kept, errors[name], equal_nan=True)
    assert np.isfinite(rows["synthetic_noise_se"]).any() == noise.known


def test_a_workspace_that_moves_is_read_where_it_is(workspace: Path, tmp_path: Path) -> None:
    """A process keeps verdicts by the contents of files, and no places."""
    first = material_of(Workspace(workspace)).tables["pay"]
    shutil.copytree(workspace, tmp_path / "first")
    assert material_of(Workspace(tmp_path / "first")).tables["pay"].equals(first)
    (tmp_path / "first").rename(tmp_path / "moved")
    assert material_of(Workspace(tmp_path / "moved")).tables["pay"].equals(first)


def test_an_evaluation_of_an_older_version_is_refused_with_the_remedy(workspace: Path, tmp_path: Path) -> None:
    """Without errors by noise a verdict would be another one. Control: with them it is read."""
    shutil.copytree(workspace, tmp_path / "old")
    path = tmp_path / "old" / "confidential" / "evaluation" / "pay.parquet"
    material_of(Workspace(tmp_path / "old"))
    pd.read_parquet(path).drop(columns="synthetic_noise_se").to_parquet(path)
    for mark in (tmp_path / "old" / "confidential" / "marks").glob("*pay*"):
        mark.unlink()
    with pytest.raises(WorkspaceError, match="older version"):
        material_of(Workspace(tmp_path / "old"))


def test_open_writes_the_page_again_and_opens_it(workspace: Path, html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", lambda url: opened.append(url) or 0)
    (workspace / "confidential" / "report.html").unlink()
    text = succeed("report", workspace, "--open")
    path = workspace / "confidential" / "report.html"
    assert opened == [path.as_uri()]
    assert path.read_text(encoding="utf-8") == html
    assert "(confidential)" in text


def test_a_page_is_not_written_in_an_object_store() -> None:
    done = invoke("report", "s3://bucket/prefix", "--open")
    assert done.exit_code == 2
    assert "pages are not written to an object store" in done.output


def test_distributions_are_shares_of_weight_and_axes_hold_all_values() -> None:
    values, weight = np.array([3.0, 1.0, 2.0]), np.array([5.0, 1.0, 4.0])
    assert ecdf(values, np.array([0.0, 1.0, 2.5, 9.0]), weight).tolist() == [0.0, 0.1, 0.5, 1.0]
    assert ecdf(values, np.array([2.0])) == pytest.approx(2 / 3)
    assert axis("y", values).position(np.array([1.0, 2.0, 3.0])).tolist() == [0.0, 0.5, 1.0]
    assert axis("y", np.array([1.0, 100.0])).position(np.array([10.0])).tolist() == pytest.approx([0.5])
    assert not axis("y", np.array([0.0, 100.0])).log


def quoting(confidential: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library fails on the page, and its message quotes a record."""
    found = jinja2.Environment.get_template

    def failing(self: jinja2.Environment, name: str, *more: Any) -> jinja2.Template:
        if name == "report.html":
            raise ValueError("salary 88888.25")
        return found(self, name, *more)

    monkeypatch.setattr(jinja2.Environment, "get_template", failing)


def in_the_way(confidential: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (confidential / "report.html").unlink()
    (confidential / "report.html").mkdir()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job with a finished run, `ws`."""
    folder = tmp_path_factory.mktemp("small")
    small_release.survey().to_parquet(folder / "survey.parquet")
    text = small_release.LAPLACE_JOB.replace("survey: {", "input: {path: survey.parquet}\nsurvey: {")
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    first = invoke("run", folder / "job.yaml", "--workspace", folder / "ws")
    assert (first.exit_code, "report.html" in first.stderr) == (0, False), "control"
    return folder


@pytest.mark.parametrize(("fault", "how"), [(quoting, ["--json"]), (in_the_way, ["--quiet"])])
def test_a_page_that_cannot_be_written_is_one_line_and_the_run_ends_as_its_release_does(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Path, pytest.MonkeyPatch], None],
    how: list[str],
) -> None:
    """No exception's message and no traceback, which may quote records; the line names the command that writes the page."""
    shutil.copytree(small / "ws", tmp_path / "ws")
    command = ["run", str(small / "job.yaml"), "--workspace", str(tmp_path / "ws"), *how]
    fault(tmp_path / "ws" / "confidential", monkeypatch)
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    (line,) = [each for each in done.stderr.splitlines() if "report.html" in each]
    assert "The release is complete" in line
    assert f"`dpdist report {tmp_path / 'ws'} --open`" in line
    assert "Traceback" not in done.output
    assert "88888" not in done.output
    if how == ["--json"]:
        assert json.loads(done.stdout.splitlines()[-1])["event"] == "done"
    log = (tmp_path / "ws" / "confidential" / "log").read_text(encoding="utf-8")
    assert "Traceback" in log
    again = invoke("report", tmp_path / "ws", "--open")
    assert again.exit_code != 0, "control: asked for by itself, the page still fails aloud"


@pytest.mark.parametrize("verb", ["run", "publish"])
def test_a_workspace_that_cannot_be_opened_for_the_page_fails_no_release(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    shutil.copytree(small / "ws", tmp_path / "ws")
    run = ["run", str(small / "job.yaml"), "--workspace", str(tmp_path / "ws"), "--json"]

    def in_use(workspace: str | Path) -> Any:
        raise WorkspaceError(str(workspace), "is in use", "wait")

    monkeypatch.setattr("dpdist.cli.custodian.evaluated", in_use)
    done = invoke(*(run if verb == "run" else ["publish", str(tmp_path / "ws"), "--json"]))
    assert done.exit_code == 0, done.output
    assert "report.html was not written (WorkspaceError" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "done"


def test_drawings_of_many_cells_fit_a_printed_page() -> None:
    """Nine estimates of 50 cells; all cells are drawn once, beside a dot an estimate in each of five legends."""
    columns = {f"{how}_error_in_se": np.linspace(0.0, 2.0, 50) for how in ["synthetic", *"abcdefgh"]}
    rows = pd.DataFrame({"field": [f"field {k}" for k in range(50)], "statistic": "count", "direct": 1.0, **columns})
    drawn = [str(each.svg) for each in _cells_drawn("count", rows)]
    assert len(drawn) == 5
    assert max(sum(map(int, re.findall(r'<svg height="(\d+)"', each))) for each in drawn) <= 1_100
    assert sum(each.count("<circle") for each in drawn) == 9 * 50 + 9 * 5


def test_a_page_that_is_too_heavy_loses_all_figures_of_its_excess_at_once() -> None:
    """It was rendered again for every figure, so that a release of a thousand tables took minutes. Control: no figure is
    left."""
    made = [Section(name, name, figures=[ReportFigure(f"{name} {k}", Markup("x" * 10)) for k in range(3)]) for name in "ab"]
    assert _lighter(made, 35)
    assert [len(section.figures) for section in made] == [2, 0]
    assert len(made[1].sentences) == 3
    assert made[0].sentences == ["Left out, because the page would be too large: a 2."]
    assert _lighter(made, 1_000)
    assert not _lighter(made, 0)
