"""A job may extend another: its own keys stand before the base's, errors keep their file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import invoke, succeed
from tiny_survey import JOB, survey

from dpdist import parse_job
from dpdist.core.errors import JobError
from dpdist.job import Job
from dpdist.job.loading import load_job


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "base.yaml"
    path.write_text(JOB + "input: {path: survey.parquet}\n", encoding="utf-8")
    survey().to_parquet(tmp_path / "survey.parquet")
    return path


def extended(folder: Path, text: str, name: str = "job.yaml", base: str = "base.yaml") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"extends: {base}\n{text}", encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(JobError) as error:
        load_job(path)
    return str(error.value)


def test_a_job_that_extends_another_is_the_job_written_out(base: Path) -> None:
    """Mappings are merged, lists replaced, null takes away; the exact oracle is the same job in one file."""
    text = 'period: "2021"\nsurvey: {design_strata: null}\ncolumns: {sex: {levels: [f, m, x]}}\n'
    path = extended(base.parent, text)
    whole = JOB.replace('"2020"', '"2021"').replace(", design_strata: [field]", "").replace("[f, m]", "[f, m, x]")
    job, wanted = load_job(path), parse_job(whole + "input: {path: survey.parquet}\n")
    assert job.identity == wanted.identity
    assert job.model_dump(mode="json") == wanted.model_dump(mode="json") | {"input": job.input.model_dump()}
    assert "extends" not in job.public


def test_a_plan_names_what_differs_from_the_base(base: Path) -> None:
    text = 'period: "2021"\ninput: {path: survey-2021.parquet}\nrecord: {log_lik: never}\nsampler: {draws: 100}\n'
    survey().to_parquet("survey-2021.parquet")
    path = extended(base.parent, text)
    said = load_job(path).extends
    assert said is not None
    assert said.in_words == "base.yaml; differs in: period, input.path, record"
    found = succeed("plan", path)
    assert "base.yaml; differs in: period, input.path, record" in " ".join(found.split())
    assert "extends" not in invoke("plan", base).output


def test_a_key_that_is_set_counts_as_a_difference(base: Path) -> None:
    said = load_job(extended(base.parent, ""), ["period=1999"]).extends
    assert said is not None
    assert said.differs == ("period",)


def test_paths_of_a_base_are_from_its_own_folder(base: Path) -> None:
    """And those of the job from its folder; the same file named from both is no difference."""
    job = load_job(extended(base.parent / "later", "", base="../base.yaml"))
    assert Path(job.input.path or "").resolve() == (base.parent / "survey.parquet").resolve()
    later = extended(base.parent / "later", "input: {path: ../survey.parquet}\n", base="../base.yaml")
    said = load_job(later).extends
    assert said is not None
    assert said.differs == ()
    job = load_job(extended(base.parent / "later", "input: {path: own.parquet}\n", base="../base.yaml"))
    assert job.input.path == str(base.parent / "later" / "own.parquet")


def test_a_chain_of_five_is_read_and_one_of_six_refused(base: Path) -> None:
    for k in range(1, 7):
        extended(base.parent, f'period: "{2020 + k}"\n', f"{k}.yaml", "base.yaml" if k == 1 else f"{k - 1}.yaml")
    job = load_job(base.parent / "5.yaml")
    assert (job.period, job.dataset, job.extends and job.extends.path) == ("2025", "tiny", "4.yaml")
    assert "extends: a chain of more than 5 files, each extending the next" in refusal(base.parent / "6.yaml")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_is_refused(length: int, tmp_path: Path) -> None:
    for k in range(length):
        extended(tmp_path, "", f"{k}.yaml", f"{(k + 1) % length}.yaml")
    assert "remove one `extends` from the cycle" in refusal(tmp_path / "0.yaml")


def test_errors_keep_their_file_and_line(base: Path) -> None:
    """Of the base, of the job, and of a base's base."""
    base.write_text(base.read_text(encoding="utf-8").replace("draws: 100", "drawz: 100"), encoding="utf-8")
    extended(base.parent, "survey: {wight: w}\n", "middle.yaml")
    text = refusal(extended(base.parent, "tables:\n  - {naem: x}\n", base="middle.yaml"))
    assert "sampler.drawz: unknown key (base.yaml, line 13)" in text
    assert "survey.wight: unknown key (middle.yaml, line 2)" in text
    assert "tables.0.naem: unknown key (line 3)" in text
    base.write_text("a: [\n", encoding="utf-8")
    assert f"job {base}: 1 problem" in refusal(base.parent / "middle.yaml")


def test_what_is_left_to_do_in_a_base_is_named_with_its_file(base: Path) -> None:
    """Control: the same comment without the mark is none of dpdist's."""
    text = base.read_text(encoding="utf-8")
    base.write_text(text.replace("survey: {", "# TODO fill: a title\nsurvey: {"), encoding="utf-8")
    path = extended(base.parent, "# TODO confirm: the period\n")
    assert "TODO: left to be filled: a title (base.yaml, line 7)" in refusal(path)
    assert "TODO: left to be confirmed: the period (line 2)" in refusal(path)
    base.write_text(text.replace("survey: {", "# TODO a title\nsurvey: {"), encoding="utf-8")
    path.write_text("extends: base.yaml\n# todo: confirm\n", encoding="utf-8")
    assert load_job(path).dataset == "tiny"


def test_a_replaced_lists_lines_are_those_of_the_job(base: Path) -> None:
    """Control: no line of the base's list, which had more entries, is left over."""
    text = refusal(extended(base.parent, "tables: [{name: x, by: [field]}]\n"))
    assert "tables.0.statistics: missing key (line 2)" in text


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("none.yaml", "'none.yaml' cannot be read (FileNotFoundError)"),
        ("[a.yaml, b.yaml]", "not the path of one file"),
        ("''", "not the path of one file"),
        ("3", "not the path of one file"),
        (".", "cannot be read (IsADirectoryError)"),
        ("x" * 300, "cannot be read (OSError)"),
        ("latin.yaml", "cannot be read (UnicodeDecodeError)"),
    ],
)
def test_a_base_that_cannot_be_read_is_named_with_its_line(named: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("dataset: h\xe4lfte".encode("latin-1"))
    text = refusal(extended(tmp_path, "", base=named))
    assert "extends: " in text
    assert found in text
    assert "(line 1)" in text


def test_editors_know_extends_as_a_path() -> None:
    said = Job.model_json_schema()["properties"]["extends"]
    assert {"type": "string"}.items() <= said["anyOf"][0].items()
    assert "Base" not in Job.model_json_schema()["$defs"]


def test_an_inherited_title_has_the_jobs_own_period(base: Path, tmp_path: Path) -> None:
    base.write_text(base.read_text() + 'presentation: {title: "Incomes, {{period}}"}\n', encoding="utf-8")
    job = load_job(extended(tmp_path, 'period: "2031"\n'))
    assert job.presentation.title == "Incomes, 2031"
