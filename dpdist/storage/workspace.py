"""The workspace: two folders, one owner. Confidential paths live here; the public folder belongs to `publish`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from weakref import WeakValueDictionary

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private, replaced, write_json, write_text
from dpdist.core.keys import Key
from dpdist.storage import completion
from dpdist.storage.bucket import MANIFEST, Bucket
from dpdist.storage.identity import Identity
from dpdist.storage.lease import LEASE
from dpdist.storage.objects import Objects, is_url
from dpdist.storage.paths import GATHERED, SCRATCH, SEALED, WorkspacePaths
from dpdist.storage.store import FOLDER, Store

OTHERWISE = "undo the change, or use a new folder: its release spends a budget of its own beside this one's"
"""Remedy for a workspace of another job or input."""
NOISY_FRAME = "noisy-frame"
"""Unit that is finished when the noisy frame is kept, where predictors are protected."""
REFERENCE = "reference.sha256"
"""What decides a result beside the job's own settings: the content of its reference."""


_OPENED: WeakValueDictionary[tuple[str, str], Workspace] = WeakValueDictionary()
"""Workspaces of runs in this process: the driver's own tasks and a worker's next ones find the files that are here."""


@dataclass(frozen=True)
class Workspace(WorkspacePaths):
    """A run's places and the store that keeps what stands there: its marks, its owner, its key."""

    store: Store = FOLDER

    @classmethod
    def at(cls, place: str | Path, soon: bool = False) -> Workspace:
        """The workspace in a folder, or at a URL of an object store, which must answer (`soon`: within seconds)."""
        if not is_url(place):
            return cls(Path(place).absolute())
        Objects(str(place), soon=True).check()
        bucket = Bucket(str(place), soon)
        return cls(bucket.root, bucket)

    @classmethod
    @contextmanager
    def opened(cls, place: str | Path, soon: bool = False) -> Iterator[Workspace]:
        """The same for a block; what it has here of an object store ends with it."""
        space = cls.at(place, soon)
        try:
            yield space
        except WorkspaceError as error:
            if space.store.shared or not Path(error.path).is_relative_to(space.root):
                raise
            where = space.shown(Path(error.path))
            raise WorkspaceError(where, error.found, error.remedy, error.exit_code) from None
        finally:
            space.store.close()

    @classmethod
    def of_run(cls, place: str, run: str) -> Workspace:
        """The workspace of a run that has begun, opened once a process."""
        if (place, run) not in _OPENED:
            return cls.at(place).opened_for(run)
        return _OPENED[place, run]

    def opened_for(self, run: str) -> Workspace:
        """This one is a run's from now on."""
        _OPENED[self.place, run] = self
        return self

    @property
    def place(self) -> str:
        """What tells it to people and to other processes: the folder, or the URL."""
        return self.store.url if isinstance(self.store, Bucket) else str(self.root)

    @property
    def newest(self) -> Path:
        """The folder of the release that was made last: the held one as long as it is held."""
        return self.held if self.store.take(self.held / MANIFEST) else self.public

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """The public folder of an object store here, and no other run at work on it; a folder is guarded by `publish`."""
        if self.store.shared:
            yield
            return
        with self.store.alone(self.confidential / "lock"):
            self.store.take_folder(self.public)
            self.store.take_folder(self.held)
            if self.public.exists() and not (self.public / MANIFEST).exists():
                found = "its public folder has no manifest: a release that is not wholly there"
                raise WorkspaceError(self.place, found, "finish it with the command that ran it", exit_code=2)
            yield

    @property
    def shared(self) -> Path | str:
        """What the workers of a run must reach."""
        return self.confidential if self.store.shared else self.place

    def shown(self, path: Path) -> str:
        """A path of it, for people."""
        return f"{self.place}/{path.relative_to(self.root).as_posix()}"

    def mark(self, unit: str, files: Iterable[Path], elsewhere: Mapping[str, str] | None = None) -> None:
        """Record a finished unit of work, after its files are kept."""
        completion.mark(self.completions, unit, files, self.confidential, self.store, elsewhere)

    def finished(self, unit: str) -> bool:
        return completion.finished(self.completions, unit, self.confidential, self.store)

    def finished_of(self, units: Iterable[str]) -> set[str]:
        """Those of several units that are finished."""
        found = self.store.finished([self.completions / f"{unit}.json" for unit in units], self.confidential)
        return {path.stem for path in found}

    def take_units(self, units: Iterable[str], wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Bring the wanted files of finished units here."""
        self.store.take_marked([self.completions / f"{unit}.json" for unit in units], self.confidential, wanted)

    def mark_once(self, mark: Path, files: Iterable[Path]) -> None:
        """Record files that are kept already, unless somebody has."""
        with private():
            completion.mark_once(mark, files, self.confidential, self.store)

    @property
    def sealed(self) -> bool:
        """True if no noise is drawn any more: everything is gathered, something was published, or the run is a replay."""
        return self.replayed or any(self.store.take(self.completions / f"{unit}.json") for unit in (GATHERED, SEALED))

    @property
    def replayed(self) -> bool:
        """True if the run repeats another one's draws: what it publishes is not for publication."""
        return self.store.take(self.replay)

    def read_identity(self) -> Identity | None:
        path = self.identity
        if not self.store.take(path):
            return None
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            return Identity(dict(said["job"]), said["input"], said.get("version", "not stated"))
        except (ValueError, KeyError, TypeError):
            raise self.damaged(path, "is damaged") from None

    @property
    def date(self) -> str | None:
        """The day on which the run began, or the one that it repeats; None for a run of before."""
        self.store.take(self.identity)
        found = json.loads(self.identity.read_text(encoding="utf-8")).get("date")
        return None if found is None else str(found)

    def read_key(self) -> Key:
        """The key that the run began with. Raises `WorkspaceError` if it is missing or another one."""
        try:
            self.store.take(self.key)
            key = Key.read(self.key)
            began = json.loads(self.identity.read_text(encoding="utf-8"))["key"]
        except (OSError, ValueError, KeyError, TypeError):
            raise self.damaged(self.key, "is missing or damaged") from None
        if key.child("identity").hex() != began:
            raise self.damaged(self.key, "is not the one that the run began with")
        return key

    def damaged(self, path: Path, found: str) -> WorkspaceError:
        name = path.relative_to(self.root)
        return WorkspaceError(
            self.place, f"{name} {found}", "restore it from a copy; a new folder spends the budget again", exit_code=2
        )

    @contextmanager
    def owned(self, identity: Identity, replay: str | Path | None) -> Iterator[Key]:
        """Create or reopen the workspace for one job and input, alone; yields the run's key.

        Raises `WorkspaceError` if it belongs to another job or input, if another run holds it, if it cannot be written,
        or if the replay's job or input differ.
        """
        replayed = _replayed(replay, identity) if replay is not None else None
        date = datetime.now(UTC).date().isoformat() if replayed is None else replayed[0].date
        self._refuse_foreign_folder()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.confidential.mkdir(mode=0o700, exist_ok=True)
            self.confidential.chmod(0o700)
        except OSError as error:
            raise WorkspaceError(self.place, f"cannot be written ({error.strerror})", "choose a writable folder") from None
        with self.store.alone(self.confidential / "lock"):
            with private():
                key = self._adopt(identity, replayed[1] if replayed else None, date)
                for folder in (self.records.parent, self.completions, self.evaluation):
                    folder.mkdir(exist_ok=True)
                self._seal(identity, replayed[0] if replayed else None)
                self._sweep()
            yield key

    def _refuse_foreign_folder(self) -> None:
        """A folder with a `public` or `confidential` of somebody else's is left alone."""
        if self.read_identity() is not None:
            return
        begun = {"lock", "key", "log", self.replay.name, Path(LEASE).name}
        there = {folder: self.store.names(folder) for folder in (self.public, self.confidential)}
        if self.completions.name in there[self.confidential]:
            raise self.damaged(self.identity, "is missing")
        foreign = {folder: {name for name in names if not name.endswith(".part")} for folder, names in there.items()}
        if set().union(*foreign.values()) - begun:
            first = next(folder.name for folder, names in foreign.items() if names - begun)
            found = f"it holds a folder '{first}' that no run has made"
            raise WorkspaceError(self.place, found, "choose an empty or a new folder", exit_code=2)

    def others(self) -> list[str]:
        """What stands in the folder beside the files of runs; of an object store nothing is looked at."""
        if not self.store.shared or not self.root.is_dir() or self.read_identity() is not None:
            return []
        own = {self.public.name, self.held.name, self.confidential.name, "status.json"}
        return sorted(path.name for path in self.root.iterdir() if path.name not in own and not path.name.startswith("."))

    def _adopt(self, identity: Identity, replayed: Key | None, date: str | None) -> Key:
        present = self.read_identity()
        if present is not None and (differences := identity.differences(present)):
            raise WorkspaceError(
                self.place,
                f"it belongs to another {' and another '.join(differences)}",
                identity.remedy(
                    present,
                    "undo the change, or use a new folder: its release spends a budget of its own beside this one's",
                ),
                exit_code=2,
            )
        if present is not None:
            key = self.read_key()
            if replayed is not None and replayed != key:
                raise WorkspaceError(
                    self.place, "it was begun without this replay", "replay into an empty workspace", exit_code=2
                )
            return key
        drawn = replayed or Key.from_os()
        if replayed is not None:
            write_text(self.replay, "draws of another run\n")
            self.store.put_if_absent(self.replay)
        write_text(self.key, drawn.hex() + "\n", mode=0o600)
        self.store.put_if_absent(self.key)
        if (key := Key.read(self.key)) != drawn and replayed is not None:
            raise self.damaged(self.key, "is not that of the replay")
        if replayed is None and key == drawn and self.store.take(self.replay):  # of one that was killed before it began
            self.replay.unlink()
            self.store.drop([self.replay])
        said = {"job": dict(identity.job), "input": identity.input, "version": identity.version, "date": date}
        said["key"] = key.child("identity").hex()
        write_json(self.identity, said)
        return key if self.store.put_if_absent(self.identity) else self._adopt(identity, replayed, date)

    def _seal(self, identity: Identity, source: Workspace | None) -> None:
        """A replay takes its noise over; and where something was published no noise is drawn from here on."""
        if source is not None:
            self._take_noise(source)
            self._take_over(source, [self.receipt])
        if identity.adds_noise and not self.sealed and self._has_published():
            self.mark_once(self.completions / f"{SEALED}.json", [])

    def _has_published(self) -> bool:
        """True if a release was made here: its folder stands, also where a kill left it in the swap, or what is gathered
        just before it."""
        made = (self.public, self.held)
        folders = [*made, *(folder.with_name(f".{folder.name}.{end}") for folder in made for end in ("old", "new"))]
        names = self.store.names(self.confidential)
        return any(MANIFEST in self.store.names(folder) for folder in folders) or "strata.parquet" in names

    def _take_noise(self, source: Workspace) -> None:
        """A replay takes over the noise of the run that it repeats, with its marks: no key gives it again."""
        source.store.take_folder(source.confidential / "noise")
        for path in sorted((source.confidential / "noise").glob("*.npz")):
            self._take_over(
                source, [self.completions / f"noise-{path.stem}.json", self.root / path.relative_to(source.root)]
            )

    def _take_over(self, source: Workspace, files: Iterable[Path]) -> None:
        """Copy those of these files of its own that another workspace has."""
        for own in files:
            there = source.root / own.relative_to(self.root)
            own.parent.mkdir(exist_ok=True)
            if source.store.take(there) and not self.store.take(own):
                with replaced(own) as temporary:
                    shutil.copyfile(there, temporary)
                self.store.put_if_absent(own)

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


def _replayed(replay: str | Path, identity: Identity) -> tuple[Workspace, Key]:
    """The run to repeat, and its key."""
    parent, _, name = str(replay if is_url(replay) else Path(replay).absolute()).rstrip("/").rpartition("/")
    source = Workspace.at(parent or "/")
    if name != "confidential" or not source.store.take(source.key) or (other := source.read_identity()) is None:
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
            identity.remedy(other, "run without --replay"),
            exit_code=2,
        )
    if identity.adds_noise and f"{GATHERED}.json" not in source.store.names(source.completions):
        raise WorkspaceError(
            str(replay),
            "its run has not finished: part of its noise is not drawn yet, and would be drawn twice",
            "finish that run, by the same command, then replay it",
            exit_code=2,
        )
    return source, source.read_key()
