"""Draw-once: whoever draws first decides, and everybody reads what was kept, however often a task runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np

from dpdist.records import Floats
from dpdist.storage.store import FOLDER, Store


def drawn_once(path: Path, draw: Callable[[], Floats], store: Store = FOLDER) -> Floats:
    """The noise kept at `path`, drawn now if there is none.

    Written aside, synced and linked: of several racers one link succeeds, and the others read the winner's draw. A file
    under the final name is therefore whole. On a file system without hard links the link's error is raised. In an object
    store one conditional put succeeds.
    """
    if not store.take(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
        try:
            with temporary.open("xb") as handle:
                np.save(handle, draw())
                handle.flush()
                os.fsync(handle.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
            else:
                _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
        try:
            store.settle(path)
        except BaseException:  # what stands here alone would be taken for what was kept
            path.unlink(missing_ok=True)
            raise
    kept: Floats = np.load(path)
    return kept


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
