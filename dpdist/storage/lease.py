"""For `storage.bucket`: lets one run at a time use an object store, by an object that it renews.

Clocks are not compared: a process that finds a lease watches whether it is renewed. The lease only saves double work. That
two runs cannot mix their releases follows from conditional puts of key, identity, noise and completion records.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from dpdist.core.errors import WorkspaceError
from dpdist.storage.objects import Objects, Tag

LEASE = "confidential/lease.json"
BEAT = 3.0
"""Seconds between two renewals."""
SILENCE = 15.0
"""Seconds without renewal after which a lease is void."""


class Lease:
    """A lease that this process holds until it releases it or another run takes it over."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects, self._name, self._token, self._beats = objects, name, uuid4().hex, 0
        self._ended, self._lost = threading.Event(), threading.Event()
        self._renewed = time.monotonic()
        self._tag = self._taken()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raises `WorkspaceError` if the lease is lost. It asks the store if the last renewal is long ago."""
        if time.monotonic() - self._renewed > SILENCE and self._mine() is None:
            self._lost.set()
        if self._lost.is_set():
            fault = f"another run has taken it over, or somebody has removed {self._name}"
            raise WorkspaceError(self._objects.url, fault, "let one run work on it; the same command resumes")

    def release(self) -> None:
        self._ended.set()
        self._renewing.join()
        with suppress(WorkspaceError):
            if not self._lost.is_set() and self._mine() is not None:
                self._objects.delete([self._name])

    def _taken(self) -> Tag:
        lease = self._objects.get(self._name)
        tag = self._objects.create(self._name, self._text()) if lease is None else None
        if tag is not None and self._objects.create(self._name, self._text()) is not None:
            unsafe = "the store ignores conditional writes (If-None-Match): two writers could mix what they write"
            raise WorkspaceError(self._objects.url, unsafe, "use a store that knows them, or a shared folder", 2)
        if tag is None and (tag := self._mine()) is None:
            old, content = self._silent(), self._text()
            tag = self._objects.update(self._name, content, old) if old else self._objects.create(self._name, content)
            tag = tag or self._mine()
        if tag is None:
            raise self._held({})
        return tag

    def _silent(self) -> Tag | None:
        """The tag of a lease that was not renewed while this process watched; None if the lease is gone.

        Raises `WorkspaceError` if it was renewed.
        """
        seen: Tag | None = None
        deadline = time.monotonic() + SILENCE
        while time.monotonic() < deadline:
            lease = self._objects.get(self._name)
            if lease is None:
                return None
            if seen is not None and lease.tag != seen:
                raise self._held(_parsed(lease.data))
            seen = lease.tag
            time.sleep(BEAT / 3)
        return seen

    def _held(self, lease: dict[str, Any]) -> WorkspaceError:
        holder = f" (process {lease['process']} on {lease['host']})" if {"process", "host"} <= lease.keys() else ""
        remedy = f"wait for that run to end, or end it: {SILENCE:g} s later its lease is free; to clear it at once, delete "
        return WorkspaceError(self._objects.url, f"another run is using it{holder}", remedy + self._name)

    def _renew(self) -> None:
        while not self._ended.wait(BEAT):
            self._beats += 1
            with suppress(WorkspaceError):  # if the store cannot be reached, a later call checks again
                sent = time.monotonic()
                tag = self._objects.update(self._name, self._text(), self._tag) or self._mine()
                if tag is None:
                    return self._lost.set()
                self._tag, self._renewed = tag, sent
        return None

    def _mine(self) -> Tag | None:
        """The tag of the lease if this process holds it, else None.

        A repeated put may have been refused only because the first one succeeded, so the lease itself is read.
        """
        lease = self._objects.get(self._name)
        return lease.tag if lease is not None and _parsed(lease.data).get("token") == self._token else None

    def _text(self) -> bytes:
        content = {"host": socket.gethostname(), "process": os.getpid(), "token": self._token, "beats": self._beats}
        return json.dumps(content).encode()


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def leased(objects: Objects, name: str = LEASE) -> Iterator[Lease]:
    """Holds a lease during the block. Raises `WorkspaceError` if another run holds it."""
    lease = Lease(objects, name)
    try:
        yield lease
    finally:
        lease.release()
