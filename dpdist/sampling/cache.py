"""Keeps compiled Stan programs in the user's cache folder.

Each is compiled once. Free memory limits how many compilers run at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

from filelock import FileLock, Timeout

from dpdist.core.errors import ToolchainError
from dpdist.core.files import sha256, write_text

_MEMORY_OF_A_COMPILE = 3 * 2**30


def cache_folder() -> Path:
    """The folder `stan` in $DPDIST_CACHE, or in the user's cache folder. It is created if it is missing."""
    configured = os.environ.get("DPDIST_CACHE")
    if not configured and util.find_spec("platformdirs") is None:
        raise ToolchainError("platformdirs is not installed", "the extra 'stan'", "pip install 'dpdist[stan]'")
    if configured:
        folder = Path(configured).absolute() / "stan"
    else:
        from platformdirs import user_cache_path

        folder = user_cache_path("dpdist") / "stan"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"the cache folder {folder} cannot be made ({error.strerror})"
        raise ToolchainError(fault, "a folder that you may write to", "name another by DPDIST_CACHE") from None
    return folder


def kept(path: Path, build: Callable[[Path], Path]) -> None:
    """Makes a file of the cache once. `build` makes it in a folder of its own, while other processes wait.

    A stored checksum shows whether the file is damaged; then it is made again.
    """
    if intact(path):
        return
    with FileLock(path.with_name(path.name + ".lock")):
        if intact(path):
            return
        folder = path.with_name(path.name + ".part")
        shutil.rmtree(folder, ignore_errors=True)  # a killed process may have left this folder
        folder.mkdir()
        try:
            made = build(folder)
            digest = sha256(made)
            made.replace(path)
            write_text(_digest_file(path), digest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def intact(path: Path) -> bool:
    try:
        return _digest_file(path).read_text() == sha256(path)
    except OSError:
        return False


def _digest_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def digest_of(*texts: str) -> str:
    hashed = hashlib.sha256()
    for text in texts:
        hashed.update(len(text).to_bytes(8, "little") + text.encode())
    return hashed.hexdigest()[:20]


@contextmanager
def turn() -> Iterator[None]:
    """Waits until free memory and cores allow one more compiler, which may need 3 GB."""
    while True:
        for place in range(compiles_at_once()):
            lock = FileLock(cache_folder() / f"turn-{place}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                yield
            finally:
                lock.release()
            return
        time.sleep(0.2)


def compiles_at_once() -> int:
    return max(1, min(os.cpu_count() or 1, available_memory() // _MEMORY_OF_A_COMPILE))


def available_memory() -> int:
    """Bytes that a new process may use: the machine's free memory, or less under a control group's limit."""
    limits = [2**63]
    if (info := Path("/proc/meminfo")).exists() and (available := re.search(r"MemAvailable:\s+(\d+) kB", info.read_text())):
        limits.append(int(available[1]) * 1024)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # there is no such group, or its limit is "max"
            continue
    return max(0, min(limits))
