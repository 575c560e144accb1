"""A workspace in an object store, with local copies in a scratch folder.

An object is complete or does not exist. The files of a unit of work are stored one by one; then its completion record
is stored. Noise, key and completion records are stored only if absent, so that one of several writers wins. Files that
this process no longer needs are removed from its scratch folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from dpdist.core.errors import WorkspaceError
from dpdist.core.files import Scratch, sha256
from dpdist.storage.objects import LEASE, Lease, Objects, leased
from dpdist.storage.store import read_mark

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Number of requests at a time. A request takes long and needs little work."""
MANIFEST = "manifest.json"
PAGE = 1000
"""Largest number of names in an answer to a list request."""
LISTED = 10
"""A folder is listed if it has at most this many names for each name that is looked up.

An answer of `PAGE` names takes as long as about ten other answers.
"""
SETTLINGS = 6
"""Number of conditional puts in a row that may be refused although there is no object to fetch."""


class Bucket:
    """One process's view of a workspace in an object store."""

    shared = False

    def __init__(self, url: str, reading: bool = False) -> None:
        """Opens the bucket. With `reading`, nothing is written, and failures are reported after seconds."""
        self.objects, self._scratch = Objects(url, reading, reading), Scratch()
        for name in ("records", "marks", "evaluation"):
            (self.root / "confidential" / name).mkdir(parents=True)
        self._lease: Lease | None = None

    @property
    def url(self) -> str:
        return self.objects.url

    @property
    def root(self) -> Path:
        return self._scratch.folder

    @property
    def view(self) -> str:
        return f"-{self.root.parent.name}"

    def close(self) -> None:
        self._scratch.remove()

    def download(self, path: Path, anew: bool = False) -> bool:
        return (path.exists() and not anew) or self.objects.fetch(self._name(path), path)

    def download_all(self, paths: Iterable[Path]) -> None:
        _each(self.download, paths)

    def download_folder(self, folder: Path) -> None:
        _each(lambda name: self.objects.fetch(name, self.root / name), self.objects.below(self._name(folder)))

    def download_files(self, files: Mapping[str, str], root: Path) -> None:
        _each(lambda entry: self._download_checked(root / entry[0], entry[1]), files.items())

    def download_finished(self, completions: Iterable[Path], root: Path, matches: Callable[[str], bool]) -> None:
        def download_unit(mark: Path) -> None:
            if not self.download(mark, anew=True):
                return
            try:
                for name, digest in (read_mark(mark) or {}).items():
                    if matches(name):
                        self._download_checked(root / name, digest)
            except _Incomplete:
                self.objects.delete([self._name(mark)])
                raise

        _each(download_unit, completions)

    def upload(self, paths: Iterable[Path]) -> None:
        self._check()
        _each(lambda path: self.objects.put(self._name(path), path), paths)

    def put_if_absent(self, path: Path) -> bool:
        """Puts a file unless the object exists.

        A put may be refused because of another writer's put that later fails; it is then repeated.
        """
        content, name = path.read_bytes(), self._name(path)
        for attempt in range(SETTLINGS):
            if self.objects.create(name, content) is not None:
                return True
            if self.download(path, anew=True):
                return path.read_bytes() == content
            time.sleep(0.1 * 2**attempt)
        raise WorkspaceError(self.url, f"{name} can neither be written nor read", f"look at the store's log; {_AGAIN}")

    def discard(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def delete(self, paths: Iterable[Path]) -> None:
        self._check()
        for name in map(self._name, paths):
            self.objects.delete([name, *self.objects.below(name)])

    def names(self, folder: Path) -> set[str]:
        return self.objects.inside(self._name(folder))

    def intact(self, files: Mapping[str, str], root: Path) -> bool:
        return all(_each(lambda name: self.objects.exists(self._name(root / name)), files))

    def finished(self, completions: Iterable[Path], root: Path) -> set[Path]:
        """The units, of the given ones, that are finished.

        Their objects only need to exist; content is compared when they are fetched. The number of requests grows with the
        number of units asked for, not with the number in the store.
        """
        by_name = {self._name(mark): mark for mark in completions}
        if len(by_name) >= AT_ONCE:
            there = self.objects.between(min(by_name), max(by_name), min(len(by_name), PAGE))
            by_name = {name: mark for name, mark in by_name.items() if name in there}
        marks = list(by_name.values())
        present = [mark for mark, here in zip(marks, _each(self._fresh, marks), strict=True) if here]
        units = {mark: files for mark in present if (files := read_mark(mark)) is not None}
        objects_found = self._kept(
            {self._name(root / name) for files in units.values() for name in files}, self._name(root)
        )
        return {mark for mark, files in units.items() if all(self._name(root / name) in objects_found for name in files)}

    def _kept(self, names: set[str], folder: str) -> set[str]:
        """The given names that exist in a folder.

        It lists the folder, or asks for each name if the folder has many other objects.
        """
        limit = LISTED * len(names) if len(names) >= AT_ONCE else 0
        listed = set(islice(self.objects.below(folder, min(limit, PAGE)), limit)) if limit else set[str]()
        if 0 < len(listed) < limit:
            return names & listed
        unlisted = sorted(names - listed)
        return names & listed | {
            name for name, there in zip(unlisted, _each(self.objects.exists, unlisted), strict=True) if there
        }

    @contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with leased(self.objects, LEASE) as self._lease:
            try:
                yield
            finally:
                self._lease = None

    def publish(self, public: Path) -> None:
        """Publishes the files of the public folder, the manifest last.

        A reader without a manifest sees no release, so nobody can mix two releases.
        """
        self._check()
        files = [path for path in public.rglob("*") if path.is_file()]
        manifest, old = public / MANIFEST, self.objects.get(self._name(public / MANIFEST))
        if old is not None and old.data != manifest.read_bytes():
            self.objects.delete([self._name(manifest)])
        self.upload(path for path in files if path != manifest)
        stale = set(self.objects.below(self._name(public))) - {self._name(path) for path in files}
        self.objects.delete(sorted(stale))
        self.upload([manifest])

    def _check(self) -> None:
        """Raises `WorkspaceError` if this process has lost its lease on the workspace."""
        if self._lease is not None:
            self._lease.check()

    def _fresh(self, mark: Path) -> bool:
        return self.download(mark, anew=True)

    def _download_checked(self, path: Path, digest: str) -> None:
        if path.is_file() and sha256(path) == digest:
            return
        if not (self.objects.fetch(self._name(path), path) and sha256(path) == digest):
            path.unlink(missing_ok=True)
            raise _Incomplete(self.url, f"{self._name(path)} is missing, or its checksum is not that of its mark", _AGAIN)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


_AGAIN = "repeat the `dpdist run` that wrote it; or restore the object's version with the checksum of the mark"


class _Incomplete(WorkspaceError):
    """An object differs from the one that its completion record names."""


def _each(act: Callable[[T], R], things: Iterable[T]) -> list[R]:
    listed = list(things)
    if len(listed) < 2:
        return [act(item) for item in listed]
    with ThreadPoolExecutor(min(AT_ONCE, len(listed))) as pool:
        return list(pool.map(act, listed))
