"""Ctrl-C while a cluster starts: kept until its processes exist, and never seen by them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


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
            raise KeyboardInterrupt

    try:
        yield let_through
    except Exception as error:
        if kept:
            raise KeyboardInterrupt from error
        raise
    finally:
        restore()
