"""Ctrl-C, remembered, and delayed while a cluster starts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_received: list[int] = []


def remember_interrupts() -> None:
    """From now on remembers Ctrl-C for `as_interrupt`. A process that ignores Ctrl-C goes on ignoring it."""
    _received.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def as_interrupt(act: Callable[[], None], exempt: tuple[type[Exception], ...] = ()) -> None:
    """Calls `act`, and turns any error after Ctrl-C into KeyboardInterrupt, except errors of the kinds `exempt`.

    numpy and pydantic may replace a KeyboardInterrupt by other errors.

    Raises
    ------
    KeyboardInterrupt
        For every error of `act` after Ctrl-C.
    """
    try:
        act()
    except exempt:
        raise
    except Exception as error:
        if _received:
            raise KeyboardInterrupt from error
        raise


def interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Delays Ctrl-C until the block ends. Yields a function that ends the delay sooner.

    Processes that are started in the block ignore Ctrl-C, because the driver ends its workers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    signals: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, stack_frame: signals.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)

    def let_through() -> None:
        restore()
        if signals:
            interrupt(signal.SIGINT, None)

    try:
        yield let_through
    except Exception as error:
        if signals:
            raise KeyboardInterrupt from error
        raise
    finally:
        restore()
