"""Writes the log of a run into its confidential folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dpdist.core.errors import WorkspaceError
from dpdist.storage.workspace import Workspace


class _Log(logging.FileHandler):
    """A log handler that ignores errors. On a full disk the run itself reports the problem."""

    def handleError(self, record: logging.LogRecord) -> None:
        return None

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def confidential_log(space: Workspace) -> Iterator[logging.Logger]:
    """The log of a run, which only its owner can read (0600): counts of records removed by rules, fits, failures."""
    space.store.take(space.log)
    space.log.touch(mode=0o600)
    logger = logging.getLogger("dpdist.confidential")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _Log(space.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()
        with suppress(WorkspaceError):
            space.store.keep([space.log])
