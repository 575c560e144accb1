"""Settings of this process: its start, one thread of linear algebra, standard streams, Ctrl-C."""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from pathlib import Path
from types import FrameType

from dpdist.core.errors import DpdistError

_received: list[int] = []


def remember_interrupts() -> None:
    """From now on remembers Ctrl-C for `as_interrupt`. A process that ignores Ctrl-C goes on ignoring it."""
    _received.clear()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


@contextmanager
def as_interrupt(exempt: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns any error of the block after Ctrl-C into KeyboardInterrupt, except errors of the kinds `exempt`.

    numpy and pydantic may replace a KeyboardInterrupt by other errors.

    Raises
    ------
    KeyboardInterrupt
        For every error of the block after Ctrl-C.
    """
    try:
        yield
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


class NestedStart(DpdistError):
    """A new process of the caller imports the caller's program, which asks for the same run again. Nothing was spent."""

    exit_code = 2

    def __init__(self) -> None:
        self.fault = "a process that the program has started imports the program and would therefore start the run again"
        self.remedy = 'put the code that starts the run below `if __name__ == "__main__":`'
        super().__init__(f"nested start: {self.fault}\n    remedy:  {self.remedy}")


def refuse_nested_start() -> None:
    """Raises `NestedStart` in a process of `multiprocessing` that is still importing the caller's main module.

    `multiprocessing` itself uses this mark to refuse further processes.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise NestedStart


def return_memory() -> None:
    """Returns memory of freed objects to the system: Arrow keeps it, and glibc much of what larger arrays have had."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


LARGEST_REUSED, LARGEST_OF_DRIVER, MOST_KEPT = 32 * 2**20, 4 * 2**20, 64 * 2**20
"""Bytes of the largest array that takes memory of freed ones, in a worker and in a driver, and of freed memory that waits
for arrays. A driver keeps many arrays for long, between which freed memory would be too small for others."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def reuse_memory(largest: int = LARGEST_REUSED) -> None:
    """Lets arrays take the memory of freed ones. The system clears every page that it gives anew, which takes longer than
    most sums over it; and Dask asks it for nearly every array of a worker.
    """
    if sys.platform == "linux" and (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_MMAP_THRESHOLD, largest)
        set_option(_TRIM_THRESHOLD, MOST_KEPT)


def share_memory_with_arrow() -> None:
    """Lets Arrow, if it is imported after this, take its memory from glibc: its own pools keep most of what was freed."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def write_no_core(for_good: bool = False) -> None:
    """Forbids core files of this process and those that it starts: its memory may hold records and keys.

    With `for_good`, nothing in this process can allow them again; otherwise its user can.
    """
    hard = 0 if for_good else resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def open_standard_streams() -> None:
    """Opens standard streams that are closed.

    Otherwise a file of the run could take a standard stream's number, and receive printed text.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as the process


def import_without_collecting() -> None:
    """Stops the garbage collector while modules are imported, which would take a sixth of a start.

    `collect_from_here` starts it again. At the end of the process, all remaining objects are skipped, which saves as
    much time.
    """
    gc.disable()
    atexit.register(gc.freeze)


def collect_from_here() -> None:
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def single_threaded() -> AbstractContextManager[object]:
    """Within the block, every BLAS has one thread, because sums shared by threads have other last digits."""
    import scipy.linalg  # noqa: F401 - it brings a BLAS of its own, which can be limited only once it is loaded
    from threadpoolctl import get_cached_controller  # to look for libraries takes milliseconds

    limits: AbstractContextManager[object] = get_cached_controller().limit(limits=1)
    return limits


def processors() -> int:
    """Number of processors that this process may use: by its affinity, and by the CPU quota of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([allowed, *(max(1, ceil(share)) for share in _processor_shares())])


CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def _processor_shares() -> Iterator[float]:
    """The processors that quotas allow: of this process's control group, and of each group above it.

    Version 2 has quota and period in one file, version 1 in two, below the folder of the controller.
    """
    try:
        lines = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, name in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CONTROL_GROUPS / controllers if controllers else CONTROL_GROUPS
        group = root / name.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            yield from _share_in(folder)


def _share_in(folder: Path) -> Iterator[float]:
    try:
        if (limit := folder / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):  # no quota here
        return


_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of a control group with its limit of memory, and what it uses, in both versions of control groups."""


def _read_number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # there is no such group, or its limit is "max"
        return None


def machine_memory() -> int:
    """The machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def container_memory() -> int | None:
    """The limit of memory, in bytes, of this process's control group; None if it has none below the machine's memory."""
    machine = machine_memory()
    limits = [limit for path, _ in _LIMITS if (limit := _read_number(path)) is not None and limit < machine]
    return min(limits, default=None)


def available_memory() -> int:
    """Bytes that a new process may use: the machine's free memory, or less under a control group's limit."""
    limits = [2**63]
    if (info := Path("/proc/meminfo")).exists() and (available := re.search(r"MemAvailable:\s+(\d+) kB", info.read_text())):
        limits.append(int(available[1]) * 1024)
    for limit, usage in _LIMITS:
        if (most := _read_number(limit)) is not None and (now := _read_number(usage)) is not None:
            limits.append(most - now)
    return max(0, min(limits))


def resident_memory() -> int:
    """The resident memory of this process, in bytes; 0 where the system does not tell."""
    return _status("VmRSS")


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where the system does not tell."""
    return _status("VmHWM")


def _status(field: str) -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    size = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(size[1]) * 1024 if size else 0
