"""The reference names what a release has: fields of its statement, files of its public folder, verbs, mechanisms."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import small_release
import typer
from command_line import invoke
from pages import ROOT
from public_files import statement_of

from dpdist import parse_job, run
from dpdist.cli.main import app
from dpdist.job import Job
from dpdist.job.loading import load_job
from dpdist.job.presentation import Presentation, Registry
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.survey.schema import needed_columns

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public folder of a small strict release."""
    folder = tmp_path_factory.mktemp("reference")
    small_release.survey().to_parquet(folder / "survey.parquet")
    return Path(run(parse_job(small_release.JOB), folder / "workspace", folder / "survey.parquet"))


def named(page: str, names: set[str]) -> set[str]:
    """The names that do not stand on a page as code."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return {name for name in names if f"`{name}`" not in text}


def test_every_field_of_a_statement_is_described(public: Path) -> None:
    """Control: one that is not there is found."""
    fields = set(statement_of(public))
    assert named("statement.md", fields) == set()
    assert named("statement.md", {"guaranty"}) == {"guaranty"}


STATED = """presentation:
  responsible: Agency
  contact: data@agency.example
  retention: ten years, then destroyed
  choices: on the survey of 2020, which is public
"""


def test_a_statement_says_who_answers_how_long_records_are_kept_and_how_choices_were_made(tmp_path: Path) -> None:
    """As the job states it, and nothing where it states nothing. Control: the small release of the other tests."""
    public = Path(run(parse_job(small_release.JOB + STATED), tmp_path, small_release.survey()))
    said = statement_of(public)
    assert (said["responsible_body"], said["contact"]) == ("Agency", "data@agency.example")
    assert said["retention"] == "ten years, then destroyed"
    assert said["choices"] == "on the survey of 2020, which is public"
    assert named("statement.md", set(said)) == set()
    assert "ten years, then destroyed" in (public / "index.html").read_text(encoding="utf-8").lower()


def test_items_of_an_evaluation_stand_where_the_page_on_nist_says(public: Path) -> None:
    """A name is a field that the page of statements describes, a key of presentation, or a public file."""
    assert "retention" not in statement_of(public)
    text = (REFERENCE / "nist.md").read_text(encoding="utf-8")
    fields = set(re.findall(r"`([a-z_]+)`", (REFERENCE / "statement.md").read_text(encoding="utf-8")))
    columns = {"standard_error", "lower", "upper", "versions", "presentation"}
    assert set(re.findall(r"`([a-z_]+)`", text)) - fields - columns == set()
    keys = re.findall(r"`presentation\.([a-z_.]+)`", text)
    assert len(keys) >= 6
    known = set(Presentation.model_fields) | {f"registry.{name}" for name in Registry.model_fields}
    assert set(keys) - known == set()
    files = set(re.findall(r"`([a-z]+\.(?:json|html|parquet|yaml))`", text))
    assert files - {"registry.yaml"} <= {path.name for path in public.rglob("*")}, "control: no such file is made up"


def test_every_public_file_is_described(public: Path) -> None:
    """Names of tables and numbers of sets stand for any; what lies in released/ has a table of its own."""
    found = {path.relative_to(public).as_posix() for path in public.rglob("*") if path.is_file()}
    shapes = {name.replace("tables/counts.", "tables/<name>.").replace("set-1.", "set-<k>.") for name in found}
    assert named("workspace.md", {shape.removeprefix("released/") for shape in shapes}) == set()


def test_every_verb_stands_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    verbs = set(typer.main.get_command(app).commands)
    assert {verb for verb in verbs if f"dpdist {verb}" not in text} == set()


def test_generated_parts_stand_in_the_pages_as_the_code_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone has whole pages, without Sphinx. Control: a page that is behind is seen.

    One that is behind is written anew by `python docs/generated.py`.
    """
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generated

    try:
        texts = {page.name: (page.read_text(encoding="utf-8"), text) for page, text in generated.pages()}
        behind = generated.PART.sub("", texts["cli.md"][0])
    finally:
        sys.modules.pop("generated", None)
    assert [name for name, (there, made) in texts.items() if there != made] == [], "run: python docs/generated.py"
    assert behind != texts["cli.md"][1]


def test_reference_pages_of_a_clone_are_whole() -> None:
    """Every mechanism, verb and key of a job stands in the files themselves; nothing is included from a build."""
    texts = {name: (REFERENCE / name).read_text(encoding="utf-8") for name in ("mechanisms.md", "cli.md", "job-file.md")}
    assert [name for name in MECHANISMS if f"| `{name}`" not in texts["mechanisms.md"]] == []
    verbs = typer.main.get_command(app).commands
    assert [
        name for name in (*verbs, "cluster certs") if not re.search(rf"^\| `{name}[ `]", texts["cli.md"], re.MULTILINE)
    ] == []
    assert [
        key for key in Job.model_fields if not re.search(rf"^- (\*\*)?`{key}`", texts["job-file.md"], re.MULTILINE)
    ] == []
    pages = [*(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if "{include}" in page.read_text(encoding="utf-8")] == []


def test_every_section_of_methods_that_the_code_names_is_there() -> None:
    """Control: a section that is not."""
    sections = set(re.findall(r"^##+ §(\w+)", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.MULTILINE))
    files = [path for folder in ("dpdist", "stan", "jobs", "tests") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".stan", ".yaml")]
    named = {found for text in texts for found in re.findall(r"METHODS §(\d+[a-z]?)\b", text)}
    assert len(named) > 8
    assert named - sections == set()
    assert "99" not in sections


def test_a_shipped_job_says_where_its_file_comes_from_and_what_columns_it_needs(tmp_path: Path) -> None:
    """In its comments, on the page, and where a run has no file or no reference. Control: simulated jobs need none."""
    page = (REFERENCE / "shipped-jobs.md").read_text(encoding="utf-8")
    needing = [path.stem for path in sorted((ROOT / "jobs").glob("*.yaml")) if load_job(path.stem).input.simulate is None]
    assert len(needing) == 8
    for name in needing:
        shown = invoke("show", name).output
        assert "# File: " in shown
        columns = needed_columns(load_job(name))
        assert f"# Columns, by these names: {', '.join(columns)}." in shown
        rows = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert len(rows) == 2  # what the job is, and where its file comes from
        told = invoke("run", name, "--workspace", tmp_path / name)
        assert told.exit_code == 2
        assert "dpdist show JOB" in told.stderr
        assert f"with the columns {', '.join(columns)};" in " ".join(told.stderr.split())
    assert "# File: " not in invoke("show", "doctorates").output


def test_the_table_of_the_readme_is_that_of_its_job(tmp_path: Path) -> None:
    """Figures within 1.5 standard errors of a run's, standard errors within 15 %. Control: 5 % higher means.

    Two runs differ by noise alone, of about .3 standard errors: a correct table fails in fewer than one run in 10,000.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^│ (\w+) +│ (\w+) +│ +([\d,.]+) │ +([\d,.]+) │ +([\d,.]+) │ +([\d,.]+) │$", text, re.MULTILINE)
    assert len(rows) == 4
    table = run("doctorates_tables", tmp_path / "run").tables["headline-field-sex"].query("estimator == 'parameters'")
    released = table.set_index(["field", "sex", "statistic"])[["estimate", "standard_error"]]

    def largest(growth: float) -> tuple[float, float]:
        """The largest distance in standard errors, and the largest difference of standard errors, as a share."""
        distances, ratios = [], []
        for field, sex, *figures in rows:
            count, count_error, mean, mean_error = (float(figure.replace(",", "")) for figure in figures)
            for statistic, value, error in (("count", count, count_error), ("mean", mean * growth, mean_error)):
                estimate, standard_error = released.loc[(field, sex, statistic)]
                distances.append(abs(value - estimate) / standard_error)
                ratios.append(abs(error / standard_error - 1.0))
        return max(distances), max(ratios)

    distance, ratio = largest(1.0)
    assert distance < 1.5
    assert ratio < 0.15
    assert largest(1.05)[0] > 1.5
