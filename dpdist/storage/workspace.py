"""The workspace: two folders, one owner. Confidential paths live here; the public folder belongs to `publish`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dpdist.errors import WorkspaceError
from dpdist.files import write_json, write_text
from dpdist.keys import Key


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
        found = [f"job ({', '.join(changed[:5])}{', …' if len(changed) > 5 else ''})"] if changed else []
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
        return self.confidential / "records" / "records.parquet"

    @property
    def frame(self) -> Path:
        return self.confidential / "records" / "frame.parquet"

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
        return self.confidential / "journal" / f"{fit}-{stratum:06d}"

    @property
    def marks(self) -> Path:
        return self.confidential / "marks"

    def read_identity(self) -> Identity | None:
        path = self.confidential / "identity.json"
        if not path.exists():
            return None
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Identity(said["job"], said["input"])

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
        if any({path.name for path in folder.iterdir()} - begun for folder in foreign):
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
        if present is not None and self.key.exists():
            key = Key.from_hex(self.key.read_text(encoding="ascii"))
            if replayed is not None and replayed != key:
                raise WorkspaceError(
                    str(self.root), "it was begun without this replay", "replay into an empty workspace", exit_code=2
                )
            return key
        key = replayed or Key.from_os()
        write_text(self.key, key.hex() + "\n", mode=0o600)
        write_json(self.confidential / "identity.json", {"job": dict(identity.job), "input": identity.input})
        return key


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
    return Key.from_hex(source.key.read_text(encoding="ascii"))


@contextmanager
def confidential_log(space: Workspace) -> Iterator[logging.Logger]:
    """The run's own log, kept in the confidential folder (0600): counts removed by rules, fits, failures."""
    space.log.touch(mode=0o600)
    logger = logging.getLogger("dpdist.confidential")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.FileHandler(space.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()
