"""For `release`: publication's work on batches of strata, as tasks of an executor.

Publication sees no record, and it knows no workspace. A task carries the place of the workspace, and opens there what was
released: the parameters of its own strata, and what all strata share. So no process but the driver holds the parameters
of all strata.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from dpdist.core.files import private
from dpdist.runtime.executors import Executor, Serial
from dpdist.storage.workspace import Workspace

P = TypeVar("P")
R = TypeVar("R")
FOLDER = "publishing"
"""Folder in the confidential one for a publication's tasks. A held release is not public, so its parameters are not."""


@dataclass(frozen=True, eq=False)
class StoredTexts(Mapping[str, str]):
    """A set's parameters as texts by stratum, read from the files of batches. A process keeps the batch read last."""

    place: str
    name: str
    """Name of the publication's folder."""
    number: int
    """The set's number from 0."""
    batch_of: Mapping[str, int]
    """The batch of every stratum, by its label."""

    def __getitem__(self, label: str) -> str:
        return _texts(self.place, self.name, self.batch_of[label])[self.number][label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch_of)

    def __len__(self) -> int:
        return len(self.batch_of)


@dataclass(frozen=True)
class PublishBatch(Generic[P, R]):
    """Task that does a publication's work for one batch of strata."""

    place: str
    name: str
    """Name of the publication's folder."""
    version: int
    work: Callable[[P, range], R]

    def __call__(self, number: int) -> tuple[int, R]:
        released, batches, _ = _opened(self.place, self.name, self.version)
        return number, self.work(released, batches[number])

    def unit(self, number: int) -> dict[str, int | str]:
        return {"batch": number}


class Publication(NamedTuple):
    """What tasks need of a release: batches of strata, labels of strata, and every set's parameters as texts by stratum."""

    batches: Sequence[range]
    labels: Sequence[str]
    texts: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Tasks(Generic[P]):
    """Does work on batches by tasks. Their files lie in a folder of the workspace, which all workers reach.

    `with_texts` gives a release with other texts for parameters. Releases may differ in all but these.
    """

    workers: Executor
    space: Workspace
    folder: Path
    publication: Publication
    with_texts: Callable[[P, Sequence[Mapping[str, str]]], P]
    _versions: list[P] = field(default_factory=list)

    def __call__(self, work: Callable[[P, range], R], released: P, batches: Sequence[range]) -> Iterator[R]:
        """Results in the order of batches. Those that come too early wait."""
        number_of = {batch: number for number, batch in enumerate(self.publication.batches)}
        task = PublishBatch(self.space.place, self.folder.name, self._version(released), work)
        numbers, early = [number_of[batch] for batch in batches], dict[int, R]()
        results = self.workers.map(task, numbers)
        for number in numbers:
            while number not in early:
                done, result = next(results)
                early[done] = result
            yield early.pop(number)

    def write_batches(self) -> None:
        """Writes the parameters of every batch's strata, all sets in one file."""
        batches, labels, texts = self.publication
        self.folder.mkdir(parents=True)
        files = [_file(self.folder, number) for number in range(len(batches))]
        for batch, path in zip(batches, files, strict=True):
            path.write_bytes(pickle.dumps([{labels[k]: of_set[labels[k]] for k in batch} for of_set in texts]))
        self.space.store.keep(files)

    def _version(self, released: P) -> int:
        """The number of a release among those given. What is not a stratum's parameters is written the first time."""
        for number, version in enumerate(self._versions):
            if version is released:
                return number
        batches, labels, texts = self.publication
        batch_of = {labels[k]: number for number, batch in enumerate(batches) for k in batch}
        stored = [StoredTexts(self.space.place, self.folder.name, number, batch_of) for number in range(len(texts))]
        path = _shared(self.folder, len(self._versions))
        with private():
            path.write_bytes(pickle.dumps((self.with_texts(released, stored), batches)))
        self.space.store.keep([path])
        self._versions.append(released)
        return len(self._versions) - 1


@contextmanager
def tasks_on(
    workers: Executor,
    space: Workspace,
    publication: Publication,
    with_texts: Callable[[P, Sequence[Mapping[str, str]]], P],
) -> Iterator[Tasks[P] | None]:
    """Within the block, an executor does work on batches. None if that is this process, or if there is one batch only."""
    if isinstance(workers, Serial) or len(publication.batches) == 1:
        yield None
        return
    top = space.confidential / FOLDER
    _remove(space, top)  # of a driver that was killed
    tasks = Tasks(workers, space, top / uuid4().hex, publication, with_texts)
    try:
        with private():
            tasks.write_batches()
        yield tasks
    finally:
        _remove(space, top)


def _remove(space: Workspace, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    space.store.drop([folder])


def _file(folder: Path, batch: int) -> Path:
    return folder / f"{batch:06d}.pickle"


def _shared(folder: Path, version: int) -> Path:
    return folder / f"released-{version}.pickle"


@lru_cache(maxsize=1)
def _texts(place: str, name: str, batch: int) -> list[Mapping[str, str]]:
    space = Workspace.of_run(place, name)
    texts: list[Mapping[str, str]] = _unpickled(space, _file(space.confidential / FOLDER / name, batch))
    return texts


@lru_cache(maxsize=1)
def _opened(place: str, name: str, version: int) -> tuple[Any, list[range], Workspace]:
    """A release and its batches. The workspace stays open with them."""
    space = Workspace.of_run(place, name)
    released, batches = _unpickled(space, _shared(space.confidential / FOLDER / name, version))
    return released, batches, space


def _unpickled(space: Workspace, path: Path) -> Any:
    space.store.take(path)
    return pickle.loads(path.read_bytes())
