"""An approval in an object store that breaks off: no half release has a manifest, and the same command ends it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from object_server import BUCKET, ObjectServer
from small_release import JOB, survey

import dpdist
from dpdist.approval.holding import approve
from dpdist.core.minisign import SecretKey
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT
from dpdist.opening.verifying import problems
from dpdist.storage.objects import Objects


class BrokenOff(BaseException):
    """In place of a kill: nothing catches it."""


@pytest.fixture
def url(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/approval"


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many more changes to what is public or held the store takes; without a number, all of them."""
    left: list[int] = []
    put, delete = Objects.put, Objects.delete

    def counted(name: str) -> None:
        if left and name.startswith(("public/", "held/")):
            left[0] -= 1
            if left[0] < 0:
                raise BrokenOff

    def put_counted(self: Objects, name: str, data: bytes | Path) -> None:
        counted(name)
        put(self, name, data)

    def delete_counted(self: Objects, names: Sequence[str]) -> None:
        for name in names:
            counted(name)
        delete(self, names)

    monkeypatch.setattr(Objects, "put", put_counted)
    monkeypatch.setattr(Objects, "delete", delete_counted)
    return left


@pytest.mark.slow
def test_a_broken_approval_is_ended_by_the_same_command(
    url: str, s3: ObjectServer, tmp_path: Path, breaking: list[int]
) -> None:
    """Broken off later and later: before the first file, among files, before the manifest, among what is dropped."""
    key, numbers = SecretKey.from_os(), count()
    dpdist.run(JOB + "approval: required\n", url, survey(300))

    def public() -> dict[str, bytes]:
        return s3.objects("approval/public")

    size = len(s3.objects("approval/held"))
    for room in (0, 3, size - 2, size - 1, size, size + 3):
        breaking[:] = [room]
        with pytest.raises(BrokenOff):
            approve(url, key, "fine")
        if MANIFEST in public():
            folder = tmp_path / str(next(numbers))
            for name, content in public().items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            assert problems(folder, key.public) == []
        assert UNFIT not in public()
    breaking[:] = []
    assert approve(url, key, "fine") == f"{url}/public"
    assert {MANIFEST, SIGNATURE} <= public().keys()
    assert s3.objects("approval/held") == {}
    assert dpdist.open_release(url).statement["dataset"] == "small"
