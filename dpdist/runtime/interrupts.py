"""Handles Ctrl-C: a command records it, and it is delayed while the processes of a cluster start."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

_received: list[int] = []


def remember_interrupts() -> None:
    """From now on `as_interrupt` knows whether Ctrl-C came. A process that ignores Ctrl-C goes on doing so."""
    _received.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def as_interrupt(act: Callable[[], None]) -> None:
    """Run. An error after Ctrl-C is that Ctrl-C: numpy and pydantic turn a KeyboardInterrupt into an error of their own.

    Raises
    ------
    KeyboardInterrupt
        For every error of `act` after Ctrl-C.
    """
    try:
        act()
    except Exception as error:
        if _received:
            raise KeyboardInterrupt from error
        raise


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles a signal by a KeyboardInterrupt that `as_interrupt` remembers."""
    _received.append(number)
    raise KeyboardInterrupt


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until it is let through, and processes started before that never see it: a driver ends its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    resource_tracker.ensure_running()  # whoever starts it lets interrupts through to what is started next
    kept: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)

    def let_through() -> None:
        restore()
        if kept:
            interrupt(signal.SIGINT, None)

    try:
        yield let_through
    except Exception as error:
        if kept:
            raise KeyboardInterrupt from error
        raise
    finally:
        restore()
