"""Checks the settings for an external scheduler on which a job runs, and for the links to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpdist.job import Runtime
from dpdist.job.contradiction import Contradiction

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def scheduler_contradictions(runtime: Runtime) -> Iterator[Contradiction]:
    """An external scheduler needs a full address, and links that are encrypted or stay on this machine."""
    said, path = runtime.scheduler, ("runtime", "scheduler")
    if said is None:
        if runtime.tls is not None:
            yield Contradiction(
                ("runtime", "tls"), "certificates are for a running scheduler", "name it in runtime.scheduler"
            )
        return
    if runtime.executor != "dask":
        yield Contradiction(("runtime", "executor"), "a running scheduler needs executor: dask", "write executor: dask")
    if said == "config":
        return
    match = re.fullmatch(r"(tls|tcp)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", said)
    if match is None:
        yield Contradiction(
            path, "not an address", "write tls://host:port, tcp://host:port, or config for what Dask's configuration says"
        )
    elif match[1] == "tls" and runtime.tls is None:
        yield Contradiction(
            ("runtime", "tls"), "a tls:// scheduler needs certificates", "name a folder with ca.crt, tls.crt and tls.key"
        )
    elif match[1] == "tcp" and runtime.tls is not None:
        yield Contradiction(path, "certificates and a tcp:// address", "write tls://")
    elif match[1] == "tcp" and match[2] not in LOOPBACK and not runtime.allow_plain:
        yield Contradiction(
            path, "tcp:// is open to everybody on its network", "use tls://, or say runtime.allow_plain: true"
        )
