"""Independent pieces of work that workers may share: whoever has workers offers them, and whoever has pieces asks here.

So mathematics need not know of executors. Pieces are never cut by workers, so the results are the same, whoever works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

P = TypeVar("P")
R = TypeVar("R")


class Workers(Protocol):
    def __call__(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """Results of the work on every piece, in their order. Work and pieces can be pickled."""
        ...


_offered: ContextVar[Workers | None] = ContextVar("workers", default=None)


def share_out(work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
    """Does the work on every piece: by workers that are offered, or here. Results come in the order of the pieces."""
    workers: Any = _offered.get()
    return map(work, pieces) if workers is None or len(pieces) == 1 else workers(work, pieces)


@contextmanager
def offered(workers: Workers | None) -> Iterator[None]:
    """Within the block, and in this thread, `share_out` uses these workers."""
    token = _offered.set(workers)
    try:
        yield
    finally:
        _offered.reset(token)
