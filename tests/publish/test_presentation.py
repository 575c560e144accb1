"""Presentation is public text: it may change after a release, is published with it, and decides no figure of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from command_line import succeed
from public_files import public_files
from small_release import JOB, decimals_of, survey

import dpdist
from dpdist.core.errors import JobError
from dpdist.job import Presentation
from dpdist.job.loading import parse_job

LABELS = """
presentation:
  title: Salaries of graduates
  licence: CC BY 4.0
  columns:
    field: {label: Field of degree, levels: {arts: Arts and humanities}}
    salary: {label: Annual salary, unit: US dollars}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("input")
    survey().to_parquet(folder / "survey.parquet")
    return JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{")


@pytest.fixture(scope="module")
def finished(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("runs") / "finished"
    dpdist.run(parse_job(text), workspace)
    return workspace


@pytest.fixture
def workspace(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "ws")
    return tmp_path / "ws"


def figures(workspace: Path) -> dict[str, bytes]:
    files = public_files(workspace)
    return {name: files[name] for name in files if name.endswith((".parquet", "statement.json", "set-1.json", "seed"))}


def titled(workspace: Path) -> str | None:
    said = json.loads((workspace / "public" / "manifest.json").read_text(encoding="utf-8"))
    return said["job"]["presentation"]["title"]


def test_new_labels_are_published_in_the_same_workspace_and_no_figure_changes(workspace: Path, text: str) -> None:
    before = figures(workspace)
    assert titled(workspace) is None
    dpdist.run(parse_job(text + LABELS), workspace)
    assert titled(workspace) == "Salaries of graduates"
    assert figures(workspace) == before
    dpdist.publish(workspace)
    assert titled(workspace) == "Salaries of graduates"


def test_publish_takes_new_labels_without_the_confidential_folder(workspace: Path, text: str, tmp_path: Path) -> None:
    before, file = figures(workspace), tmp_path / "job.yaml"
    shutil.rmtree(workspace / "confidential")
    file.write_text(text + LABELS, encoding="utf-8")
    succeed("publish", workspace, "--job", file)
    assert (titled(workspace), figures(workspace)) == ("Salaries of graduates", before)


def test_publish_takes_nothing_but_labels_of_a_job(workspace: Path, text: str) -> None:
    other, before = parse_job(text.replace('epsilon: "3"', 'epsilon: "2"') + LABELS), public_files(workspace)
    with pytest.raises(JobError, match=r"budget: not as it was released") as refused:
        dpdist.publish(workspace, job=other)
    where = [problem.where for problem in refused.value.problems]
    assert where == ["budget"], "the reference's share, which follows the budget, is no change of its own"
    assert public_files(workspace) == before


def test_an_unknown_level_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(JobError) as refused:
        parse_job(text + LABELS.replace("{arts:", "{art:"))
    (problem,) = refused.value.problems
    assert problem.where == "presentation.columns.field.levels.art"
    line = (text + LABELS).splitlines().index(
        "    field: {label: Field of degree, levels: {arts: Arts and humanities}}"
    ) + 1
    assert problem.places == (f"line {line}",)


def test_levels_that_are_numbers_are_named_by_their_texts() -> None:
    columns = "  sex: {levels: [1, 2]}"
    said = parse_job(JOB.replace("  sex: {levels: [f, m]}", columns) + "presentation: {columns: {sex: {levels: {1: men}}}}")
    assert [said.presentation.level("sex", level) for level in (1, 2)] == ["men", "2"]


def test_validate_names_the_command_that_installs_a_format(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = parse_job(text + "presentation: {formats: [csv, sav]}")
    dpdist.validate(job)
    monkeypatch.setitem(sys.modules, "pyreadstat", None)
    with pytest.raises(JobError, match=r"pip install 'dpdist\[formats\]'"):
        dpdist.validate(job)


def test_the_example_of_the_guide_is_a_presentation_of_the_job_that_it_is_about() -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "how-to" / "present.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"```yaml fragment\n(.*?)```", guide, re.DOTALL)
    (sdmx,) = re.findall(r"^\| `(sdmx: .*?)` \|", guide, re.MULTILINE)
    others.append(f"presentation:\n  {sdmx}\n")
    job = (root / "jobs" / "nscg_strict.yaml").read_text(encoding="utf-8")
    plain = job.partition("\npresentation:")[0] + "\n"
    said = [parse_job(plain + block).presentation.model_fields_set for block in (first, *others)]
    assert set(Presentation.model_fields) - set().union(*said) == {"notes", "estimator", "registry"}


IN_COLUMNS = LABELS + "  se: column\n  sample_size: true\n"


def test_standard_errors_and_sample_sizes_stand_in_columns_of_their_own(workspace: Path, text: str) -> None:
    """In CSV as printed, workbook, page and `wide`, rounded as figures are. Control: margins of error, as before."""
    dpdist.run(parse_job(text + LABELS), workspace)
    before = dpdist.open_release(workspace).tables.wide("counts")
    dpdist.run(parse_job(text + IN_COLUMNS), workspace)
    release, public = dpdist.open_release(workspace), workspace / "public"
    wide, long = release.tables.wide("counts"), release.tables["counts"].query("estimator == 'parameters'")
    frame = pd.read_parquet(public / "released" / "frame.parquet")
    assert not [name for name in wide if name.endswith("±")]
    assert [name for name in before if name.endswith("±")]
    decimals = {name: decimals_of(group["standard_error"]) for name, group in long.groupby("statistic")}
    for _, row in long.iterrows():
        field = {"arts": "Arts and humanities"}.get(row["field"], row["field"])
        head = f"{row['sex']}: {'Count' if row['statistic'] == 'count' else 'Mean of Annual salary (US dollars)'}"
        assert wide.loc[field, head] == round(row["estimate"], decimals[row["statistic"]])
        assert wide.loc[field, f"{head}, SE"] == round(row["standard_error"], decimals[row["statistic"]])
        inside = frame[(frame["field"] == row["field"]) | (row["field"] == "Total")]
        inside = inside[(inside["sex"] == row["sex"]) | (row["sex"] == "Total")]
        assert wide.loc[field, f"{row['sex']}: n"] == inside["count"].sum()
    assert pd.read_csv(public / "tables" / "counts.wide.csv", index_col=0).columns.tolist() == wide.columns.tolist()
    sheet = openpyxl.load_workbook(public / "tables.xlsx")["Table 1"]
    heads = [cell.value for cell in sheet[5]][1:]
    assert heads == ["Count", "SE", "Mean of Annual salary (US dollars)", "SE", "n"] * 3
    assert [cell.value for cell in sheet[6]][1:] == wide.iloc[0].tolist()
    html = (public / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<th scope="col"><button type="button"><bdi>([^<]+)</bdi>', html)[:5] == heads[:5]
    assert ("±" in html, html.count("n is the unweighted number of sample records")) == (False, 1)
    assert html.index('colspan="5"') < html.index(f">{wide.iloc[0, 4]:,.0f}<")


@pytest.mark.parametrize("budget", ["adjacency: add_remove", "adjacency: substitution, exchange: anywhere"])
def test_sample_sizes_that_are_protected_are_not_printed(budget: str) -> None:
    """Control: under the other adjacencies they are public."""
    said = JOB.replace("strata: [field]\n", "") + "presentation: {sample_size: true}\n"
    parse_job(said)
    with pytest.raises(JobError, match="numbers of sample records are protected"):
        parse_job(said.replace('{epsilon: "3"}', f'{{epsilon: "3", {budget}}}'))
