"""Compiles a Stan program once to an executable that cmdstanpy can run, and keeps it in the user's cache folder.

There are two toolchains. `cmdstan` is the user's installation of CmdStan. `embedded` takes Stan from the wheel httpstan,
with a C++ compiler and the driver in `stan/driver/`. `auto` takes `cmdstan` if cmdstanpy finds an installation. Programs in
the cache need no compiler. The cache records which compiler built them, because their names depend on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

from dpdist.core.errors import ToolchainError
from dpdist.core.progress import Event, Listener, silent
from dpdist.sampling.building import (
    COMPILERS,
    INSTALL_CMDSTAN,
    INSTALL_COMPILER,
    Executable,
    Toolchain,
    compiler_name,
    find_program,
    run_tool,
    stanc_command,
    texts,
)
from dpdist.sampling.cache import cache_folder, digest_of, intact, kept
from dpdist.sampling.cmdstan import CmdStan, installed_cmdstan
from dpdist.sampling.embedded import Embedded

ToolchainName = Literal["auto", "cmdstan", "embedded"]


def executable(program: str | Path, toolchain: ToolchainName = "auto", listener: Listener = silent) -> Executable:
    """The executable of a program. It is compiled if the cache lacks it.

    `program` is a path, or the name of a shipped program. Raises `ProgramError` for a wrong program, and
    `ToolchainError` if a right one cannot be compiled here.
    """
    return _executable(find_program(program), find_toolchain(toolchain), listener)


def _executable(source: Path, tools: Toolchain, listener: Listener) -> Executable:
    def say(note: str) -> None:
        listener(Event("note", "stan", note=note))

    def build(folder: Path) -> Path:
        _check(source, tools)
        say(f"compiling {source.name}, once, about 20 s")
        copy = folder / "model" / source.name
        copy.parent.mkdir()
        copy.write_bytes(source.read_bytes())
        return tools.build(copy, folder, source.parent, say)

    made = Executable(cached_path(source, tools), source.stem, tools.version, tools.name)
    _check_that_it_can_be_built(source, tools)
    kept(made.path, build)
    if isinstance(tools, Embedded):
        tools.record()
    return made


def _check_that_it_can_be_built(source: Path, tools: Toolchain) -> None:
    """Raises an error if a program must be compiled and there is no compiler.

    For a wrong program it raises stanc's error instead.
    """
    if not tools.compiles and not built(source, tools):
        _check(source, tools)
        fault = f"no C++ compiler: {compiler_name()} is not on the PATH, and {source.name} is not built"
        build = f"build it on a computer of the same system that has a compiler (dpdist stan build {source.name})"
        remedy = f"{build}, or {INSTALL_COMPILER}"
        raise ToolchainError(fault, COMPILERS, remedy)


def check_program(program: str | Path, toolchain: ToolchainName = "auto") -> dict[str, dict[str, int]]:
    """Inputs, parameters and generated quantities of a program, by block, each with its number of dimensions.

    Nothing is compiled. Raises the errors of `executable`.
    """
    source, tools = find_program(program), find_toolchain(toolchain)
    _check_that_it_can_be_built(source, tools)
    declared = json.loads(_check(source, tools))
    blocks = ("inputs", "parameters", "generated quantities")
    return {block: {name: int(about["dimensions"]) for name, about in declared[block].items()} for block in blocks}


def find_toolchain(name: ToolchainName = "auto") -> Toolchain:
    """The toolchain of this name. Raises `ToolchainError`, which names the tools that are missing."""
    if name not in get_args(ToolchainName):
        raise ToolchainError(f"toolchain '{name}' is not known", ", ".join(get_args(ToolchainName)), "use one of these")
    folder = installed_cmdstan() if name != "embedded" else None
    if folder is not None:
        return CmdStan(folder)
    if name == "cmdstan":
        raise ToolchainError("no CmdStan found", "an installation at $CMDSTAN or ~/.cmdstan", INSTALL_CMDSTAN)
    return Embedded.find()


def cached_path(source: Path, tools: Toolchain) -> Path:
    """The path of a program's executable in the cache. Its name depends on all that the executable depends on."""
    return cache_folder() / f"{source.stem}-{digest_of(tools.identity, *texts(source))}"


def built(source: Path, tools: Toolchain) -> bool:
    return intact(cached_path(source, tools))


def _check(source: Path, tools: Toolchain) -> str:
    """The output of stanc for a program, as JSON. Raises `ProgramError` for a wrong program, before any slow step."""
    list(texts(source))
    return run_tool(stanc_command(tools, source, source.parent, "--info"), source.name)
