"""What an object store refuses or fails at is told in words of our own: what to do, and no credential."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import invoke
from object_server import ALLOWED, BUCKET, KEY, SECRET, Link, ObjectServer, free_port

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import Scratch
from dpdist.storage.objects import Objects, is_url


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ObjectServer, dict[str, tuple[str, str]]]]:
    """A server that checks credentials, and its users."""
    server = ObjectServer(tmp_path_factory.mktemp("guarded"))
    rights = {"may": ALLOWED, "reads": ["s3:GetObject", "s3:ListBucket"], "nothing": ["s3:ListAllMyBuckets"]}
    users = {name: server.user(name, actions) for name, actions in rights.items()}
    server.guard()
    yield server, users
    server.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing in it of an object store but one try a request."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return monkeypatch


def refused(url: str = f"s3://{BUCKET}/errors", write: bool = False) -> WorkspaceError:
    """The error of a first look, or of a first write, which tells no credential."""
    with pytest.raises(WorkspaceError) as caught:
        Objects(url).put("x", b"x") if write else Objects(url).check()
    error = caught.value
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert not any(secret in str(error) for secret in (KEY, SECRET))
    return error


def test_a_user_with_the_stated_rights_can_do_everything(guarded, environment) -> None:
    server, users = guarded
    for name, value in server.environment(*users["may"]).items():
        environment.setenv(name, value)
    objects = Objects(f"s3://{BUCKET}/may")
    objects.check()
    assert objects.create("a/x", b"1") is not None
    assert objects.create("a/x", b"2") is None
    found = objects.get("a/x")
    assert found is not None
    assert objects.update("a/x", b"3", found.tag) is not None
    assert objects.update("a/x", b"4", found.tag) is None
    assert objects.exists("a/x")
    assert list(objects.below("a")) == ["a/x"]
    objects.delete(["a/x", "a/not-there"])
    assert objects.get("a/x") is None


def test_wrong_credentials_and_missing_rights_are_told(guarded, environment) -> None:
    server, users = guarded
    tried = {"unknown": ("AKIAUNKNOWN0000000000", SECRET), "wrong": (users["may"][0], SECRET), "nothing": users["nothing"]}
    for keys in tried.values():
        for name, value in server.environment(*keys).items():
            environment.setenv(name, value)
        error = refused()
        assert "access is denied" in error.fault
        assert "s3:GetObject, PutObject, DeleteObject, ListBucket" in error.remedy
        assert not any(key in str(error) for key in keys)
    for name, value in server.environment(*users["reads"]).items():
        environment.setenv(name, value)
    Objects(f"s3://{BUCKET}/errors").check()
    assert "access is denied" in refused(write=True).fault


def test_no_credentials_no_bucket_no_encryption_no_answer_are_told(s3: ObjectServer, environment) -> None:
    for name, value in s3.environment().items():
        environment.setenv(name, value)
    assert "there is no such bucket" in refused("s3://no-such-bucket/prefix").fault
    assert "there is no such bucket" in refused("s3://no-such-bucket/prefix", write=True).fault
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    assert refused().fault == "the store does not answer"
    assert "AWS_ENDPOINT_URL" in refused().remedy
    environment.delenv("AWS_ALLOW_HTTP")
    assert "does not use https" in refused().fault
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    environment.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert "no credentials" in refused().fault
    assert "AWS_SHARED_CREDENTIALS_FILE" in refused().remedy


@pytest.mark.parametrize("command", [["report"], ["report", "--confidential"], ["status"]], ids=" ".join)
def test_a_command_that_only_reads_a_store_does_not_say_that_it_resumes(s3: ObjectServer, environment, command) -> None:
    """Control: what writes there says so."""
    for name, value in s3.environment(port=free_port()).items():
        environment.setenv(name, value)
    ended = invoke(*command, f"s3://{BUCKET}/reading")
    assert ended.exit_code != 0
    assert "the store does not answer" in ended.output
    assert "AWS_ENDPOINT_URL" in ended.output
    assert "resumes" not in ended.output
    assert refused(write=True).remedy.endswith("; the same command resumes")


def test_a_short_loss_of_the_store_is_tried_again_by_the_library(s3: ObjectServer, environment) -> None:
    link = Link(s3.port)
    for name, value in s3.environment(port=link.port).items():
        environment.setenv(name, value)
    environment.delenv("AWS_MAX_ATTEMPTS")
    objects = Objects(f"s3://{BUCKET}/loss")
    objects.put("x", b"before")
    link.cut()
    from threading import Timer

    mending = Timer(1.0, link.mend)
    mending.start()
    objects.put("x", b"after")
    mending.join()
    found = objects.get("x")
    assert found is not None
    assert found.data == b"after"


def test_credentials_from_a_mounted_file_are_read_again_when_they_are_replaced(
    guarded, environment, tmp_path: Path
) -> None:
    server, users = guarded
    mounted = tmp_path / "credentials"
    for name, value in server.environment().items():
        if "ACCESS_KEY" not in name:
            environment.setenv(name, value)
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(mounted))
    assert "cannot be read" in refused().fault
    mounted.write_text("[default]\naws_access_key_id = only\n")
    error = refused()
    assert "no complete profile [default]" in error.fault
    assert "only" not in str(error).replace("only,", "")
    key, secret = users["may"]
    mounted.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    Objects(f"s3://{BUCKET}/mounted").check()


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("s3://key:secret@bucket/prefix", "holds more than scheme, bucket and prefix"),
        ("s3://bucket/prefix?token=secret", "holds more than scheme, bucket and prefix"),
        ("https://bucket/prefix", "'https' is none of s3, gs, az"),
        ("s3://", "no bucket"),
        ("s3://bucket/a//b", "an empty part"),
        ("s3://bucket/../b", "an empty part"),
        (Path("s3://bucket/prefix"), "a slash is missing"),
    ],
)
def test_a_url_that_names_no_place_is_refused_and_not_repeated_with_a_secret(place: str | Path, found: str) -> None:
    with pytest.raises(WorkspaceError, match=found) as caught:
        is_url(place)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)


def test_a_folder_is_no_url() -> None:
    assert not any(map(is_url, ["data", "/data/s3", Path("/data"), "./a:b"]))


def test_a_scratch_folder_is_private_and_a_dead_process_leaves_none(environment, tmp_path: Path) -> None:
    environment.setenv("DPDIST_SCRATCH", str(tmp_path))
    child = os.fork()
    if child == 0:
        held = Scratch()
        os._exit(0 if held.folder.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    (left,) = tmp_path.iterdir()
    living = Scratch()
    assert left not in tmp_path.iterdir()
    (own,) = tmp_path.iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    Scratch().remove()
    assert list(tmp_path.iterdir()) == [own]
    living.remove()
    assert list(tmp_path.iterdir()) == []
