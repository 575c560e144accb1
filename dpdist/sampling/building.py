"""Builds executables from Stan programs: declares what a toolchain is, and runs stanc and C++ compilers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from dpdist.core.errors import ProgramError, ToolchainError

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
        found, allowed = f"the compiler was killed while it compiled {what}", "about 3 GB of free memory"
        raise ToolchainError(found, allowed, "free memory, or build where there is more: dpdist stan build")
    found = f"the compiler failed on {what}\n{tail(without_source(done.stderr))}"
    raise ToolchainError(found, "g++ 9 or later with a full C++17 library", "see what `dpdist stan doctor` finds")


def without_source(message: str) -> str:
    """A compiler's message without the source lines that it quotes. Line numbers stay."""
    quoted = re.compile(r"^\s*(-{3,}|\d+\s*[:|].*|\|.*|\^.*|~.*)?$")
    return "\n".join(line for line in message.splitlines() if not quoted.match(line))


def tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


@cache
def first_line(*command: str) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0] if said else "unknown"
