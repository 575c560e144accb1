"""The workspace: two folders, one owner. Confidential paths live here; the public folder belongs to `publish`."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dpdist.errors import WorkspaceError
from dpdist.files import replaced, write_json, write_text
from dpdist.keys import Key

SCRATCH = "scratch-"
"""Beginning of the names of temporary folders in the confidential one."""

REFERENCE = "reference.sha256"
"""What decides a result beside the job's own settings: the content of its reference."""


@dataclass(frozen=True)
class Identity:
    """What decides a run's result: the job (runtime and paths aside) and the input's content."""

    job: Mapping[str, Any]
    """Settings by dotted key."""
    input: str
    """SHA-256 of the content."""

    def differences(self, other: Identity) -> list[str]:
        """What differs, in words: "job (budget.epsilon, …)", "input (its content)"."""
        keys = sorted(self.job.keys() | other.job.keys())
        changed = [key for key in keys if self.job.get(key) != other.job.get(key)]
        shown = [f"{key}: {other.job.get(key)!s:.40} there, {self.job.get(key)!s:.40} here" for key in changed[:5]]
        found = [f"job ({'; '.join(shown)}{'; …' if len(changed) > 5 else ''})"] if changed else []
        return found + (["input (its content)"] if self.input != other.input else [])


@dataclass(frozen=True)
class Workspace:
    """Paths of a run. Every path below `confidential` is readable by its owner only."""

    root: Path

    @property
    def public(self) -> Path:
        return self.root / "public"

    @property
    def confidential(self) -> Path:
        return self.root / "confidential"

    @property
    def records(self) -> Path:
        return self.confidential / "records" / "records.arrow"

    @property
    def frame(self) -> Path:
        return self.confidential / "records" / "frame.parquet"

    @property
    def reference(self) -> Path:
        """The reference's records under rows of the current frame."""
        return self.confidential / "records" / "reference.arrow"

    def learned(self, fit: str, stratum: int) -> Path:
        """What the reference fixed for one stratum."""
        return self.confidential / "reference" / f"{fit}-{stratum:06d}.pickle"

    @property
    def job(self) -> Path:
        return self.confidential / "job.json"

    @property
    def key(self) -> Path:
        return self.confidential / "key"

    @property
    def log(self) -> Path:
        return self.confidential / "log"

    @property
    def fits(self) -> Path:
        """Private folders of Stan runs; what a killed run left in it is removed by the next."""
        return self.confidential / f"{SCRATCH}fits"

    def noise(self, fit: str, stratum: int, set: int) -> Path:
        """Noise of one stratum and set, kept for good: drawn again, it would tell what it hides."""
        return self.confidential / "noise" / f"{fit}-{stratum:06d}-{set:03d}.npy"

    @property
    def log_lik(self) -> Path:
        return self.confidential / "log_lik.zarr"

    @property
    def posterior(self) -> Path:
        return self.confidential / "posterior.zarr"

    @property
    def evaluation(self) -> Path:
        return self.confidential / "evaluation"

    def part(self, fit: str, stratum: int) -> Path:
        """Folder of one stratum's own by-products, before they are gathered."""
        return self.confidential / "parts" / f"{fit}-{stratum:06d}"

    def journal(self, fit: str, stratum: int) -> Path:
        """Folder of a giant stratum's rounds while it is being protected."""
        return self.journals / f"{fit}-{stratum:06d}"

    @property
    def journals(self) -> Path:
        return self.confidential / "journal"

    @property
    def marks(self) -> Path:
        return self.confidential / "marks"

    def read_identity(self) -> Identity | None:
        path = self.confidential / "identity.json"
        if not path.exists():
            return None
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            return Identity(dict(said["job"]), said["input"])
        except (ValueError, KeyError, TypeError):
            raise self._damaged(path, "is damaged") from None

    def read_key(self) -> Key:
        """The key that the run began with. Raises `WorkspaceError` if it is missing or another one."""
        try:
            key = Key.read(self.key)
            began = json.loads((self.confidential / "identity.json").read_text(encoding="utf-8"))["key"]
        except (OSError, ValueError, KeyError, TypeError):
            raise self._damaged(self.key, "is missing or damaged") from None
        if key.child("identity").hex() != began:
            raise self._damaged(self.key, "is not the one that the run began with")
        return key

    def _damaged(self, path: Path, found: str) -> WorkspaceError:
        name = path.relative_to(self.root)
        return WorkspaceError(
            str(self.root), f"{name} {found}", "restore it from a copy, or begin again in a new folder", exit_code=2
        )

    @contextmanager
    def owned(self, identity: Identity, replay: Path | None) -> Iterator[Key]:
        """Create or reopen the workspace for one job and input, alone; yields the run's key.

        Raises `WorkspaceError` if it belongs to another job or input, if another run holds it, if it cannot be written,
        or if the replay's job or input differ.
        """
        replayed = _replayed_key(replay, identity) if replay is not None else None
        self._refuse_foreign_folder()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.confidential.mkdir(mode=0o700, exist_ok=True)
            self.confidential.chmod(0o700)
        except OSError as error:
            raise WorkspaceError(
                str(self.root), f"cannot be written ({error.strerror})", "choose a writable folder"
            ) from None
        lock = FileLock(self.confidential / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise WorkspaceError(str(self.root), "another run is using it", "wait for that run to end") from None
        try:
            key = self._adopt(identity, replayed)
            self._take_noise(replay)
            self._sweep()
            for folder in (self.records.parent, self.marks, self.evaluation):
                folder.mkdir(exist_ok=True)
            yield key
        finally:
            lock.release()

    def _refuse_foreign_folder(self) -> None:
        """A folder with a `public` or `confidential` of somebody else's is left alone."""
        if self.read_identity() is not None:
            return
        begun = {"lock", "key", "log"}
        foreign = [folder for folder in (self.public, self.confidential) if folder.exists()]
        if self.marks.exists():
            raise self._damaged(self.confidential / "identity.json", "is missing")
        left = {path.name for folder in foreign if folder.is_dir() for path in folder.iterdir() if path.suffix != ".part"}
        if left - begun:
            found = f"it holds a folder '{foreign[0].name}' that no run has made"
            raise WorkspaceError(str(self.root), found, "choose an empty or a new folder", exit_code=2)

    def _adopt(self, identity: Identity, replayed: Key | None) -> Key:
        present = self.read_identity()
        if present is not None and (differences := identity.differences(present)):
            raise WorkspaceError(
                str(self.root),
                f"it belongs to another {' and another '.join(differences)}",
                "use a new folder for this job and input",
                exit_code=2,
            )
        if present is not None:
            key = self.read_key()
            if replayed is not None and replayed != key:
                raise WorkspaceError(
                    str(self.root), "it was begun without this replay", "replay into an empty workspace", exit_code=2
                )
            return key
        key = replayed or Key.from_os()
        write_text(self.key, key.hex() + "\n", mode=0o600)
        said = {"job": dict(identity.job), "input": identity.input, "key": key.child("identity").hex()}
        write_json(self.confidential / "identity.json", said)
        return key

    def _take_noise(self, replay: Path | None) -> None:
        """A replay takes over the noise of the run that it repeats; it cannot be drawn again from the key."""
        for path in sorted((replay / "noise").glob("*.npy")) if replay is not None else ():
            own = self.confidential / "noise" / path.name
            own.parent.mkdir(mode=0o700, exist_ok=True)
            if not own.exists():
                with replaced(own) as temporary:
                    shutil.copyfile(path, temporary)

    def _sweep(self) -> None:
        """Remove what a killed run was in the middle of writing."""
        for folder in self.confidential.glob(f"{SCRATCH}*"):
            shutil.rmtree(folder)
        for left in self.root.glob(".*.part"):
            if left.is_file():
                left.unlink()
        for path, _, names in os.walk(self.confidential):
            for name in names:
                if name.endswith((".part", ".partial")):
                    Path(path, name).unlink()


def _replayed_key(replay: Path, identity: Identity) -> Key:
    source = Workspace(replay.parent)
    if replay.name != "confidential" or not source.key.exists() or (other := source.read_identity()) is None:
        raise WorkspaceError(
            str(replay),
            "not the confidential folder of a run",
            "give WORKSPACE/confidential of the run to replay",
            exit_code=2,
        )
    if differences := identity.differences(other):
        raise WorkspaceError(
            str(replay),
            f"a replay needs the same {' and '.join(differences)}: the same noise on other data is a differencing attack",
            "run without --replay",
            exit_code=2,
        )
    return source.read_key()


class _Log(logging.FileHandler):
    """On a full disk the run says so itself; the log stays silent."""

    def handleError(self, record: logging.LogRecord) -> None:
        return None

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def confidential_log(space: Workspace) -> Iterator[logging.Logger]:
    """The run's own log, kept in the confidential folder (0600): counts removed by rules, fits, failures."""
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
