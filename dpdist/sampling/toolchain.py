"""Toolchains for Stan programs, `cmdstan` and `embedded`: compile a program once, and keep it in the user's cache.

There are two toolchains. `cmdstan` is the user's installation of CmdStan. `embedded` takes Stan from the wheel
httpstan, with a C++ compiler and the driver in `stan/driver/`. `auto` takes `cmdstan` if cmdstanpy finds an
installation. Programs in the cache need no compiler. The cache records the compiler of its programs, because their
names depend on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources, util
from pathlib import Path
from typing import Any, NamedTuple, get_args

from filelock import FileLock, Timeout

from dpdist.core.errors import ProgramError, ToolchainError, install, installed, suggestion
from dpdist.core.files import sha256, write_json, write_text
from dpdist.core.progress import Event, Listener, silent
from dpdist.core.this_process import available_memory, processors
from dpdist.job import Toolchain

PLATFORMS = "Linux on x86_64 (glibc) or macOS on arm64, CPython 3.11 to 3.14"
COMPILERS = "g++ 9 or later, or another C++17 compiler named by CXX"
INSTALL_COMPILER = "install it (Debian: apt-get install g++), or name another by CXX"
INSTALL_CMDSTAN = "install CmdStan with cmdstanpy.install_cmdstan()"


class Executable(NamedTuple):
    """A compiled program."""

    path: Path
    program: str


def compiler_name() -> str:
    """The C++ compiler that the environment names."""
    return os.environ.get("CXX", "g++")


def stanc_command(tools: Tools, source: Path, include: Path, *arguments: str) -> tuple[str, ...]:
    return (str(tools.stanc), f"--include-paths={include}", f"--filename-in-msg={source.name}", *arguments, str(source))


def run_tool(command: tuple[str, ...], what: str) -> str:
    """Runs stanc or a compiler and returns its output. Raises `ProgramError` or `ToolchainError` with its message."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return result.stdout
    if Path(command[0]).name == "stanc":
        raise ProgramError(
            what,
            f"does not compile\n{without_source(result.stderr.strip() or result.stdout.strip())}",
            "correct the program",
        )
    if result.returncode < 0 or "Killed signal" in result.stderr:
        fault, allowed = f"the compiler was killed while compiling {what}", "about 3 GB of free memory"
        raise ToolchainError(fault, allowed, "free memory, or build where there is more: dpdist stan build")
    fault = f"the compiler failed on {what}\n{tail(without_source(result.stderr))}"
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
            raise ProgramError(source.name, "it includes a file of another folder", "put it into the folder of the program")
        queue += included


# Memory that one compiler may need: what is free limits how many run at a time.
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
        fault = f"the cache folder {folder} cannot be created ({error.strerror})"
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


# Only this file imports cmdstanpy, and only at first use. It silences cmdstanpy's log, which would name private folders.
def cmdstanpy() -> Any:
    """The module cmdstanpy. Raises `ToolchainError` if it is not installed."""
    try:
        import cmdstanpy as module
    except ImportError:
        raise ToolchainError("cmdstanpy is not installed", "the extra 'stan'", install("cmdstanpy")) from None
    module.disable_logging()
    return module


def installed_cmdstan() -> Path | None:
    """The folder of the user's CmdStan, as cmdstanpy finds it: $CMDSTAN, or the latest in ~/.cmdstan; None without one."""
    try:
        return Path(cmdstanpy().cmdstan_path())
    except ValueError:
        return None


def variables(header: str) -> dict[str, Any]:
    """Variables in a Stan CSV file, by name, from its header line. `extract_reshape` takes their values from a row."""
    import stanio

    return dict(stanio.parse_header(header))


@dataclass(frozen=True)
class CmdStan:
    """The user's CmdStan. Its makefile compiles copies of programs in the cache, with chains in threads."""

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
        match = re.search(r"^CMDSTAN_VERSION *:= *(\S+)", (self.folder / "makefile").read_text(), re.MULTILINE)
        return match[1] if match else "unknown"

    @property
    def stanc(self) -> Path:
        return self.folder / "bin" / "stanc"

    def build(self, source: Path, folder: Path, include: Path, say: Callable[[str], None]) -> Path:
        try:
            with turn():
                model = cmdstanpy().compile_stan_file(
                    source,
                    force=True,
                    stanc_options={"include-paths": [str(include)]},
                    cpp_options={"STAN_THREADS": "TRUE"},
                    user_header=str(self._guard()),
                )
        except (ValueError, RuntimeError) as error:
            raise ProgramError(
                source.name, tail(without_source(str(error))), "see CmdStan's message; `dpdist stan doctor`"
            ) from None
        return Path(model)

    @staticmethod
    def _guard() -> Path:
        return shipped_folder() / "driver" / "guard.hpp"


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
                write_json(_record_path(), {"compiler": self.compiler, "version": self.compiler_version})

    @property
    def description(self) -> str:
        compiler = self.compiler_version
        if not self.compiles:
            compiler = f"no C++ compiler: only programs that {compiler} has built can be run"
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


Tools = CmdStan | EmbeddedToolchain
"""A source of Stan's tools, with `name`, `version`, `description` and `stanc`.

`identity` covers all that an executable depends on, other than its program. `compiles` is true if programs that the cache
lacks can be built. `build` compiles a program in a folder, that stanc has accepted; its #include files are in another.
"""


def _record_path() -> Path:
    """Path of the file that names the compiler of the programs in the cache."""
    return cache_folder() / "compiler.json"


def _recorded() -> tuple[str, str] | None:
    try:
        content = json.loads(_record_path().read_text())
        return str(content["compiler"]), str(content["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def executable(program: str | Path, toolchain: str = "auto", listener: Listener = silent) -> Executable:
    """The executable of a program. It is compiled if the cache lacks it.

    `program` is a path, or the name of a shipped program. Raises `ProgramError` for a wrong program, and
    `ToolchainError` if a right one cannot be compiled here.
    """
    source, tools = find_program(program), find_toolchain(toolchain)

    def say(note: str) -> None:
        listener(Event("note", "stan", note=note))

    def build(folder: Path) -> Path:
        _check(source, tools)
        say(f"compiling {source.name}, once, about 20 s")
        copy = folder / "model" / source.name
        copy.parent.mkdir()
        copy.write_bytes(source.read_bytes())
        return tools.build(copy, folder, source.parent, say)

    path = cached_path(source, tools)
    _check_that_it_can_be_built(source, tools)
    cached_build(path, build)
    if isinstance(tools, EmbeddedToolchain):
        tools.record()
    return Executable(path, source.stem)


def _check_that_it_can_be_built(source: Path, tools: Tools) -> None:
    """Raises an error if a program must be compiled and there is no compiler.

    For a wrong program it raises stanc's error instead.
    """
    if not tools.compiles and not built(source, tools):
        _check(source, tools)
        fault = f"no C++ compiler: {compiler_name()} is not on the PATH, and {source.name} is not built"
        build = f"build it on a computer of the same system that has a compiler (dpdist stan build {source.name})"
        remedy = f"{build}, or {INSTALL_COMPILER}"
        raise ToolchainError(fault, COMPILERS, remedy)


def check_program(program: str | Path, toolchain: str = "auto") -> dict[str, dict[str, int]]:
    """Inputs, parameters and generated quantities of a program, by block, each with its number of dimensions.

    Nothing is compiled. Raises the errors of `executable`.
    """
    source, tools = find_program(program), find_toolchain(toolchain)
    _check_that_it_can_be_built(source, tools)
    declared = json.loads(_check(source, tools))
    blocks = ("inputs", "parameters", "generated quantities")
    return {block: {name: int(about["dimensions"]) for name, about in declared[block].items()} for block in blocks}


def find_toolchain(name: str = "auto") -> Tools:
    """The toolchain of this name. Raises `ToolchainError`, which names the tools that are missing."""
    if name not in get_args(Toolchain):
        raise ToolchainError(f"toolchain '{name}' is not known", ", ".join(get_args(Toolchain)), "use one of these")
    folder = installed_cmdstan() if name != "embedded" else None
    if folder is not None:
        return CmdStan(folder)
    if name == "cmdstan":
        raise ToolchainError("no CmdStan found", "an installation at $CMDSTAN or ~/.cmdstan", INSTALL_CMDSTAN)
    return EmbeddedToolchain.find()


def cached_path(source: Path, tools: Tools) -> Path:
    """The path of a program's executable in the cache. Its name depends on all that the executable depends on."""
    return cache_folder() / f"{source.stem}-{digest_of(tools.identity, *texts(source))}"


def built(source: Path, tools: Tools) -> bool:
    return intact(cached_path(source, tools))


def _check(source: Path, tools: Tools) -> str:
    """The output of stanc for a program, as JSON. Raises `ProgramError` for a wrong program, before any slow step."""
    list(texts(source))
    return run_tool(stanc_command(tools, source, source.parent, "--info"), source.name)
