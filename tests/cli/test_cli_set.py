"""Keys set on the command line stand before the job's own, in every verb that takes a job; errors name the option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoke, succeed
from tiny_survey import JOB, survey

from dpdist.core.errors import JobError
from dpdist.job.loading import find_job, load_job


def command(*said: str) -> tuple[int, str]:
    found = invoke(*said)
    return found.exit_code, found.output


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job in a folder, its survey in another one, from which commands are given."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "here").mkdir()
    survey().to_parquet(tmp_path / "here" / "survey.parquet")
    path = tmp_path / "jobs" / "job.yaml"
    path.write_text(JOB + "input: {path: absent.parquet}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    return path


def test_a_key_that_is_set_stands_before_the_jobs_own(job: Path) -> None:
    """Control: the job without it. A number serves as a period, as it does in a file."""
    assert load_job(job).period == "2020"
    changed = load_job(job, ["period=2015", "budget.epsilon=1/3", "tables.0.by=[sex]", "record.log_lik=never"])
    assert (changed.period, str(changed.budget.epsilon), changed.tables[0].by) == ("2015", "1/3", ("sex",))
    assert (changed.record.log_lik, load_job(job).record.log_lik) == ("never", "auto")
    assert changed.columns == load_job(job).columns


def test_null_takes_a_key_away(job: Path) -> None:
    assert load_job(job, ["survey.design_strata=null"]).survey.design_strata == ()
    assert load_job(job, ["sampler="]).sampler.draws != 100


def test_a_path_that_is_set_is_from_the_present_folder_and_one_of_the_file_from_its_own(job: Path) -> None:
    assert load_job(job).input.path == str(job.parent / "absent.parquet")
    assert load_job(job, ["input.path=survey.parquet"]).input.path == "survey.parquet"
    assert load_job(job, ["input={path: survey.parquet}"]).input.path == "survey.parquet"


def test_data_of_a_shipped_job_are_from_the_present_folder(job: Path) -> None:
    """Nobody keeps files among the package's own; control: the same job named by its path."""
    reference = load_job("nscg_strict").reference
    assert reference is not None
    assert reference.path == "nscg2010.parquet"
    reference = load_job(find_job("nscg_strict")).reference
    assert reference is not None
    assert reference.path == str(find_job("nscg_strict").parent / "nscg2010.parquet")


def test_every_verb_that_takes_a_job_takes_keys(job: Path) -> None:
    path = ["--set", "input.path=survey.parquet"]
    assert command("validate", str(job))[0] == 2
    succeed("validate", str(job), *path)
    assert "120" in command("plan", str(job), *path)[1]
    code, text = command("run", str(job), "--workspace", "ws", *path, "--set", "period=1999", "--quiet")
    assert (code, text) == (0, "")
    assert json.loads(Path("ws/public/statement.json").read_text(encoding="utf-8"))["period"] == "1999"
    title = ["--set", "period=1999", "--set", "presentation.title=Other words"]
    assert command("publish", "ws", "--job", str(job), *path, *title, "--quiet") == (0, "")
    assert "Other words" in Path("ws/public/index.html").read_text(encoding="utf-8")
    succeed("cluster", "size", str(job), *path)
    code, text = command("calibrate", str(job), "--out", "c.yaml", "--set", "sampler.drawz=1")
    assert (code, "did you mean 'draws'" in text) == (2, True)


BAD = {
    "an unknown key": ("sampler.drawz=3", "sampler.drawz: unknown key (--set)", "did you mean 'draws'?"),
    "an unknown section": ("samplr.draws=3", "samplr: unknown key (--set)", "did you mean 'sampler'?"),
    "a wrong value": ("sampler.draws=many", "sampler.draws: 'many' (--set)", "write one"),
    "no value": ("period", "--set: 'period' is not a key with a value", "write the key, = and the value"),
    "no key": ("=3", "--set: '=3' is not a key with a value", "write the key, = and the value"),
    "an empty part": ("sampler..draws=3", "is not a key with a value", "write the key, = and the value"),
    "no YAML": ("sampler.draws=[", "--set sampler.draws: 1 problem", "check indentation and quotes"),
    "within a text": (
        "period.year=3",
        "period: a single value, which cannot contain a key 'year' (--set)",
        "set period itself",
    ),
    "past a list": ("tables.7.name=x", "tables: the list has no '7' (--set)", "set the whole list"),
    "a name within a list": ("tables.first.name=x", "tables: the list has no 'first' (--set)", "set the whole list"),
    "a base": ("extends=a.yaml", "extends: it cannot be set (--set)", "write it in a job file"),
    "a key taken away": ("period=", "period: missing key", "add 'period'"),
    "a control character": ('period="\\e[2J"', "a control character in", "delete it"),
}


@pytest.mark.parametrize(("setting", "found", "remedy"), BAD.values(), ids=BAD)
def test_what_is_wrong_with_a_setting_is_said(setting: str, found: str, remedy: str, job: Path) -> None:
    code, text = command("validate", str(job), "--set", setting)
    assert code == 2
    assert found in text
    assert remedy in text
    assert "\x1b" not in text


def test_an_error_of_the_file_still_names_its_line(job: Path) -> None:
    """Beside one of a setting; control: the setting's has no line."""
    job.write_text(job.read_text(encoding="utf-8").replace("draws: 100", "drawz: 100"), encoding="utf-8")
    with pytest.raises(JobError) as error:
        load_job(job, ["survey.wight=w"])
    places = {problem.where: problem.places for problem in error.value.problems}
    assert places == {"sampler.drawz": ("line 13",), "survey.wight": ("--set",)}


def test_keys_without_a_job_are_refused_by_publish(job: Path) -> None:
    code, text = command("publish", "ws", "--set", "period=1")
    assert (code, "name the job by --job" in text) == (2, True)


def test_the_version_is_that_of_the_package() -> None:
    code, text = command("--version")
    assert (code, text.split()[0]) == (0, "dpdist")
    assert text.split()[1][0].isdigit()


def test_a_shipped_job_is_shown_as_it_stands(job: Path) -> None:
    for name in ("nscg_strict", str(job)):
        assert command("show", name) == (0, find_job(name).read_text(encoding="utf-8"))
    code, text = command("show", "doctrates")
    assert (code, "did you mean 'doctorates'?" in text) == (2, True)


def test_what_is_shown_cannot_drive_the_terminal(job: Path) -> None:
    job.write_text("a: \x1b[2J :smile: [bold]\n", encoding="utf-8")
    code, text = command("show", str(job))
    assert (code, "\x1b" in text, ":smile: [bold]" in text) == (0, False, True)
