"""The lease of a workspace in an object store: renewed while its holder lives, another's when it falls silent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from object_server import BUCKET, Link, ObjectServer

from dpdist.core.errors import WorkspaceError
from dpdist.storage.objects import LEASE, Lease, Objects, leased

_numbers = count()


@pytest.fixture
def objects(s3: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """Leases that live fast, in an empty place."""
    monkeypatch.setattr("dpdist.storage.objects.BEAT", 0.15)
    monkeypatch.setattr("dpdist.storage.objects.SILENCE", 1.5)
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return Objects(f"s3://{BUCKET}/lease/{next(_numbers)}")


def dead(objects: Objects) -> None:
    """What a killed run leaves."""
    held = Lease(objects, LEASE)
    held._ended.set()
    held._renewing.join()


def test_a_living_holder_keeps_others_out_and_its_end_lets_them_in(objects: Objects) -> None:
    with leased(objects) as held:
        with pytest.raises(WorkspaceError) as refused:
            Lease(objects, LEASE)
        held.check()
    assert "another run is using it (process" in refused.value.fault
    assert f"to clear it at once, delete {LEASE}" in refused.value.remedy
    assert objects.get(LEASE) is None
    with leased(objects) as held:
        held.check()


def test_a_silent_lease_is_taken_over_by_one_of_those_that_wait(objects: Objects) -> None:
    dead(objects)
    began = time.monotonic()

    def take(_: int) -> Lease | None:
        try:
            return Lease(Objects(objects.url), LEASE)
        except WorkspaceError:
            return None

    with ThreadPoolExecutor(3) as pool:
        held = [one for one in pool.map(take, range(3)) if one is not None]
    assert time.monotonic() - began >= 1.5
    assert len(held) == 1
    held[0].check()
    held[0].release()


def test_a_holder_notices_that_its_lease_was_removed_or_taken(objects: Objects) -> None:
    with leased(objects) as held:
        objects.delete([LEASE])
        with leased(Objects(objects.url)) as other:
            deadline = time.monotonic() + 30
            while not held._lost.is_set() and time.monotonic() < deadline:
                time.sleep(0.05)
            with pytest.raises(WorkspaceError, match="another run has taken it over"):
                held.check()
            other.check()


def test_a_cleared_lease_is_free_at_once(objects: Objects) -> None:
    dead(objects)
    objects.delete([LEASE])
    began = time.monotonic()
    with leased(objects):
        assert time.monotonic() - began < 1.5


def test_a_store_that_ignores_conditional_writes_is_refused(
    objects: Objects, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(s3.port, spoil=b"if-none-match")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
    with pytest.raises(WorkspaceError, match="the store ignores conditional writes"):
        Lease(Objects(objects.url), LEASE)
    link.cut()
