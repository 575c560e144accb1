"""From a Stan program to an executable that cmdstanpy runs: compiled once, kept in the user's cache folder.

Two toolchains: `cmdstan`, the user's own installation, and `embedded`, the parts of Stan inside the wheel httpstan, a
C++ compiler and the driver in `stan/driver/`. `auto` takes the first where cmdstanpy finds one. Programs that are built
need no compiler: the cache records the one that built them, which their names depend on.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Literal, Protocol, get_args

from dpdist.core.errors import ProgramError, ToolchainError
from dpdist.core.files import sha256, write_json
from dpdist.core.progress import Event, Listener, silent
from dpdist.sampling.cache import cache_folder, digest_of, intact, kept, turn
from dpdist.sampling.cmdstan import cmdstanpy, installed_cmdstan
from dpdist.sampling.programs import find_program, shipped_folder, texts

ToolchainName = Literal["auto", "cmdstan", "embedded"]

FLAGS = (
    *("-std=c++17", "-O1", "-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS", "-DSTAN_THREADS"),
    *("-Wno-sign-compare", "-Wno-ignored-attributes", "-Wno-deprecated-declarations", "-Wno-unknown-warning-option"),
)
_PLATFORMS = "Linux on x86_64 (glibc) or macOS on arm64, CPython 3.11 to 3.14"
_COMPILERS = "g++ 9 or later, or another C++17 compiler named by CXX"
_INSTALL_COMPILER = "install it (Debian: apt-get install g++), or name another by CXX"
_INSTALL_CMDSTAN = "install CmdStan with cmdstanpy.install_cmdstan()"


@dataclass(frozen=True)
class Executable:
    """A compiled program; `version` is Stan's."""

    path: Path
    program: str
    version: str
    toolchain: str


class Toolchain(Protocol):
    """Where Stan comes from; `identity` says everything, apart from the program, that an executable depends on."""

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
        """Whether it can build programs that are not built yet."""
        ...

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        """Compile `source`, a copy within `folder` of a program that stanc accepts; `include` serves its #include."""
        ...


def executable(program: str | Path, toolchain: ToolchainName = "auto", listener: Listener = silent) -> Executable:
    """The executable of a program, compiled if the cache has none.

    `program` is a path, or the name of a shipped program. Raises `ToolchainError` where nothing can be compiled and
    `ProgramError` where this program cannot.
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
    """Without a compiler, only programs that are built already can be had; one that stanc refuses is refused for that."""
    if not tools.compiles and not built(source, tools):
        _check(source, tools)
        found = f"no C++ compiler: {_compiler()} is not on the PATH, and {source.name} is not built"
        remedy = f"build it on the same system where there is one (dpdist stan build {source.name}), or {_INSTALL_COMPILER}"
        raise ToolchainError(found, _COMPILERS, remedy)


def check_program(program: str | Path, toolchain: ToolchainName = "auto") -> dict[str, dict[str, int]]:
    """Inputs, parameters and generated quantities of a program, each with its number of dimensions, by block; raises as
    `executable` does, and compiles nothing."""
    source, tools = find_program(program), find_toolchain(toolchain)
    _check_that_it_can_be_built(source, tools)
    said = json.loads(_check(source, tools))
    blocks = ("inputs", "parameters", "generated quantities")
    return {block: {name: int(about["dimensions"]) for name, about in said[block].items()} for block in blocks}


def find_toolchain(name: ToolchainName = "auto") -> Toolchain:
    """The toolchain of that name. Raises `ToolchainError` with what is missing."""
    if name not in get_args(ToolchainName):
        raise ToolchainError(f"toolchain '{name}' is not known", ", ".join(get_args(ToolchainName)), "use one of these")
    folder = installed_cmdstan() if name != "embedded" else None
    if folder is not None:
        return CmdStan(folder)
    if name == "cmdstan":
        raise ToolchainError("no CmdStan found", "an installation at $CMDSTAN or ~/.cmdstan", _INSTALL_CMDSTAN)
    return Embedded.find()


@dataclass(frozen=True)
class Embedded:
    """The wheel httpstan (Stan's headers, stanc, TBB, SUNDIALS), a compiler and our driver.

    Where no compiler is left, the one that the cache records: programs that it built are found and run.
    """

    package: Path
    package_version: str
    compiler: str
    compiler_version: str
    compiles: bool = True
    name: str = "embedded"

    @classmethod
    def find(cls) -> Embedded:
        spec = util.find_spec("httpstan")
        if spec is None or spec.origin is None:
            supported = (platform.system(), platform.machine()) in {("Linux", "x86_64"), ("Darwin", "arm64")}
            remedy = f"pip install 'dpdist[stan]', or {_INSTALL_CMDSTAN}" if supported else _INSTALL_CMDSTAN
            raise ToolchainError("no CmdStan found, and httpstan is not installed", _PLATFORMS, remedy)
        package, version, compiler = Path(spec.origin).parent, metadata.version("httpstan"), shutil.which(_compiler())
        if compiler is not None:
            return cls(package, version, compiler, _first_line(compiler, "--version"))
        recorded = _recorded()
        if recorded is None:
            raise ToolchainError(f"no C++ compiler: {_compiler()} is not on the PATH", _COMPILERS, _INSTALL_COMPILER)
        return cls(package, version, *recorded, compiles=False)

    def record(self) -> None:
        """Keep the compiler's identity beside the programs that it built; nothing in a cache that cannot be written."""
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
        """The package's place too: executables find TBB there."""
        driver = [sha256(path) for path in sorted((shipped_folder() / "driver").iterdir())]
        said = (self.package, self.package_version, self.compiler, self.compiler_version, *FLAGS, *driver)
        return "\n".join(map(str, said))

    @property
    def version(self) -> str:
        text = (self.package / "include" / "stan" / "version.hpp").read_text()
        return ".".join(re.findall(r"#define STAN_(?:MAJOR|MINOR|PATCH) (\d+)", text))

    @property
    def stanc(self) -> Path:
        return self.package / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        translated, unit, made = folder / "model.hpp", folder / "model.o", folder / "program"
        _run(_stanc(self, source, include, f"--o={translated}"), source.name)
        driver = cache_folder() / f"driver-{digest_of(self.identity)}.o"
        if not intact(driver):
            say("compiling the Stan driver, once, about 30 s")
        kept(driver, self._driver)
        with turn():
            self._compile(source.name, "-x", "c++", "-c", str(translated), "-o", str(unit))
        lib = self.package / "lib"
        tbb = next(path for path in (lib / "libtbb.so.2", lib / "libtbb.dylib", lib / "libtbb.so") if path.exists())
        static = sorted(map(str, lib.glob("libsundials_*.a")))
        link = (self.compiler, str(driver), str(unit), str(tbb), *static, f"-Wl,-rpath,{lib}", "-o", str(made))
        _run(link, source.name)
        return made

    def _driver(self, folder: Path) -> Path:
        made = folder / "driver.o"
        with turn():
            self._compile("the driver", "-c", str(shipped_folder() / "driver" / "driver.cpp"), "-o", str(made))
        return made

    def _compile(self, what: str, *arguments: str) -> None:
        _run((self.compiler, *FLAGS, "-isystem", str(self.package / "include"), *arguments), what)


@dataclass(frozen=True)
class CmdStan:
    """The user's CmdStan; programs are compiled by its own make, as copies in the cache, with chains in threads."""

    folder: Path
    compiles: bool = True
    name: str = "cmdstan"

    @property
    def description(self) -> str:
        return f"CmdStan {self.version} at {self.folder}"

    @property
    def identity(self) -> str:
        local = self.folder / "make" / "local"
        return "\n".join(
            (str(self.folder), self.version, local.read_text() if local.exists() else "", sha256(self._guard()))
        )

    @property
    def version(self) -> str:
        found = re.search(r"^CMDSTAN_VERSION *:= *(\S+)", (self.folder / "makefile").read_text(), re.MULTILINE)
        return found[1] if found else "unknown"

    @property
    def stanc(self) -> Path:
        return self.folder / "bin" / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        try:
            with turn():
                made = cmdstanpy().compile_stan_file(
                    source,
                    force=True,
                    stanc_options={"include-paths": [str(include)]},
                    cpp_options={"STAN_THREADS": "TRUE"},
                    user_header=str(self._guard()),
                )
        except (ValueError, RuntimeError) as error:
            raise ProgramError(
                source.name, _tail(without_source(str(error))), "see CmdStan's message; `dpdist stan doctor`"
            ) from None
        return Path(made)

    @staticmethod
    def _guard() -> Path:
        return shipped_folder() / "driver" / "guard.hpp"


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _record() -> Path:
    """The compiler that the cache's programs were last built with."""
    return cache_folder() / "compiler.json"


def _recorded() -> tuple[str, str] | None:
    try:
        said = json.loads(_record().read_text())
        return str(said["compiler"]), str(said["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cached_path(source: Path, tools: Toolchain) -> Path:
    """Where the executable of a program is kept: the name says all that it depends on."""
    return cache_folder() / f"{source.stem}-{digest_of(tools.identity, *texts(source))}"


def built(source: Path, tools: Toolchain) -> bool:
    return intact(cached_path(source, tools))


def _stanc(tools: Toolchain, source: Path, include: Path, *arguments: str) -> tuple[str, ...]:
    return (str(tools.stanc), f"--include-paths={include}", f"--filename-in-msg={source.name}", *arguments, str(source))


def _check(source: Path, tools: Toolchain) -> str:
    """What stanc says of a program, as JSON; a program that it refuses is refused before anything slow."""
    list(texts(source))
    return _run(_stanc(tools, source, source.parent, "--info"), source.name)


def _run(command: tuple[str, ...], what: str) -> str:
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
    found = f"the compiler failed on {what}\n{_tail(without_source(done.stderr))}"
    raise ToolchainError(found, "g++ 9 or later with a full C++17 library", "see what `dpdist stan doctor` finds")


def without_source(message: str) -> str:
    """A compiler's message without the lines of the file that it quotes: its line numbers stay."""
    quoted = re.compile(r"^\s*(-{3,}|\d+\s*[:|].*|\|.*|\^.*|~.*)?$")
    return "\n".join(line for line in message.splitlines() if not quoted.match(line))


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


@cache
def _first_line(*command: str) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0] if said else "unknown"
