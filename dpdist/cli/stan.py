"""The command `dpdist stan`: compiles Stan programs before a run, and shows the installation."""

from __future__ import annotations

import time
from importlib import metadata
from typing import Annotated

import typer

from dpdist.cli.console import err, errors_reported, out
from dpdist.core.errors import ToolchainError, install
from dpdist.core.files import scratch
from dpdist.core.progress import Event

app = typer.Typer(
    help="Compile Stan programs ahead of time, or show the installed toolchain.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Programs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PROGRAM]...", help="Stan files or names of shipped programs; default: all shipped ones."),
]
Toolchain = Annotated[str, typer.Option("--toolchain", help="auto, cmdstan or embedded.")]
Check = Annotated[bool, typer.Option("--check", help="Also compile a small program and sample from it.")]

_SMALL = "parameters { real x; } model { target += std_normal_lpdf(x); }\n"


@app.command()
def build(programs: Programs = None, toolchain: Toolchain = "auto") -> None:
    """Compile programs into the cache, as for container images."""
    from dpdist.sampling import toolchain as stan
    from dpdist.sampling.toolchain import shipped_programs

    with errors_reported():
        for program in programs or list(shipped_programs()):
            executable = stan.executable(program, toolchain, _tell)
            out.print(f"{executable.program}: {executable.path}", markup=False)


@app.command()
def doctor(toolchain: Toolchain = "auto", check: Check = False) -> None:
    """Show toolchain, versions, compiler, cache, and which programs are compiled. Compiles nothing without --check."""
    from dpdist.core.this_process import available_memory
    from dpdist.sampling import toolchain as stan
    from dpdist.sampling.toolchain import cache_folder, compiles_at_once, shipped_programs

    with errors_reported():
        for package in ("cmdstanpy", "httpstan", "arviz"):
            _line(package, _version(package))
        for name in ("cmdstan", "embedded"):
            _line(name, _version_text(name))
        folder = cache_folder()
        _line("cache", f"{folder} ({sum(f.stat().st_size for f in folder.iterdir() if f.is_file()) / 1e6:,.1f} MB)")
        _line("compiles at once", f"{compiles_at_once()} ({available_memory() / 1e9:.1f} GB of memory free)")
        tools = stan.find_toolchain(toolchain)
        _line("toolchain", f"{tools.name} ({toolchain})")
        for name, path in shipped_programs().items():
            _line(f"{name}.stan", "built" if stan.built(path, tools) else "not built: dpdist stan build")
        if check:
            _line("check", _drawn(toolchain))


def _drawn(toolchain: str) -> str:
    from dpdist.sampling import toolchain as stan
    from dpdist.sampling.stan import StanSettings, fit

    with scratch() as folder:
        program = folder / "small.stan"
        program.write_text(_SMALL)
        began = time.monotonic()
        executable = stan.executable(program, toolchain, _tell)
        compiled = time.monotonic()
        fit(executable, {}, StanSettings(), 1, folder)
        return f"compiled in {compiled - began:.1f} s, 4,000 draws in {1000 * (time.monotonic() - compiled):.0f} ms"


def _version_text(name: str) -> str:
    from dpdist.sampling import toolchain as stan

    try:
        return stan.find_toolchain(name).description
    except ToolchainError as error:
        return f"{error.fault}; {error.remedy}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"not installed; {install(package)}"


def _line(name: str, text: str) -> None:
    out.print(f"{name:<31} {text}", markup=False)


def _tell(event: Event) -> None:
    err.print(event.note, markup=False)
