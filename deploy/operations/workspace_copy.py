"""Copies of a workspace in a folder, and the way back: what is copied is whole, and no noise is left behind or drawn twice.

    python deploy/operations/workspace_copy.py take WORKSPACE COPY        # while no run is at work on it
    python deploy/operations/workspace_copy.py restore COPY … WORKSPACE   # the newest copy first, to a new folder
    python deploy/operations/workspace_copy.py drill COPY                 # restored aside, checked, and removed

`restore` takes key, identity and everything else from the first copy, and noise from all of them, for it cannot be drawn
again. Copies of different runs, and noise that differs, are refused. The drill restores a copy into a folder beside it and
compares every file with its checksum. Then it makes the tables again from what was released, which has to give the same
bytes.
Copies are as confidential as the workspace. Never continue copy and original both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpdist import publish
from dpdist.core.errors import DpdistError, WorkspaceError
from dpdist.core.files import sha256, write_json
from dpdist.storage.workspace import Workspace

SUMS = "checksums.json"
"""Of a copy: every file of it, with its SHA-256."""
LOCKS = {"lock", ".public.lock", ".held.lock"}
ONE_RUN = ("confidential/key", "confidential/identity.json")
NOISE = ("confidential/noise/", "confidential/marks/noise-")


def take(workspace: Path, copy: Path) -> int:
    """Copy a workspace that no run is at work on; returns the number of files. Raises `WorkspaceError`."""
    if not (workspace / ONE_RUN[0]).is_file():
        raise WorkspaceError(str(workspace), "it has no key: no run has begun there", "name a workspace", 2)
    if copy.exists():
        raise WorkspaceError(str(copy), "it exists already", "name a new folder: copies are kept apart", 2)
    space = Workspace.of_place(workspace)
    with space.store.lock(space.confidential / "lock"), _whole_or_not_there(copy) as target:
        shutil.copytree(workspace, target, dirs_exist_ok=True, ignore=lambda _, names: LOCKS & set(names))
        sums = {name: sha256(target / name) for name in files_of(target)}
        if changed := [name for name, digest in sums.items() if sha256(workspace / name) != digest]:
            raise WorkspaceError(str(workspace), f"{changed[0]} changed meanwhile", "copy it when no run is at work")
        write_json(target / SUMS, sums)
    return len(sums)


def restore(copies: Sequence[Path], workspace: Path) -> int:
    """A workspace from its newest copy, with the noise of all; returns the number of files. Raises `WorkspaceError`."""
    if workspace.exists():
        raise WorkspaceError(str(workspace), "it exists already", "move it away: what it drew is needed, too", 2)
    sums = [checked(copy) for copy in copies]
    for copy, own in zip(copies[1:], sums[1:], strict=True):
        if any(own.get(name) != sums[0].get(name) for name in ONE_RUN):
            raise WorkspaceError(str(copy), "it is of another run", "name copies of one workspace", 2)
    with _whole_or_not_there(workspace) as target:
        shutil.copytree(copies[0], target, dirs_exist_ok=True, ignore=lambda _, names: {SUMS} & set(names))
        for copy, own in zip(copies[1:], sums[1:], strict=True):
            for name in (name for name in own if name.startswith(NOISE)):
                if sums[0].setdefault(name, own[name]) != own[name]:
                    fault = f"{name} differs from that of {copies[0].name}: two draws for the same data"
                    remedy = "keep what the release was published with, and have the second draw counted"
                    raise WorkspaceError(str(copy), fault, remedy, 2)
                (target / name).parent.mkdir(mode=0o700, exist_ok=True)
                shutil.copy2(copy / name, target / name)
    return len(sums[0])


def drill(copy: Path) -> list[str]:
    """What was tried on a copy, in words. Raises `WorkspaceError` where it would not serve."""
    with tempfile.TemporaryDirectory(prefix=".drill-", dir=copy.parent) as aside:
        place = Path(aside) / "workspace"
        lines = [f"{restore([copy], place)} files restored, each with its checksum"]
        space = Workspace.of_place(place)
        space.read_key()
        units = [mark.stem for mark in sorted(space.completions.glob("*.json"))]
        if broken := [unit for unit in units if not space.finished(unit)]:
            lines.append(f"{len(broken)} of {len(units)} units are not whole and would be made again ({broken[0]}, …)")
        else:
            lines.append(f"{len(units)} finished units are whole, key and identity belong together")
        if not (place / "public" / "manifest.json").is_file():
            return [*lines, "nothing was published yet: the same command resumes from here"]
        before = {name: sha256(place / "public" / name) for name in files_of(place / "public")}
        publish(place)
        after = {name: sha256(place / "public" / name) for name in files_of(place / "public")}
        if differing := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
            raise WorkspaceError(
                str(copy), f"{differing[0]} comes out otherwise", "restore with the image that published it"
            )
        return [*lines, f"{len(after)} public files made again, byte for byte"]


def checked(copy: Path) -> dict[str, str]:
    """Files of a copy, with their checksums. Raises `WorkspaceError` for one that is missing or another one."""
    try:
        sums: dict[str, str] = json.loads((copy / SUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WorkspaceError(str(copy), f"it has no {SUMS}", "name a folder that `take` made", 2) from None
    for name, digest in sums.items():
        if not (copy / name).is_file() or sha256(copy / name) != digest:
            raise WorkspaceError(str(copy), f"{name} is missing, or not what was copied", "take another copy", 1)
    return sums


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@contextmanager
def _whole_or_not_there(target: Path) -> Iterator[Path]:
    """A folder beside the target, its owner's alone, that takes the target's place at the end, on disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield partial
        os.sync()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = asked.add_subparsers(dest="verb", required=True)
    for verb, places in (("take", ("workspace", "copy")), ("restore", ("copies", "workspace")), ("drill", ("copy",))):
        one = verbs.add_parser(verb)
        for place in places:
            one.add_argument(place, type=Path, **({"nargs": "+"} if place == "copies" else {}))
    given = asked.parse_args()
    try:
        if given.verb == "drill":
            print("\n".join(drill(given.copy)))
        elif given.verb == "take":
            print(f"{take(given.workspace, given.copy)} files copied to {given.copy}")
        else:
            print(f"{restore(given.copies, given.workspace)} files restored to {given.workspace}")
    except DpdistError as error:
        print(error.text(False), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
