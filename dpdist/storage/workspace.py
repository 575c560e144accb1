"""A run's workspace: names of all files, owner, private and public folders, store, log."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import WORKSPACE, misfit, private, sha256, version_of, write_json
from dpdist.core.keys import Key
from dpdist.core.public_files import MANIFEST
from dpdist.job import spec_of
from dpdist.storage.objects import Bucket, Objects, is_url
from dpdist.storage.store import FOLDER, Store, checksums, read_mark

T = TypeVar("T")
STORES_FORM = 2
"""The form of the stores of draws. Strata with draws in stores of an earlier form are fitted again, from the same key."""
LEARNED_FORM = 12
"""The form of what was learned from a reference.
Results of an earlier form are learned again from public data. A run that has measured under other values is refused.
"""
STORED_REFERENCE = "stored-reference-2"
"""Name of the completion record of the reference's stored records; its number is that of their form."""
STATUS = "status.json"
"""Name of the status file in the workspace; only its owner can read it."""
HELD = "held"
"""Name of the folder of a release that waits for approval."""
SCRATCH = "scratch-"
"""Prefix of the names of temporary folders in the confidential folder."""
GATHERED = "gathered"
"""Name of the completion record that results of all strata are gathered. After that, no noise is drawn."""
SEALED = "sealed"
"""Name of the record that replaces a `gathered` lost after publication; no noise is drawn either."""


@dataclass(frozen=True)
class Identity:
    """All that determines a run's result: job without runtime and paths, content of the input and, with noise, code."""

    job: Mapping[str, Any]
    """Settings of the job, by dotted key."""
    input: str
    """SHA-256 of the input file's content."""
    version: str = field(default_factory=lambda: version_of("dpdist"))
    """The version of dpdist that began the run."""

    def differences(self, other: Identity) -> list[str]:
        """The differences in words, such as "job (budget.epsilon: …)", "input file (its content)", "version of dpdist (…)".

        The version counts only if the run adds noise. Another version may compute other sums, to which stored noise
        must not be added.
        """
        keys = sorted(self.job.keys() | other.job.keys())
        mine, theirs = (
            ["null" if (value := job.get(key, "not stated")) is None else value for key in keys]
            for job in (self.job, other.job)
        )
        changed = [triple for triple in zip(keys, theirs, mine, strict=True) if triple[1] != triple[2]]
        examples = [f"{key}: {there!s:.40} then, {here!s:.40} now" for key, there, here in changed[:5]]
        texts = [f"job ({'; '.join(examples)}{'; …' if len(changed) > 5 else ''})"] if changed else []
        texts += ["input file (its content)"] if self.input != other.input else []
        return texts + ([f"version of dpdist ({other.version} then, {self.version} now)"] if self._recoded(other) else [])

    def remedy(self, other: Identity, otherwise: str) -> str:
        """A remedy where only the version differs; else `otherwise`."""
        same, has_version = self.job == other.job and self.input == other.input, other.version[:1].isdigit()
        install = f"install dpdist {other.version}, which drew the stored noise; or "
        return (install if same and has_version and self._recoded(other) else "") + otherwise

    def _recoded(self, other: Identity) -> bool:
        return self.version != other.version and self.adds_noise

    @property
    def adds_noise(self) -> bool:
        """True if released figures contain noise, which is drawn once and stored."""
        spec = spec_of(self.job)
        return spec is not None and spec.adds_noise


NOISY_FRAME = "noisy-frame"
"""Name of the record that the noisy crosstab is stored, where predictors are protected."""
REFERENCE = "reference.sha256"
"""Name of a fact that determines a result besides the job's settings: the checksum of its reference."""
OF_FILES = (REFERENCE, "input.third_party.", "reference.third_party.")
"""Prefixes of the names of such facts, including those of plug-ins' readers."""

REPEATED, KEYED = "draws of another run\n", "draws of a study's key\n"
"""Contents of the file `replay`: what the run repeats."""

MADE_AGAIN = "run the same `dpdist run` command again: it makes the file again and spends nothing"
RESTORE = "restore it from a copy; a new folder spends the budget again"
"""Remedy for a file that no run can make again."""
REMOVED = (
    "restore the whole folder, and the same command resumes; otherwise the same command begins a new release, which is "
    "charged again"
)
"""Remedy for a folder that is gone."""
IDENTITY = "identity"
"""Name of the record of the files that say whose run it is: `identity.json` and `key`."""

_OPENED: WeakValueDictionary[tuple[str, str], Workspace] = WeakValueDictionary()
"""Workspaces of runs in this process, in which later tasks find files that are already copied."""


class _Place:
    """A path of a workspace, by its parts below the root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, space: Workspace, owner: type[Workspace]) -> Path:
        return space.root.joinpath(*self._parts)


@dataclass(frozen=True)
class Workspace:
    """The paths of a run's files, and the store with its files, completion records, owner and key."""

    root: Path
    store: Store = FOLDER

    public = _Place("public")
    held_release = _Place(HELD)
    """The folder of a release that waits for approval."""
    status = _Place(STATUS)
    confidential = _Place("confidential")
    decisions = _Place("confidential", "decisions.json")
    records = _Place("confidential", "records", "records.arrow")
    crosstab = _Place("confidential", "records", "frame.parquet")
    noisy_crosstab = _Place("confidential", "records", "noisy_frame.parquet")
    """The published crosstab, where predictors are protected. Fits use no other crosstab then."""
    reference = _Place("confidential", "records", "reference.arrow")
    copied = _Place("confidential", "records", "copied.parquet")
    absent = _Place("confidential", "records", "absent.parquet")
    """The reference's records in crosses that the current file lacks, if the mechanism learns from them."""
    history = _Place("confidential", "records", "history.json")
    """Totals of earlier periods, if the reference is a release that states them."""
    job = _Place("confidential", "job.json")
    key = _Place("confidential", "key")
    log = _Place("confidential", "log")
    fits = _Place("confidential", f"{SCRATCH}fits")
    """Private folders for runs of Stan. The next run removes what a killed run left there."""
    log_lik = _Place("confidential", "log_lik.zarr")
    posterior = _Place("confidential", "posterior.zarr")
    evaluation = _Place("confidential", "evaluation")
    report = _Place("confidential", "report.html")
    parts = _Place("confidential", "parts")
    journals = _Place("confidential", "journal")
    completions = _Place("confidential", "marks")
    replay = _Place("confidential", "replay")
    """A file that exists if the run repeats the draws of another run, or of a key."""
    receipt = _Place("confidential", "ledger.json")
    """The receipt of the run's charge: its ledger, and the entry there."""
    identity = _Place("confidential", "identity.json")

    def learned(self, fit: str, stratum: int) -> Path:
        return self.confidential / "reference" / f"{fit}-{stratum:06d}-{LEARNED_FORM}.pickle"

    def noise(self, fit: str, stratum: int, set: int) -> Path:
        """The noise of a stratum and set, with what it is for.

        It is never deleted, because a second draw for the same sums would spend the budget again.
        """
        return self.confidential / "noise" / f"{fit}-{stratum:06d}-{set:03d}.npz"

    def part(self, fit: str, stratum: int) -> Path:
        return self.parts / f"{fit}-{stratum:06d}"

    def journal(self, fit: str, stratum: int) -> Path:
        return self.journals / f"{fit}-{stratum:06d}"

    @classmethod
    def of_place(cls, place: str | Path, reading: bool = False) -> Workspace:
        """The workspace in a folder, or at a URL of an object store, which must answer.

        With `reading`, nothing is written, and failures are reported within seconds.
        """
        if not is_url(place):
            return cls(Path(place).absolute())
        Objects(str(place), soon=True, reading=reading).check()
        bucket = Bucket(str(place), reading)
        return cls(bucket.root, bucket)

    @classmethod
    @contextmanager
    def opened(cls, place: str | Path, reading: bool = False) -> Iterator[Workspace]:
        """As `of_place`, for the length of a block; local copies of objects are removed at its end."""
        space = cls.of_place(place, reading)
        try:
            with space.noticing_removal() if space.identity.exists() else nullcontext():
                yield space
        except WorkspaceError as error:
            if space.store.shared or not Path(error.path).is_relative_to(space.root):
                raise
            where = space.address(Path(error.path))
            raise WorkspaceError(where, error.fault, error.remedy, error.exit_code) from None
        finally:
            space.store.close()

    @contextmanager
    def noticing_removal(self) -> Iterator[None]:
        """Names the cause of an error in the block if the folder of a run that has begun was removed meanwhile."""
        try:
            yield
        except Exception:
            if not self.store.shared or self.identity.exists():
                raise
            fault = "it was removed, or moved, while the command was using it"
            raise WorkspaceError(self.place, fault, REMOVED) from None

    @classmethod
    def of_run(cls, place: str, run: str) -> Workspace:
        """The workspace of a run that has begun. A process opens it once."""
        if (place, run) not in _OPENED:
            return cls.of_place(place).opened_for(run)
        return _OPENED[place, run]

    def opened_for(self, run: str) -> Workspace:
        """Registers this workspace for a run."""
        _OPENED[self.place, run] = self
        return self

    @property
    def place(self) -> str:
        """The workspace's name for people and other processes: its folder or its URL."""
        return self.store.url if isinstance(self.store, Bucket) else str(self.root)

    @property
    def newest(self) -> Path:
        """The folder of the latest release: `held`, if that one is held, otherwise `public`."""
        return self.held_release if self.store.download(self.held_release / MANIFEST) else self.public

    @property
    def released(self) -> bool:
        """True if a run has made its release here: published, or held."""
        return self.store.download(self.newest / MANIFEST)

    def refuse_absent(self) -> None:
        """Raises `WorkspaceError` if there is neither a public folder nor a held release."""
        if not self.newest.is_dir():
            raise WorkspaceError(
                self.place, "there is no release in it", "give the workspace of a finished run", exit_code=2
            )

    @contextmanager
    def publishing(self, replacing: bool = False) -> Iterator[None]:
        """Makes an object store's public folder available to this process, and keeps other runs out.

        In a shared folder it does nothing, because `publish` locks that itself. Raises `WorkspaceError` if the public
        folder is incomplete. With `replacing`, an incomplete folder is accepted if a complete release is held, because that
        will replace the folder.
        """
        if self.store.shared:
            yield
            return
        with self.store.lock(self.confidential / "lock"):
            self.store.download_folder(self.public)
            self.store.download_folder(self.held_release)
            if self.public.exists() and not (self.public / MANIFEST).exists():
                if replacing and (self.held_release / MANIFEST).exists():
                    shutil.rmtree(self.public)
                    yield
                    return
                fault = "its public folder has no manifest, so the release is incomplete"
                raise WorkspaceError(self.place, fault, "finish it with the command that ran it", exit_code=2)
            yield

    @property
    def shared(self) -> Path | str:
        """The place that all workers of a run must be able to reach."""
        return self.confidential if self.store.shared else self.place

    def address(self, path: Path) -> str:
        return f"{self.place}/{path.relative_to(self.root).as_posix()}"

    def completion(self, unit: str) -> Path:
        """The completion record of a unit."""
        return self.completions / f"{unit}.json"

    def mark(self, unit: str, files: Iterable[Path], elsewhere: Mapping[str, str] | None = None) -> None:
        """Marks a unit as finished, after storing its files. `elsewhere` holds checksums of files from other processes.

        If two tasks finish a unit, the first mark stays. Files that do not match it are replaced by those of the second
        task. On machines of one type, the files of a unit always have the same bytes.
        """
        written_here, path = list(files), self.completion(unit)
        digests = checksums(written_here, self.confidential)
        if elsewhere:
            digests = dict(sorted({**elsewhere, **digests}.items()))
        self.store.upload(written_here)
        write_json(path, digests)
        if not self.store.put_if_absent(path):
            write_json(path, digests)
            self.store.upload(written_here)
            self.store.upload([path])

    def mark_once(self, mark: Path, files: Iterable[Path]) -> None:
        """Marks files that are already stored, unless there is a mark."""
        with private():
            write_json(mark, checksums(files, self.confidential))
            self.store.put_if_absent(mark)

    def withdraw(self, unit: str) -> None:
        """Removes the mark of a unit whose files are damaged, so that the unit is made again.

        If a worker of an earlier run has finished the unit meanwhile, its mark stays. In an object store the next mark
        replaces a damaged one.
        """
        if self.store.shared and not self.finished(unit):
            self.completion(unit).unlink(missing_ok=True)

    def finished(self, unit: str) -> bool:
        """True if the unit has a mark, and all its files exist and match it."""
        return bool(self.finished_of([unit]))

    def finished_of(self, units: Iterable[str]) -> set[str]:
        """The given units that are finished."""
        return {path.stem for path in self.store.finished(list(map(self.completion, units)), self.confidential)}

    def take_units(self, units: Iterable[str], matches: Callable[[str], bool] = lambda name: True) -> None:
        """Copies matching files of finished units to this process."""
        self.store.download_finished(map(self.completion, units), self.confidential, matches)

    @contextmanager
    def result(self, path: Path) -> Iterator[Path]:
        """Yields the path of a file for the custodian, which the block writes; then it is stored, with a mark of its own.

        An earlier mark is removed first. So a file of a killed process has no mark.
        """
        mark = self.completion(_result(path))
        mark.unlink(missing_ok=True)
        self.store.delete([mark])
        yield path
        self.mark(_result(path), [path])

    def refuse_changed(self, path: Path, remedy: str) -> None:
        """Raises `WorkspaceError` if a result is not the file that was written; without a mark, this is unknown."""
        if self.store.download(self.completion(_result(path))):
            self._refuse_damaged(_result(path), remedy)

    def refuse_damaged(self, units: Iterable[str], remedy: str, only: Path | None = None) -> None:
        """Raises `WorkspaceError`, which names the file, where a file of a unit is missing or changed.

        With `only`, no other file is checked. Units without a mark are not checked. Nor are units in an object store, which
        checks its objects itself.
        """
        if self.store.shared:
            for unit in units:
                if self.completion(unit).exists():
                    self._refuse_damaged(unit, remedy, only)

    def _refuse_damaged(self, unit: str, remedy: str, only: Path | None = None) -> None:
        mark = self.completion(unit)
        about = mark.relative_to(self.root).as_posix()
        if (files := read_mark(mark)) is None:
            raise WorkspaceError(self.place, f"{about} is damaged", remedy, exit_code=2)
        for name, digest in files.items():
            path = self.confidential / name
            if only is not None and path != only:
                continue
            if not path.is_file() or sha256(path) != digest:
                what = "is missing" if not path.exists() else f"is damaged: the checksum of {about} differs"
                raise WorkspaceError(self.place, f"{self.confidential.name}/{name} {what}", remedy, exit_code=2)

    @property
    def sealed(self) -> bool:
        """True if no more noise may be drawn: results are gathered, something was published, or the run is a replay."""
        ended = any(self.store.download(self.completion(unit)) for unit in (GATHERED, SEALED))
        return ended or (self.replayed and not self.keyed)

    @property
    def replayed(self) -> bool:
        """True if the run repeats the draws of another run, or of a key. Its results are not for publication."""
        return bool(self._mark)

    @property
    def keyed(self) -> bool:
        """True if the run's noise follows from its key, as in studies. Its results are not for publication."""
        return self._mark == KEYED

    @property
    def _mark(self) -> str:
        if self.store.download(self.replay):
            return self.replay.read_text(encoding="utf-8") or REPEATED
        return str((self._read_identity_file() or {}).get("mark", ""))

    def read_identity(self) -> Identity | None:
        if (content := self._read_identity_file()) is None:
            return None
        try:
            return Identity(dict(content["job"]), content["input"], content.get("version", "not stated"))
        except (ValueError, KeyError, TypeError):
            raise self.damaged(self.identity, "is damaged") from None

    def _read_identity_file(self) -> dict[str, Any] | None:
        content = self.stored(self.identity, dict[str, Any])
        if content is not None and (wrong := misfit(content.get("format"), WORKSPACE)) is not None:
            raise WorkspaceError(self.place, f"it is of {wrong.fault}, allowed: {wrong.allowed}", wrong.remedy, exit_code=2)
        return content

    @property
    def date(self) -> str | None:
        """The date on which the run, or the run that it repeats, began; None for a run of an earlier version."""
        date = (self._read_identity_file() or {}).get("date")
        return None if date is None else str(date)

    def read_key(self) -> Key:
        """The key that the run began with. Raises `WorkspaceError` if it is missing or changed."""
        try:
            self.store.download(self.key)
            key = Key.read(self.key)
        except (OSError, ValueError, TypeError):
            raise self.damaged(self.key, "is missing or damaged") from None
        began = (self._read_identity_file() or {}).get("key")
        if key.child("identity").hex() != began:
            raise self.damaged(self.key, "is not the one that the run began with")
        return key

    def stored(self, path: Path, of: Callable[[Any], T]) -> T | None:
        """What `of` makes of a stored JSON file; None if there is none. Raises `WorkspaceError` if the file is damaged."""
        if not self.store.download(path):
            return None
        try:
            return of(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError):
            raise self.damaged(path, "is damaged") from None

    def damaged(self, path: Path, fault: str) -> WorkspaceError:
        return WorkspaceError(self.place, f"{path.relative_to(self.root)} {fault}", RESTORE, exit_code=2)

    def other_files(self) -> list[str]:
        """Files in the folder that belong to no run. An object store is not searched."""
        if not self.store.shared or not self.root.is_dir() or self.read_identity() is not None:
            return []
        of_runs = {self.public.name, self.held_release.name, self.confidential.name, "status.json"}
        return sorted(
            path.name for path in self.root.iterdir() if path.name not in of_runs and not path.name.startswith(".")
        )


def _result(path: Path) -> str:
    return f"result-{path.parent.name}-{path.stem}"


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
    space.store.download(space.log)
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
            space.store.upload([space.log])
