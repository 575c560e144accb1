"""For `sampling.markov` and `cli.stan`: compiles a Stan program once, and keeps it in the user's cache.

There are two toolchains. `cmdstan` is the user's installation of CmdStan. `embedded` takes Stan from the wheel
httpstan, with a C++ compiler and the driver in `stan/driver/`. `auto` takes `cmdstan` if cmdstanpy finds an
installation. Programs in the cache need no compiler. The cache records the compiler of its programs, because their
names depend on it.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal, get_args

from dpdist.core.errors import ToolchainError, install
from dpdist.core.files import sha256, write_json
from dpdist.core.progress import Event, Listener, silent
from dpdist.sampling.building import (
    COMPILERS,
    INSTALL_CMDSTAN,
    INSTALL_COMPILER,
    PLATFORMS,
    Executable,
    Toolchain,
    cache_folder,
    cached_build,
    compiler_name,
    digest_of,
    find_program,
    first_line,
    intact,
    run_tool,
    shipped_folder,
    stanc_command,
    texts,
    turn,
)
from dpdist.sampling.stan import CmdStan, installed_cmdstan

FLAGS = (
    *("-std=c++17", "-O1", "-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS", "-DSTAN_THREADS"),
    *("-Wno-sign-compare", "-Wno-ignored-attributes", "-Wno-deprecated-declarations", "-Wno-unknown-warning-option"),
)


@dataclass(frozen=True)
class EmbeddedToolchain:
    """The wheel httpstan (Stan's headers, stanc, TBB, SUNDIALS), a C++ compiler, and dpdist's driver.

    Without an installed compiler, `compiler` is the cache's; programs that it built still run.
    """

    package: Path
    package_version: str
    compiler: str
    compiler_version: str
    compiles: bool = True
    name: str = "embedded"

    @classmethod
    def find(cls) -> EmbeddedToolchain:
        spec = util.find_spec("httpstan")
        if spec is None or spec.origin is None:
            supported = (platform.system(), platform.machine()) in {("Linux", "x86_64"), ("Darwin", "arm64")}
            remedy = f"{install('httpstan')}, or {INSTALL_CMDSTAN}" if supported else INSTALL_CMDSTAN
            raise ToolchainError("no CmdStan found, and httpstan is not installed", PLATFORMS, remedy)
        package, version, compiler = Path(spec.origin).parent, metadata.version("httpstan"), shutil.which(compiler_name())
        if compiler is not None:
            return cls(package, version, compiler, first_line(compiler, "--version"))
        recorded = _recorded()
        if recorded is None:
            raise ToolchainError(f"no C++ compiler: {compiler_name()} is not on the PATH", COMPILERS, INSTALL_COMPILER)
        return cls(package, version, *recorded, compiles=False)

    def record(self) -> None:
        """Stores which compiler built the programs in the cache.

        If the cache cannot be written, nothing is stored.
        """
        if self.compiles and _recorded() != (self.compiler, self.compiler_version):
            with suppress(OSError):
                write_json(_record(), {"compiler": self.compiler, "version": self.compiler_version})

    @property
    def description(self) -> str:
        compiler = self.compiler_version
        if not self.compiles:
            compiler = f"no C++ compiler: programs that {compiler} built can be run, others not"
        return f"Stan {self.version} in httpstan {self.package_version}, {compiler}"

    @property
    def identity(self) -> str:
        """Identity of the toolchain. It includes the package's folder, because executables find TBB there."""
        driver = [sha256(path) for path in sorted((shipped_folder() / "driver").iterdir())]
        parts = (self.package, self.package_version, self.compiler, self.compiler_version, *FLAGS, *driver)
        return "\n".join(map(str, parts))

    @property
    def version(self) -> str:
        text = (self.package / "include" / "stan" / "version.hpp").read_text()
        return ".".join(re.findall(r"#define STAN_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    @property
    def stanc(self) -> Path:
        return self.package / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        translated, unit, program = folder / "model.hpp", folder / "model.o", folder / "program"
        run_tool(stanc_command(self, source, include, f"--o={translated}"), source.name)
        driver = cache_folder() / f"driver-{digest_of(self.identity)}.o"
        if not intact(driver):
            say("compiling the Stan driver, once, about 30 s")
        cached_build(driver, self._driver)
        with turn():
            self._compile(source.name, "-x", "c++", "-c", str(translated), "-o", str(unit))
        lib = self.package / "lib"
        tbb = next(path for path in (lib / "libtbb.so.2", lib / "libtbb.dylib", lib / "libtbb.so") if path.exists())
        static = sorted(map(str, lib.glob("libsundials_*.a")))
        link = (self.compiler, str(driver), str(unit), str(tbb), *static, f"-Wl,-rpath,{lib}", "-o", str(program))
        run_tool(link, source.name)
        return program

    def _driver(self, folder: Path) -> Path:
        object_file = folder / "driver.o"
        with turn():
            self._compile("the driver", "-c", str(shipped_folder() / "driver" / "driver.cpp"), "-o", str(object_file))
        return object_file

    def _compile(self, what: str, *arguments: str) -> None:
        run_tool((self.compiler, *FLAGS, "-isystem", str(self.package / "include"), *arguments), what)


def _record() -> Path:
    """Path of the file that names the compiler of the programs in the cache."""
    return cache_folder() / "compiler.json"


def _recorded() -> tuple[str, str] | None:
    try:
        content = json.loads(_record().read_text())
        return str(content["compiler"]), str(content["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


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

    executable = Executable(cached_path(source, tools), source.stem, tools.version, tools.name)
    _check_that_it_can_be_built(source, tools)
    cached_build(executable.path, build)
    if isinstance(tools, EmbeddedToolchain):
        tools.record()
    return executable


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
    return EmbeddedToolchain.find()


def cached_path(source: Path, tools: Toolchain) -> Path:
    """The path of a program's executable in the cache. Its name depends on all that the executable depends on."""
    return cache_folder() / f"{source.stem}-{digest_of(tools.identity, *texts(source))}"


def built(source: Path, tools: Toolchain) -> bool:
    return intact(cached_path(source, tools))


def _check(source: Path, tools: Toolchain) -> str:
    """The output of stanc for a program, as JSON. Raises `ProgramError` for a wrong program, before any slow step."""
    list(texts(source))
    return run_tool(stanc_command(tools, source, source.parent, "--info"), source.name)
