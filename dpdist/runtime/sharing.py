"""For `release`: pieces of work (`core.sharing`) as tasks of an executor, by files in the workspace."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import uuid4

from dpdist.core.files import private
from dpdist.core.sharing import Workers
from dpdist.runtime.executors import Executor, Serial
from dpdist.storage.workspace import Workspace

P = TypeVar("P")
R = TypeVar("R")
FOLDER = "pieces"
"""Folder in the confidential one. What is made of a held release is not public, so its parameters are not."""


@dataclass(frozen=True)
class WorkPiece(Generic[R]):
    """Task that does some work on one piece, and returns the piece's number and the result."""

    place: str
    name: str
    """Name of the folder of this work. A process opens it once."""

    def __call__(self, number: int) -> tuple[int, R]:
        result: R = _work(self.place, self.name)(unpickled(self.place, self.name, _file(number)))
        return number, result

    def unit(self, number: int) -> dict[str, int | str]:
        return {"piece": number}


@dataclass(frozen=True)
class Pieces:
    """Offers an executor's workers for pieces of work."""

    executor: Executor
    space: Workspace

    def __call__(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Results in the order of the pieces. Those that come too early wait."""
        name, numbers, early = uuid4().hex, range(len(pieces)), dict[int, R]()
        try:
            store(self.space, name, {"work": work, **{_file(number): piece for number, piece in enumerate(pieces)}})
            task: WorkPiece[R] = WorkPiece(self.space.place, name)
            results = self.executor.map(task, numbers)
            for number in numbers:
                while number not in early:
                    done, result = next(results)
                    early[done] = result
                yield early.pop(number)
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
    """Stores values for all workers, in a folder of this name."""
    folder = folder_of(space, name)
    with private():
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            (folder / file).write_bytes(pickle.dumps(value))
    space.store.keep([folder / file for file in values])


def unpickled(place: str, name: str, file: str) -> Any:
    """A value that `store` has stored in the workspace at this place."""
    space = _space(place, name)
    path = folder_of(space, name) / file
    space.store.take(path)
    return pickle.loads(path.read_bytes())


def folder_of(space: Workspace, name: str) -> Path:
    return space.confidential / FOLDER / name


def remove(space: Workspace, folder: Path) -> None:
    """Removes a folder for all workers."""
    shutil.rmtree(folder, ignore_errors=True)
    space.store.drop([folder])


def _file(number: int) -> str:
    return f"{number:06d}"


@lru_cache(maxsize=2)
def _space(place: str, name: str) -> Workspace:
    """The workspace as tasks of this name see it. It stays open for the next task."""
    return Workspace.of_run(place, name)


@lru_cache(maxsize=1)
def _work(place: str, name: str) -> Callable[[Any], Any]:
    work: Callable[[Any], Any] = unpickled(place, name, "work")
    return work
