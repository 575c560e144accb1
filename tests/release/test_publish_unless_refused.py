"""A release whose confidential verdict says "do not publish" waits for the custodian; `publish: always` must be written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke, succeed
from public_files import files_of
from small_release import JOB as TABLES, LAPLACE, LAPLACE_JOB as JOB, survey
from typer.testing import Result

import dpdist
import dpdist.release
from dpdist.core.errors import JobError
from dpdist.core.public_files import UNFIT
from dpdist.job import Job
from dpdist.storage.workspace import Workspace

HOLDING = True
"""Verdicts decide on releases: see conftest."""

UNLESS = "publish: unless_refused\n"
"""What a job without the key has, too."""
GOOD = JOB.replace('"3"', '"300"')
"""Noise is a hundredth of the sampling error, so no verdict is bad by chance: at ε = 3 one in a few dozen is."""
CLIPPED = JOB.replace("salary: {bounds: [0, 200000]", "salary: {bounds: [0, 30000]").replace('"3"', '"30"')
"""Nine salaries in ten are clipped, so all means are far below the direct ones."""
GATED = 'accept: {epsilon: "0.3", gates: [{measure: largest, of: count, limit: 0.3}]}\n'


def write(folder: Path) -> None:
    survey(300).to_parquet(folder / "survey.parquet")
    (folder / "clipped.yaml").write_text(CLIPPED)
    (folder / "good.yaml").write_text(GOOD)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def run(folder: Path, job: str = "clipped", *more: str) -> Result:
    return invoke("run", f"{folder}/{job}.yaml", "-w", f"{folder}/ws", "--input", f"{folder}/survey.parquet", *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders in which each of two jobs has run once, by their names."""
    place = tmp_path_factory.mktemp("finished")
    for job in ("clipped", "good"):
        (place / job).mkdir()
        write(place / job)
        run(place / job, job)
    return place


@pytest.fixture
def held(finished: Path, tmp_path: Path) -> Path:
    """A folder whose workspace holds what the verdict refused."""
    return Path(shutil.copytree(finished / "clipped", tmp_path / "held"))


@pytest.fixture
def passed(finished: Path, tmp_path: Path) -> Path:
    """A folder whose workspace has a public release."""
    return Path(shutil.copytree(finished / "good", tmp_path / "passed"))


def test_a_refused_release_is_held_with_exit_code_4(folder: Path) -> None:
    ended = run(folder)
    assert ended.exit_code == 4, ended.output
    assert not (folder / "ws" / "public").exists()
    last = ended.output.splitlines()[-1]
    assert last.startswith("Held, because the confidential verdict says 'do not publish'"), last
    assert f"`dpdist approve {folder}/ws --reason '…'`" in last
    assert invoke("verify", f"{folder}/ws/held").exit_code == 1
    assert "do not publish" in dpdist.report(folder / "ws", confidential=True)


def test_the_last_json_event_says_held_and_not_failed(folder: Path) -> None:
    ended = run(folder, "clipped", "--json")
    last = json.loads(ended.output.splitlines()[-1])
    assert (ended.exit_code, last) == (4, {"event": "held", "held": f"{folder}/ws/held"})


def test_control_a_release_without_a_fault_is_public_at_once(folder: Path) -> None:
    ended = run(folder, "good")
    assert ended.exit_code == 0, ended.output
    assert not (folder / "ws" / "held").exists()
    succeed("verify", f"{folder}/ws")
    assert not (folder / "ws" / "public" / UNFIT).exists()


def test_always_is_written_and_publishes_what_the_verdict_refuses(folder: Path) -> None:
    """Its statement names no choice. Control: what the key's absence means can be written."""
    (folder / "clipped.yaml").write_text(CLIPPED + "publish: always\n")
    assert run(folder).exit_code == 0
    release = dpdist.open_release(folder / "ws")
    assert "publication" not in release.statement
    assert json.loads((release / "manifest.json").read_text())["job"]["publish"] == "always"
    assert dpdist.parse_job(CLIPPED) == dpdist.parse_job(CLIPPED + UNLESS)


LOCAL = JOB.replace("laplace_composed, sensitivity: public", "laplace").replace("60], outside: clip", "60]")
"""Noise by the file's own sensitivities: no standard errors are published, so there is no verdict on them."""


@pytest.mark.parametrize("job", [LOCAL, TABLES + GATED])
def test_where_no_verdict_can_decide_the_default_is_always(job: str) -> None:
    assert dpdist.parse_job(job).publish == "always"


def test_a_release_of_a_version_without_the_default_was_published_always(folder: Path) -> None:
    """The stored job of 0.2.0 has no such key; neither do tables made again from it say that a verdict decided."""
    (folder / "clipped.yaml").write_text(CLIPPED + "publish: always\n")
    run(folder)
    released = folder / "ws" / "public" / "released" / "job.json"
    before = json.loads(released.read_text())
    assert before.pop("publish") == "always"
    stored = Job.stored(json.dumps(before))
    assert (stored.publish, stored.identity) == ("always", dpdist.load_job(folder / "clipped.yaml").identity)
    (folder / "labels.yaml").write_text(CLIPPED + "presentation: {title: Salaries}\n")
    assert invoke("publish", f"{folder}/ws", "--job", f"{folder}/labels.yaml").output.startswith("Published again")
    assert "publication" not in dpdist.open_release(folder / "ws").statement


def test_python_returns_a_release_that_says_that_it_is_held(folder: Path) -> None:
    assert dpdist.run(folder / "clipped.yaml", folder / "ws", folder / "survey.parquet").held
    assert not dpdist.run(folder / "good.yaml", folder / "good", folder / "survey.parquet").held


def test_statement_and_page_say_that_the_choice_is_in_no_epsilon(finished: Path) -> None:
    """The same words whether the verdict held the release or not, since they must not tell which."""
    public, held = finished / "good" / "ws" / "public", finished / "clipped" / "ws" / "held"
    passed = dpdist.open_release(public).statement["publication"]
    assert passed == dpdist.open_release(held).statement["publication"]
    assert "ε does not cover this" in passed
    assert passed in (public / "index.html").read_text()


def test_the_custodian_approves_with_a_reason_and_without_a_key(held: Path) -> None:
    released = files_of(held / "ws" / "held")
    assert invoke("approve", f"{held}/ws").exit_code == 2
    ended = invoke("approve", f"{held}/ws", "--reason", "clipping is stated on the page")
    assert (ended.exit_code, f"published: {held}/ws/public" in ended.output) == (0, True), ended.output
    assert files_of(held / "ws" / "public") == released
    assert not (held / "ws" / "held").exists()
    succeed("verify", f"{held}/ws")
    (decision,) = json.loads((held / "ws" / "confidential" / "decisions.json").read_text())
    assert (decision["decision"], decision["reason"]) == ("approved", "clipping is stated on the page")
    assert run(held).exit_code == 0, "the same run, started again, publishes what was approved"
    assert files_of(held / "ws" / "public") == released


def test_an_approval_is_of_the_held_release_alone(held: Path) -> None:
    """A decision that names another manifest publishes nothing."""
    release = json.loads((held / "ws" / "held" / "manifest.json").read_text())["release"]
    decision = {"release": release, "decision": "approved", "reason": "fine", "date": "2026-01-01", "manifest": "0" * 64}
    (held / "ws" / "confidential" / "decisions.json").write_text(json.dumps([decision]))
    assert run(held).exit_code == 2
    assert not (held / "ws" / "public").exists()


def test_what_the_custodian_refused_stays_held(held: Path) -> None:
    succeed("approve", f"{held}/ws", "--refuse", "--reason", "too far off")
    assert run(held).exit_code == 4
    assert not (held / "ws" / "public").exists()


def test_published_again_it_stays_where_it_was(held: Path) -> None:
    """`publish` sees no record, so it makes no new verdict: held stays held, public stays public."""
    (held / "labels.yaml").write_text(CLIPPED + "presentation: {title: Salaries}\n")
    assert invoke("publish", f"{held}/ws", "--job", f"{held}/labels.yaml").output.startswith("Held")
    assert not (held / "ws" / "public").exists()
    invoke("approve", f"{held}/ws", "--reason", "clipping is stated on the page")
    assert invoke("publish", f"{held}/ws").output.startswith("Published again")
    assert not (held / "ws" / "held").exists()


def test_a_signature_stays_when_the_same_run_publishes_the_same_bytes(passed: Path) -> None:
    invoke("keygen", f"{passed}/head")
    succeed("sign", f"{passed}/ws", "--key", f"{passed}/head")
    before = files_of(passed / "ws" / "public")
    assert run(passed, "good").exit_code == 0
    assert files_of(passed / "ws" / "public") == before


class Killed(BaseException):
    """In place of a kill: nothing catches it."""


@pytest.mark.parametrize(("job", "code"), [("good", 0), ("clipped", 4)])
@pytest.mark.parametrize("step", ["evaluate", "publish_unless_refused"])
def test_killed_before_the_verdict_the_same_command_ends_with_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, job: str, code: int, step: str
) -> None:
    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(dpdist.release, step, kill)
        with pytest.raises(Killed):
            dpdist.run(folder / f"{job}.yaml", folder / "ws", folder / "survey.parquet")
    space = Workspace.of_place(folder / "ws")
    assert not space.public.exists(), "nothing is public before the verdict"
    if step == "evaluate":
        early = invoke("approve", str(folder / "ws"), "--reason", "early")
        assert (early.exit_code, space.public.exists()) == (1, False)
        assert "no evaluation" in early.output
    before = files_of(space.held_release)
    assert run(folder, job).exit_code == code
    assert files_of(space.newest) == before


def test_a_replay_is_never_public_and_needs_no_verdict(held: Path) -> None:
    words = ["run", f"{held}/clipped.yaml", "-w", f"{held}/again", "--input", f"{held}/survey.parquet"]
    succeed(*words, "--replay", f"{held}/ws/confidential")
    assert (held / "again" / "public" / UNFIT).exists()
    assert files_of(held / "again" / "public") == files_of(held / "ws" / "held")


def test_beside_approval_every_release_is_held_for_a_key(folder: Path) -> None:
    """`init` writes `publish`, and who adds `approval` to its job leaves it there."""
    (folder / "good.yaml").write_text(GOOD + UNLESS + "approval: required\n")
    assert run(folder, "good").exit_code == 0
    assert invoke("approve", f"{folder}/ws", "--reason", "fine").exit_code == 2
    statement = dpdist.open_release(folder / "ws" / "held").statement
    assert ("approval" in statement, "publication" in statement) == (True, False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("publish: maybe\n", "always"),
        ("publish: true\n", "always"),
        (UNLESS + GATED, "gates"),
        (UNLESS + "mechanism: {name: laplace}\n", "no verdict"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(more: str, words: str) -> None:
    job = JOB.replace(f"mechanism: {LAPLACE}\n", "") if "mechanism" in more else JOB
    with pytest.raises(JobError, match=words) as refused:
        dpdist.parse_job(job + more)
    assert "publish" in {problem.where for problem in refused.value.problems}
