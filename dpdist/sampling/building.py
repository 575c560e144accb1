"""For `sampling.toolchain`: builds executables from Stan programs, by stanc and C++ compilers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from dpdist.core.errors import ProgramError, ToolchainError, install, installed, suggestion
from dpdist.core.files import sha256, write_text
from dpdist.core.this_process import available_memory, processors

PLATFORMS = "Linux on x86_64 (glibc) or macOS on arm64, CPython 3.11 to 3.14"
COMPILERS = "g++ 9 or later, or another C++17 compiler named by CXX"
INSTALL_COMPILER = "install it (Debian: apt-get install g++), or name another by CXX"
INSTALL_CMDSTAN = "install CmdStan with cmdstanpy.install_cmdstan()"


@dataclass(frozen=True)
class Executable:
    """A compiled program. `version` is Stan's version."""

    path: Path
    program: str
    version: str
    toolchain: str


class Toolchain(Protocol):
    """A source of Stan's tools. `identity` covers all that an executable depends on, other than its program."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def stanc(self) -> Path: ...

    @property
    def compiles(self) -> bool:
        """True if the toolchain can build programs that the cache lacks."""
        ...

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        """Compiles `source`, a program in `folder` that stanc has accepted. Its #include files are in `include`."""
        ...


def compiler_name() -> str:
    """The C++ compiler that the environment names."""
    return os.environ.get("CXX", "g++")


def stanc_command(tools: Toolchain, source: Path, include: Path, *arguments: str) -> tuple[str, ...]:
    return (str(tools.stanc), f"--include-paths={include}", f"--filename-in-msg={source.name}", *arguments, str(source))


def run_tool(command: tuple[str, ...], what: str) -> str:
    """Runs stanc or a compiler and returns its output. Raises `ProgramError` or `ToolchainError` with its message."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if Path(command[0]).name == "stanc":
        raise ProgramError(
            what, f"does not compile\n{without_source(done.stderr.strip() or done.stdout.strip())}", "correct the program"
        )
    if done.returncode < 0 or "Killed signal" in done.stderr:
        fault, allowed = f"the compiler was killed while it compiled {what}", "about 3 GB of free memory"
        raise ToolchainError(fault, allowed, "free memory, or build where there is more: dpdist stan build")
    fault = f"the compiler failed on {what}\n{tail(without_source(done.stderr))}"
    raise ToolchainError(fault, "g++ 9 or later with a full C++17 library", "see what `dpdist stan doctor` finds")


def without_source(message: str) -> str:
    """A compiler's message without the source lines that it quotes. Line numbers stay."""
    quoted = re.compile(r"^\s*(-{3,}|\d+\s*[:|].*|\|.*|\^.*|~.*)?$")
    return "\n".join(line for line in message.splitlines() if not quoted.match(line))


def tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-12:])


@cache
def first_line(*command: str) -> str:
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return output.splitlines()[0] if output else "unknown"


def find_program(name: str | Path) -> Path:
    """The path of a program. A name without a folder may also name a shipped program."""
    path = Path(name)
    if path.is_file() and path.suffix == ".stan":
        return path.absolute()
    shipped = shipped_programs()
    if path.name == str(name) and path.name.removesuffix(".stan") in shipped:
        return shipped[path.name.removesuffix(".stan")]
    remedy = suggestion(path.stem, shipped, f"check the path; shipped: {', '.join(shipped) or 'none'}")
    raise ProgramError(str(name), "no such Stan program (a file that ends with .stan)", remedy)


def shipped_programs() -> dict[str, Path]:
    """Programs shipped with dpdist, by name."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.stan"))}


def shipped_folder() -> Path:
    inside = Path(str(resources.files("dpdist") / "stan"))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "stan"  # in a source checkout


def texts(source: Path) -> Iterator[str]:
    """Texts of a program, and of the files that it includes from its folder."""
    seen, queue = set[Path](), [source]
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if path != source:  # stanc itself reports a wrong include
                continue
            fault = f"{path.name} cannot be read ({type(error).__name__})"
            raise ProgramError(source.name, fault, "give a UTF-8 text file") from None
        yield text
        included = [source.parent / name for name in re.findall(r'^\s*#include\s*[<"]?\s*([^\s>"]+)', text, re.MULTILINE)]
        if any(not path.resolve().is_relative_to(source.parent.resolve()) for path in included):
            raise ProgramError(source.name, "it includes a file of another folder", "put it beside the program")
        queue += included


# Each is compiled once. Free memory limits how many compilers run at a time.
_MEMORY_OF_A_COMPILE = 3 * 2**30


def cache_folder() -> Path:
    """The folder `stan` in $DPDIST_CACHE, or in the user's cache folder. It is created if it is missing."""
    configured = os.environ.get("DPDIST_CACHE")
    if not configured and not installed("platformdirs"):
        raise ToolchainError("platformdirs is not installed", "the extra 'stan'", install("platformdirs"))
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


def cached_build(path: Path, build: Callable[[Path], Path]) -> None:
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
            program = build(folder)
            digest = sha256(program)
            program.replace(path)
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
    return max(1, min(processors(), available_memory() // _MEMORY_OF_A_COMPILE))
