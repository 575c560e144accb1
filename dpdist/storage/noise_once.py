"""Noise that is drawn only once and stored; every later task reads the stored draw.

Two different sums with the same noise would reveal their exact difference. So a stored draw states its purpose, and is
refused for anything else. Two draws for the same sums would spend the budget twice. So each draw has a completion
record (a mark), and a lost draw is never replaced.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

import numpy as np

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, sha256, sync_folder, version_of
from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise, fresh_noise
from dpdist.privacy.noise import simulated_noise
from dpdist.storage.store import read_mark
from dpdist.storage.workspace import Workspace

DIGESTS = {"query": "the terms that are summed (limits, units or bins)", "sums": "the exact sums"}
"""Facts about a draw that are checksums. If one differs, a message says so in these words, without values."""
_MARK = "noise-"
"""Prefix of the names of marks of noise."""
_RESTORE = "restore it from a copy, or start again in a new folder, which spends the budget again"


def drawn_once(space: Workspace, path: Path, facts: Mapping[str, str], draw: Callable[[], Floats]) -> Floats:
    """The noise stored at `path`; if there is none, it is drawn now. `facts` identify the sums that the noise is for.

    Raises `WorkspaceError` if stored noise is lost, damaged or for other sums, or if no more noise may be drawn
    (`Workspace.sealed`).
    """
    mark = space.completion(f"{_MARK}{path.stem}")
    was_drawn = space.store.download(mark)
    if not space.store.download(path):
        if was_drawn or space.sealed:
            raise _lost(space, path)
        _draw(space, path, facts, draw)
    _vouch(space, path, mark)
    stored, noise = _read(space, path)
    if differing := _differences(stored, facts):
        raise _refused(space, path, f"was drawn for something else: {'; '.join(differing)}", _remedy(space, stored))
    return noise


def noise_once(space: Workspace, path: Path, request: Noise) -> Floats:
    """The noise for a request, drawn once and stored at `path`; in a study's run, drawn from the run's key."""
    values = request._asdict() | {name: version_of(name) for name in ("dpdist", "opendp")}
    facts = {name: str(value) for name, value in values.items() if name != "set"}
    if space.keyed:
        facts["drawn"] = "from a study's key"
    return drawn_once(space, path, facts, lambda: _from_key(space, path, request) if space.keyed else fresh_noise(request))


def _from_key(space: Workspace, path: Path, request: Noise) -> Floats:
    rng = space.read_key().generator("noise", path.stem)
    return simulated_noise(request.law, request.scale, request.size, rng)


def refuse_damaged_noise(space: Workspace) -> None:
    """Raises `WorkspaceError` if noise was drawn and is lost or damaged, even if a resumed run no longer reads it.

    An object store checks its objects itself.
    """
    if not space.store.shared:
        return
    marks = [space.completions / name for name in space.store.names(space.completions) if name.startswith(_MARK)]
    for mark in sorted(set(marks) - space.store.finished(marks, space.confidential)):
        names = [name for name in read_mark(mark) or () if Path(name).stem == mark.stem.removeprefix(_MARK)]
        if not names:
            raise _refused(space, mark, "is damaged")
        path = space.confidential / names[0]
        raise _damaged(space, path, mark) if path.exists() else _lost(space, path)


def _draw(space: Workspace, path: Path, facts: Mapping[str, str], draw: Callable[[], Floats]) -> None:
    """Draws noise into a temporary file, which is written to the disk and then linked to its final name.

    Of several processes only one can make the link; the others read its draw. So a file with the final name is complete. A
    file system without hard links raises an error. In an object store, one conditional put succeeds.
    """
    with private():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
        try:
            with temporary.open("xb") as handle:
                np.savez(handle, noise=draw(), facts=json.dumps(dict(facts)))
                handle.flush()
                os.fsync(handle.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                pass
            else:
                sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    try:
        space.store.put_if_absent(path)
    except BaseException:  # a file with the final name would be taken for the stored draw
        path.unlink(missing_ok=True)
        raise


def _vouch(space: Workspace, path: Path, mark: Path) -> None:
    """Marks noise with its checksum before it is used; if a kill comes before the mark, the noise was never used."""
    if not space.store.download(mark):
        space.mark_once(mark, [path])
    if (read_mark(mark) or {}).get(path.relative_to(space.confidential).as_posix()) != sha256(path):
        raise _damaged(space, path, mark)


def _read(space: Workspace, path: Path) -> tuple[dict[str, str], Floats]:
    try:
        with path.open("rb") as handle, np.load(handle) as file:
            facts: dict[str, str] = json.loads(str(file["facts"]))
            noise: Floats = file["noise"]
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError):
        raise _refused(space, path, "is damaged") from None
    return facts, noise


def _damaged(space: Workspace, path: Path, mark: Path) -> WorkspaceError:
    return _refused(space, path, f"is damaged: {mark.relative_to(space.root).as_posix()} has another checksum")


def _lost(space: Workspace, path: Path) -> WorkspaceError:
    fault = "is missing: it was drawn and used, and new noise would spend the budget again"
    return _refused(space, path, fault, "give the same --replay again" if space.replayed else _RESTORE)


def _differences(stored: Mapping[str, str], facts: Mapping[str, str]) -> list[str]:
    """The differences in words. Checksums of confidential sums are not shown."""
    names = [name for name in sorted(stored.keys() | facts.keys()) if stored.get(name) != facts.get(name)]
    return [
        DIGESTS.get(name) or f"{name} ({stored.get(name, 'not stated')} there, {facts.get(name, 'not stated')} here)"
        for name in names
    ]


def _remedy(space: Workspace, stored: Mapping[str, str]) -> str:
    code = f"the code that drew it (dpdist {stored.get('dpdist', '?')} and opendp {stored.get('opendp', '?')})"
    if space.replayed:
        return f"replay with {code}, in a new folder"
    return f"continue with {code}, or begin again in a new folder, which spends the budget again"


def _refused(space: Workspace, path: Path, what: str, remedy: str = _RESTORE) -> WorkspaceError:
    return WorkspaceError(space.place, f"{path.relative_to(space.root).as_posix()} {what}", remedy, exit_code=2)
