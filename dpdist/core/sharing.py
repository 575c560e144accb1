"""Sharing of independent pieces of work: an executor offers its workers here, and numerical code hands them pieces.

So numerical code need not know of executors. How work is cut into pieces never depends on the workers, so the results are
the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

P = TypeVar("P")
R = TypeVar("R")


class Workers(Protocol):
    def __call__(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Results of the work on every piece, in their order. Work and pieces can be pickled."""
        ...


@dataclass(frozen=True)
class PiecesInTurn(Sequence[P]):
    """A number of pieces, each made when it is asked for: all of them may be more than memory should hold."""

    piece: Callable[[int], P]
    number: int

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, number: int) -> P: ...

    @overload
    def __getitem__(self, number: slice) -> list[P]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(self.number)[number]]
        return self.piece(range(self.number)[number])


_offered: ContextVar[Workers | None] = ContextVar("workers", default=None)


def share_out(work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
    """Does the work on every piece: by the workers in use, or in this process. Results come in the order of the pieces."""
    workers: Any = _offered.get()
    return map(work, pieces) if workers is None or len(pieces) == 1 else workers(work, pieces)


@contextmanager
def using_workers(workers: Workers | None) -> Iterator[None]:
    """Within the block, and in this thread, `share_out` uses these workers."""
    token = _offered.set(workers)
    try:
        yield
    finally:
        _offered.reset(token)
