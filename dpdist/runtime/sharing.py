"""Pieces of work, and publication's work on batches of strata, as tasks of an executor, by files in the workspace."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from dpdist.core.files import private, replaced
from dpdist.core.sharing import Workers
from dpdist.core.this_process import resident_memory, return_memory
from dpdist.runtime.executors import Executor, Serial
from dpdist.storage.workspace import Workspace

P = TypeVar("P")
R = TypeVar("R")
FOLDER = "pieces"
"""Folder in the confidential one. What is made of a held release is not public, so its parameters are not."""
RESULT = ".result"
"""End of the name of a result's file."""
MUCH = 2**29
"""Resident bytes of a process from which it returns what a piece of work has freed: another may need it."""
LARGE, ALIGNED, ARRAYS = 2**16, 64, ".arrays"
"""Bytes of a large array, and the multiple at which it begins in the file of arrays; and the end of that file's name."""


@dataclass(frozen=True)
class WorkPiece:
    """Task that does some work on one piece, stores the result beside the piece, and returns the piece's number."""

    place: str
    name: str
    """Name of the folder of this work. A process opens it once."""

    def __call__(self, number: int) -> int:
        space = _space(self.place, self.name)
        result = _work(self.place, self.name)(unpickle(space, self.name, _file(number)))
        store(space, self.name, {f"{_file(number)}{RESULT}": result})
        del result
        if resident_memory() > MUCH:
            return_memory()
        return number

    def unit(self, number: int) -> dict[str, int | str]:
        return {"piece": number}


@dataclass(frozen=True)
class Pieces:
    """Offers an executor's workers for pieces of work."""

    executor: Executor
    space: Workspace

    def __call__(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Results in the order of the pieces. Those that come too early wait in their files."""
        name, numbers, finished = uuid4().hex, range(len(pieces)), set[int]()
        try:
            store(self.space, name, {"work": work})
            del work  # it may be large
            for number, piece in enumerate(pieces):  # one at a time: all of them may be more than memory should hold
                store(self.space, name, {_file(number): piece})
            results = self.executor.map(WorkPiece(self.space.place, name), numbers)
            for number in numbers:
                while number not in finished:
                    finished.add(next(results))
                result: R = unpickle(self.space, name, f"{_file(number)}{RESULT}")
                yield result
        finally:
            remove(self.space, folder_of(self.space, name))


@contextmanager
def pieces_on(executor: Executor, space: Workspace) -> Iterator[Workers | None]:
    """Within the block, pieces of work are tasks of an executor; None if that is this process."""
    top = space.confidential / FOLDER
    remove(space, top)  # of a driver that was killed
    if isinstance(executor, Serial):
        yield None
        return
    try:
        yield Pieces(executor, space)
    finally:
        remove(space, top)


def store(space: Workspace, name: str, values: dict[str, Any]) -> None:
    """Stores values for all workers, in a folder of this name. Large arrays have a file of their own."""
    folder, paths = folder_of(space, name), list[Path]()
    with private():
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            arrays = list[memoryview]()

            def small(buffer: pickle.PickleBuffer, arrays: list[memoryview] = arrays) -> bool:
                if buffer.raw().nbytes < LARGE:
                    return True
                arrays.append(buffer.raw())
                return False

            content = pickle.dumps(value, protocol=5, buffer_callback=small)
            sizes = [array.nbytes for array in arrays]
            if arrays:
                paths.append(folder / f"{file}{ARRAYS}")
                with replaced(paths[-1], durable=False) as temporary, temporary.open("wb") as handle:
                    for array in arrays:
                        handle.write(array)
                        handle.write(bytes(-array.nbytes % ALIGNED))
            paths.append(folder / file)
            with replaced(paths[-1], durable=False) as temporary:
                temporary.write_bytes(pickle.dumps((content, sizes)))
    space.store.upload(paths)


def unpickle(space: Workspace, name: str, file: str) -> Any:
    """A value that `store` has stored in a workspace, in the folder of this name.

    Large arrays are mapped from their file, so that all workers of a machine have them in memory once. Changes of such an
    array stay in this process.
    """
    path = folder_of(space, name) / file
    space.store.download(path)
    content, sizes = pickle.loads(path.read_bytes())
    arrays, start = list[memoryview](), 0
    if sizes:
        path = path.with_name(f"{file}{ARRAYS}")
        space.store.download(path)
        with path.open("rb") as handle:
            mapped = memoryview(mmap(handle.fileno(), 0, access=ACCESS_COPY))
        for size in sizes:
            arrays.append(mapped[start : start + size])
            start += size + -size % ALIGNED
    return pickle.loads(content, buffers=arrays)


def folder_of(space: Workspace, name: str) -> Path:
    return space.confidential / FOLDER / name


def remove(space: Workspace, folder: Path) -> None:
    """Removes a folder for all workers."""
    shutil.rmtree(folder, ignore_errors=True)
    space.store.delete([folder])


def _file(number: int) -> str:
    return f"{number:06d}"


@lru_cache(maxsize=2)
def _space(place: str, name: str) -> Workspace:
    """The workspace as tasks of this name see it. It stays open for the next task."""
    return Workspace.of_run(place, name)


@lru_cache(maxsize=1)
def _work(place: str, name: str) -> Callable[[Any], Any]:
    work: Callable[[Any], Any] = unpickle(_space(place, name), name, "work")
    return work


# Publication sees no record, and it knows no workspace. So no process but the driver holds the parameters of all strata:
# another one reads those of its batch.
@dataclass(frozen=True, eq=False)
class StoredTexts(Mapping[str, str]):
    """A set's parameters as texts by stratum, read from the files of batches. A process keeps the batch read last."""

    place: str
    name: str
    """Name of the folder of these files."""
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


class Publication(NamedTuple):
    """What workers need of a release: batches of strata, their labels, and every set's parameters as texts by stratum."""

    batches: Sequence[range]
    labels: Sequence[str]
    texts: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class OnBatches(Generic[P, R]):
    """Work on batches of a release whose parameters are stored."""

    work: Callable[[P, range], R]
    released: P

    def __call__(self, batch: range) -> R:
        return self.work(self.released, batch)


@dataclass(frozen=True)
class StoredRelease(Generic[P]):
    """A release whose parameters are stored for workers. Calls do work on its batches, in the order of batches.

    `with_texts` gives a release with other texts for parameters. Releases of calls may differ in all but parameters.
    """

    workers: Workers
    stored: Sequence[StoredTexts]
    with_texts: Callable[[P, Sequence[Mapping[str, str]]], P]

    @classmethod
    def of(
        cls,
        workers: Workers,
        space: Workspace,
        publication: Publication,
        with_texts: Callable[[P, Sequence[Mapping[str, str]]], P],
    ) -> StoredRelease[P]:
        batches, labels, texts = publication
        name, batch_of = uuid4().hex, {labels[k]: number for number, batch in enumerate(batches) for k in batch}
        for number, batch in enumerate(batches):
            store(space, name, {f"{number:06d}": [{labels[k]: of_set[labels[k]] for k in batch} for of_set in texts]})
        stored = [StoredTexts(space.place, name, number, batch_of) for number in range(len(texts))]
        return StoredRelease(workers, stored, with_texts)

    def __call__(self, work: Callable[[P, range], R], released: P, batches: Sequence[range]) -> Iterator[R]:
        on_batches: OnBatches[P, R] = OnBatches(work, self.with_texts(released, self.stored))
        return self.workers(on_batches, batches)


@lru_cache(maxsize=1)
def _texts(place: str, name: str, batch: int) -> list[Mapping[str, str]]:
    texts: list[Mapping[str, str]] = unpickle(_space(place, name), name, f"{batch:06d}")
    return texts
