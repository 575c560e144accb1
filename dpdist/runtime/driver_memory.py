"""Refusal of a run whose driver ran out of memory before, at the same place and with the same limit.

The kernel ends a process without a word (exit code 137), and whoever started it starts it again. So a driver leaves in its
workspace how much memory it has taken, and of how much. A start that finds twice that memory was short says so instead,
with exit code 2, which a Kubernetes Job takes as final.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpdist.core.errors import DpdistError, TaskError
from dpdist.core.files import write_json
from dpdist.core.this_process import container_memory, machine_memory, peak_memory
from dpdist.storage.workspace import Workspace

FILE = "driver-memory.json"
MOST_BY_MEMORY = 2
"""Number of times that memory may end a driver with the same limit, before a start is refused."""
SHORT = 0.7
"""Share of the limit from which on a driver that ended without a word was ended by memory."""
GROWN = 1.05
"""Factor by which the peak has to grow to be written again."""
_INTERVAL = 0.5


@contextmanager
def remembered_memory(space: Workspace) -> Iterator[None]:
    """Within the block, the driver's peak memory is kept in the workspace. It is forgotten when the block ends.

    Raises `TaskError` if memory has ended the driver twice with this limit; the start after that one is tried again.
    """
    path, limit = space.confidential / FILE, _limit()
    before = _before(space, path)
    deaths = int(before.get("deaths", 0)) if before.get("limit") == limit else 0
    if before and before.get("limit") == limit and int(before["peak"]) >= SHORT * limit:
        deaths += 1
    if deaths >= MOST_BY_MEMORY:
        _forget(space, path)
        raise _refused(limit)
    ended = threading.Event()
    thread = threading.Thread(target=_remember, args=(space, path, limit, deaths, ended), name="dpdist memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _forget(space, path)


def _limit() -> int:
    """The memory, in bytes, of this process's container, or else of the machine."""
    return container_memory() or machine_memory()


def _before(space: Workspace, path: Path) -> dict[str, Any]:
    """What an earlier driver left that did not come to its end; empty if there is none."""
    with suppress(OSError, ValueError, DpdistError):
        if space.store.download(path, anew=True):
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return state if {"limit", "peak", "deaths"} <= state.keys() else {}
    return {}


def _remember(space: Workspace, path: Path, limit: int, deaths: int, ended: threading.Event) -> None:
    recorded = 0
    while True:
        peak = peak_memory()
        if peak > GROWN * recorded:
            with suppress(OSError, DpdistError):
                write_json(path, {"limit": limit, "peak": peak, "deaths": deaths}, mode=0o600)
                space.store.upload([path])
                recorded = peak
        if ended.wait(_INTERVAL):
            return


def _forget(space: Workspace, path: Path) -> None:
    with suppress(OSError, DpdistError):
        path.unlink(missing_ok=True)
        space.store.delete([path])


def _refused(limit: int) -> TaskError:
    error = TaskError(
        f"the driver needs {limit / 2**20:,.0f} MiB or more: it ran out of memory {MOST_BY_MEMORY} times (exit code 137)",
        "give it more, in a container by its limit: `dpdist plan` and `dpdist cluster manifests` project its memory; the "
        "same command resumes",
    )
    error.exit_code = 2
    return error
