"""For `release`: publication's work on batches of strata as pieces of work that an executor's workers share.

Publication sees no record, and it knows no workspace. So no process but the driver holds the parameters of all strata:
another one reads those of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar
from uuid import uuid4

from dpdist.core.sharing import Workers
from dpdist.runtime.sharing import store, unpickled
from dpdist.storage.workspace import Workspace

P = TypeVar("P")
R = TypeVar("R")


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
    texts: list[Mapping[str, str]] = unpickled(place, name, f"{batch:06d}")
    return texts
