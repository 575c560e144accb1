"""Releases in an object store (moto's S3 server, see object_server): the bytes of one in a folder, resumed after kills;
refused or failed in words that tell what to do, and no credential."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest
from campaign import OF_A_REPLAY, Ended, Run, Server, Survey, arguments
from object_server import BUCKET, KEY, SECRET, Link, ObjectServer
from test_storage_faults import SMALL_BLOCKS

import dpdist as api
from dpdist.core.progress import Event
from dpdist.core.records import BATCH_STRATA
from dpdist.job.loading import load_job
from dpdist.storage.objects import LEASE, Objects, leased

_numbers = count()
CHANGES = {
    *("confidential/identity.json", "confidential/marks/identity.json", "confidential/log", "confidential/report.html"),
    *("status.json", *OF_A_REPLAY),
}
"""Objects that tell of the run, not of the release, and a page that no store has; every run here is a replay."""


@pytest.fixture(scope="module")
def store(s3: ObjectServer) -> Iterator[ObjectServer]:
    """The server, in the environment of every command and process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        yield s3


@pytest.fixture(scope="module")
def command(store: ObjectServer) -> Iterator[Server]:
    """The command line, in forks of one process that has the store in its environment."""
    server = Server()
    yield server
    server.close()


def place() -> tuple[str, str]:
    """A prefix of its own, and its URL."""
    prefix = f"faults/{next(_numbers)}"
    return prefix, f"s3://{BUCKET}/{prefix}"


def files(workspace: Path) -> dict[str, bytes]:
    found = (path for path in workspace.rglob("*") if path.is_file() and "lock" not in path.name)
    return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in found}


def differing(here: dict[str, bytes], there: dict[str, bytes]) -> set[str]:
    return {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)}


def public(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in objects.items() if name.startswith("public/")}


def silent(*ended: Ended) -> bool:
    """True if no credential was told."""
    return not any(secret in one.text for one in ended for secret in (KEY, SECRET))


@pytest.mark.long
def test_workers_publish_many_strata_from_the_store_and_leave_no_piece_there(
    tmp_path: Path, store: ObjectServer, command: Server
) -> None:
    """Batches of strata are pieces of work, whose files workers take from the store."""
    survey, (prefix, url) = Survey(tmp_path, (30,) * (BATCH_STRATA + 2), draws=100, log_lik="never"), place()
    assert command(*arguments(survey.job(), tmp_path / "folder")).code == 0
    tasks = list[object]()

    def hear(event: Event) -> None:
        tasks.extend([event.unit["piece"]] if event.kind == "task" and event.unit["task"] == "WorkPiece" else [])

    job = load_job(survey.job("dask", workers=2))
    api.run(job, url, replay=tmp_path / "folder" / "confidential", listener=hear)
    assert sorted(tasks) == [0, 0, 1, 1]
    left = store.objects(prefix)
    assert not any("/pieces/" in name for name in left)
    here = {f"public/{name}": content for name, content in files(tmp_path / "folder" / "public").items()}
    assert differing(here, public(left)) - OF_A_REPLAY == set()


@pytest.mark.long
def test_a_release_leaves_the_objects_that_it_leaves_in_a_folder_and_every_verb_knows_them(
    few: Survey, undisturbed: Path, store: ObjectServer, command: Server
) -> None:
    prefix, url = place()
    ended = command(*arguments(few.job(), url, "--replay", undisturbed / "confidential"))
    assert (ended.code, ended.text) == (0, "")
    made = store.objects(prefix)
    assert differing(made, files(undisturbed)) == CHANGES
    assert b"finished" in made["confidential/log"]
    assert not any(secret.encode() in content for content in made.values() for secret in (KEY, SECRET))
    status, report = command("status", url, "--json"), command("report", url, "--confidential")
    assert json.loads(status.text)["state"] == "finished"
    (title, _, said), (name, _, original) = (
        text.partition("guarantee") for text in (report.text, command("report", undisturbed, "--confidential").text)
    )
    assert "not for publication" in title
    assert name.strip() in title
    assert said.split() == original.split()
    store.client("s3").delete_object(Bucket=BUCKET, Key=f"{prefix}/public/tables/salaries.csv")
    again = command("publish", url, "--quiet")
    assert again.code == 0, again
    assert public(store.objects(prefix)) == public(made)
    assert command("audit", url, "--records", "1", "--quiet").code == 0
    assert "confidential/evaluation/audit-fixed_point.parquet" in store.objects(prefix)
    tensor = api.open_log_lik(url)
    assert tensor["log_lik"].equals(api.open_log_lik(undisturbed)["log_lik"])
    replayed, other = place()
    assert command(*arguments(few.job(), other, "--replay", f"{url}/confidential")).code == 0
    assert public(store.objects(replayed)) == public(made)
    assert public(made)["public/NOT_FOR_PUBLICATION.txt"].startswith(b"This folder was made with --replay")
    assert os.listdir(store.folder) == []


@pytest.mark.long
def test_two_workers_leave_the_same_objects(few: Survey, undisturbed: Path, store: ObjectServer) -> None:
    prefix, url = place()
    started = Run(few.job("dask", workers=2), url, "--replay", undisturbed / "confidential")
    assert started.until(lambda: len(started.workers()) == 2)
    lines = [" ".join(process.cmdline()) for process in (psutil.Process(started.process.pid), *started.family())]
    assert not any(secret in line for line in lines for secret in (KEY, SECRET))
    ended = started.end()
    assert (ended.code, silent(ended)) == (0, True), ended
    assert differing(store.objects(prefix), files(undisturbed)) == {
        *CHANGES,
        "confidential/job.json",
        "confidential/marks/records.json",
    }


SLOW = pytest.mark.slow
MOMENTS = [
    pytest.param("marks/.stores", 0, True, marks=SLOW),
    pytest.param("strata-000001/.stratum", 1, True),
    pytest.param("manifest.json", 3, True),
    pytest.param("strata-000002/.stratum", 2, False, marks=SLOW),
]


@pytest.mark.parametrize(("moment", "done", "cleared"), MOMENTS)
@pytest.mark.long
def test_a_killed_driver_resumes_and_writes_no_finished_stratum_again(
    few: Survey, undisturbed: Path, store: ObjectServer, command: Server, moment: str, done: int, cleared: bool
) -> None:
    """Its lease is cleared, as the remedy says, or waited for until it is known as dead."""
    prefix, url = place()
    order = arguments(few.job(), url, "--replay", undisturbed / "confidential")
    assert command(*order, die_at=moment).code == -9
    before = store.objects(prefix)
    assert LEASE in before
    assert "public/manifest.json" not in before
    marks = [name for name in before if name.startswith("confidential/marks/strata-")]
    finished = {name for mark in marks for name in (mark, *(f"confidential/{n}" for n in json.loads(before[mark])))}
    if cleared:
        Objects(url).delete([LEASE])
    assert command(*order).code == 0
    assert differing(store.objects(prefix), files(undisturbed)) == CHANGES
    written = store.versions(prefix)
    assert {name for name in finished if written[name] > 1} == set()
    assert len(marks) == done


@pytest.mark.long
def test_giant_strata_keep_their_journal_there_and_resume_from_it(
    store: ObjectServer, command: Server, tmp_path: Path
) -> None:
    prefix, url = place()
    survey = Survey(tmp_path, (400, 40), draws=100)
    assert command(*arguments(survey.job(), tmp_path / "peace"), constants=SMALL_BLOCKS, same_keys=True).code == 0
    order = arguments(survey.job(), url, "--replay", tmp_path / "peace" / "confidential")
    assert command(*order, constants=SMALL_BLOCKS, die_at=".004-00002").code == -9
    before = {name for name in store.objects(prefix) if "/journal/" in name}
    assert {name.rpartition("/")[2] for name in before} >= {"003.npz", "004.request", "004-00001.npz"}
    Objects(url).delete([LEASE])
    assert command(*order, constants=SMALL_BLOCKS).code == 0
    assert differing(store.objects(prefix), files(tmp_path / "peace")) == CHANGES
    written = store.versions(prefix)
    assert {name for name in before if written[name] > 1} <= {"confidential/journal/strata-000000/004.request"}


@pytest.mark.long
def test_a_second_driver_is_refused_and_told_how_to_clear_the_lease(
    few: Survey, store: ObjectServer, command: Server
) -> None:
    prefix, url = place()
    with leased(Objects(url)):
        for order in (arguments(few.job(), url), ("publish", url, "--quiet")):
            ended = command(*order)
            assert (ended.code, ended.clear, silent(ended)) == (1, True, True), ended
            assert "another run is using it" in ended.text
            assert f"to clear it at once, delete {LEASE}" in ended.text
    assert set(store.objects(prefix)) == set()


def test_another_job_or_foreign_objects_are_refused(
    few: Survey, store: ObjectServer, command: Server, tmp_path: Path
) -> None:
    prefix, url = place()
    store.client("s3").put_object(Bucket=BUCKET, Key=f"{prefix}/public/mine.txt", Body=b"mine")
    ended = command(*arguments(few.job(), url))
    assert (ended.code, ended.clear) == (2, True), ended
    assert "contains a folder 'public' that no run has made" in ended.text
    assert set(store.objects(prefix)) == {"public/mine.txt"}


def disturb(store: ObjectServer, prefix: str, act: Callable[[], None]) -> threading.Thread:
    """Act once the records are stored."""

    def wait() -> None:
        mark = f"{prefix}/confidential/marks/records.json"
        deadline, client = time.monotonic() + 60, store.client("s3")
        while time.monotonic() < deadline:
            if client.list_objects_v2(Bucket=BUCKET, Prefix=mark).get("KeyCount"):
                act()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_store_that_is_away_for_a_moment_is_waited_for_and_one_that_stays_away_is_told(
    few: Survey, undisturbed: Path, store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, replay = Link(store.port), ("--replay", undisturbed / "confidential")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")

    def away() -> None:
        link.cut()
        time.sleep(1.0)
        link.mend()

    prefix, url = place()
    linked, disturbing = Server(), disturb(store, prefix, away)
    assert linked(*arguments(few.job(), url, *replay)).code == 0
    disturbing.join()
    assert differing(store.objects(prefix), files(undisturbed)) == CHANGES

    prefix, url = place()
    disturbing = disturb(store, prefix, link.cut)
    ended = Run(few.job(), url, *replay, "--log", tmp_path / "log", env={"AWS_MAX_ATTEMPTS": "2"}).end()
    disturbing.join()
    logged = (tmp_path / "log").read_text()
    assert (ended.code, ended.clear, silent(ended, Ended(1, logged))) == (1, True, True), ended
    for text in (ended.text, logged):
        assert "the store does not answer" in text
    assert "the same command resumes" in ended.text
    link.mend()
    store.client("s3").delete_object(Bucket=BUCKET, Key=f"{prefix}/{LEASE}")
    assert linked(*arguments(few.job(), url, *replay)).code == 0
    assert differing(store.objects(prefix), files(undisturbed)) == CHANGES
    linked.close()
    link.cut()


@pytest.mark.slow
def test_a_damaged_object_of_a_stratum_costs_a_second_command_and_gives_the_same_bytes(
    few: Survey, undisturbed: Path, store: ObjectServer, command: Server
) -> None:
    prefix, url = place()
    order = arguments(few.job(), url, "--replay", undisturbed / "confidential")
    assert command(*order).code == 0
    for name in ("parts/strata-000001/stratum.json", "records/records.arrow"):
        store.client("s3").put_object(Bucket=BUCKET, Key=f"{prefix}/confidential/{name}", Body=b"damaged")
        ended = command(*order)
        assert (ended.code, ended.clear) == (1, True), ended
        assert f"{name} is missing, or its checksum differs from that in its mark" in ended.text
        assert command(*order).code == 0
        assert differing(store.objects(prefix), files(undisturbed)) == CHANGES
