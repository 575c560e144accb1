"""Releases in a real S3 server (MinIO, built from source): the bytes of a folder, also where requests fail; few lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from campaign import Survey, run
from object_server import BUCKET, KEY, SECRET
from real_store import Way, minio

from dpdist.core.errors import WorkspaceError
from dpdist.storage.objects import Objects, leased
from dpdist.storage.workspace import Workspace

pytestmark = pytest.mark.slow
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with minio(tmp_path_factory.mktemp("minio")) as port:
        yield port


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "DPDIST_SCRATCH": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def place() -> str:
    return f"s3://{BUCKET}/real/{next(_numbers)}"


def public(url: str, to: Path) -> dict[str, bytes]:
    with Workspace.opened(url) as space:
        space.store.download_folder(space.public)
        return {p.relative_to(space.public).as_posix(): p.read_bytes() for p in space.public.rglob("*") if p.is_file()}


def of_folder(workspace: Path) -> dict[str, bytes]:
    folder = workspace / "public"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_conditional_writes_and_the_lease_hold(server: int, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server}")
    objects = Objects(place())
    tag = objects.create("one", b"first")
    assert tag is not None
    assert objects.create("one", b"second") is None
    newer = objects.update("one", b"third", tag)
    assert newer is not None
    assert objects.update("one", b"fourth", tag) is None, "of a version that is no more"
    kept = objects.get("one")
    assert kept is not None
    assert kept.data == b"third"
    with leased(objects, "lease"), pytest.raises(WorkspaceError, match="another run is using it"), leased(objects, "lease"):
        pass
    assert objects.get("lease") is None


@pytest.mark.parametrize("failing", [0.0, 0.01, 0.05])
def test_a_release_has_the_bytes_of_one_in_a_folder_though_requests_fail(
    server: int, environment: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest, failing: float
) -> None:
    survey, way, url = Survey(tmp_path, (30,) * 100, draws=100, log_lik="never"), Way(server, failing), place()
    request.addfinalizer(way.close)
    assert run(survey.job(), tmp_path / "folder").code == 0
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{way.port}")
    ended = run(survey.job(), url, "--replay", tmp_path / "folder" / "confidential")
    again = run(survey.job(), tmp_path / "again", "--replay", tmp_path / "folder" / "confidential")
    assert (ended.code, again.code) == (0, 0), ended.text
    print(f"{way.requests} requests, {way.lists} lists, {way.refused} refused, {way.lost} answers lost")
    assert public(url, tmp_path) == of_folder(tmp_path / "again")
    assert (way.refused > 0 and way.lost > 0) == (failing > 0)
    assert way.lists < 60, "for a hundred strata; in tasks, not in strata squared"
