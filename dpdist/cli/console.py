"""Options, output and errors of all commands, with exit codes and messages that quote no record."""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup

from dpdist.core.errors import DpdistError, escape
from dpdist.core.this_process import as_interrupt, collect_from_here

INTERNAL = 70
"""Exit code of a fault of the program (EX_SOFTWARE of sysexits.h), which would recur with the same command."""


class Escaping(Console):
    """A console that shows control characters as text, so that no printed text can control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape(segment.text), segment.style)


out, err = Escaping(soft_wrap=True, highlight=False), Escaping(stderr=True, soft_wrap=True, highlight=False)
RESUMES, ANEW = "; the same command resumes", "; the same command starts again from the beginning"


class CommandFailed(typer.Exit):
    """The end of a command by an error. Any other exit code is a result, as of a check that found a fault."""


def answer(document: Mapping[str, Any]) -> None:
    """Prints what a verb with --json answers: one document on a line, and nothing else on standard output."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


@contextmanager
def errors_reported(show_values: bool = False, as_json: bool = False, afterwards: str = "") -> Iterator[None]:
    """The block of a command; an error becomes a message on standard error and an exit code, and with --json also a last
    object.

    `afterwards` is RESUMES for a command that keeps its work, and ANEW for a long one that does not. Other commands pass
    nothing.
    """
    collect_from_here()
    try:
        with _failures_named(show_values, afterwards), as_interrupt():
            yield
    except CommandFailed as end:
        if as_json:
            print(json.dumps({"event": "failed", "exit_code": end.exit_code}), flush=True)
        raise


@contextmanager
def best_effort(failed: str, remedy: str) -> Iterator[None]:
    """The block of a step that the release does not depend on.
    Its failure is one line on standard error, and does not change the exit code.

    The line names the class of the error and where it was raised. The error's message may quote a confidential value, so it
    stays in confidential/log.
    """
    try:
        with as_interrupt():
            yield
    except Exception as error:
        err.print(f"{failed} ({_place(error)}). The release is complete. {remedy}", markup=False)


@contextmanager
def _failures_named(show_values: bool, afterwards: str) -> Iterator[None]:
    try:
        yield
    except typer.Exit:  # a result, as of a check that found a fault
        raise
    except BrokenPipeError:
        raise CommandFailed(1) from None
    except DpdistError as error:
        err.print(error.text(show_values), markup=False)
        raise CommandFailed(error.exit_code) from None
    except KeyboardInterrupt:
        raise _interrupted(afterwards) from None
    except MemoryError:
        err.print(f"Out of memory\n    remedy:  free memory, or use a larger machine{afterwards}")
        raise CommandFailed(1) from None
    except OSError as error:
        where = error.filename or "workspace"
        message = error.strerror or type(error).__name__
        err.print(f"{message}: {where}\n    remedy:  {_remedy(error, afterwards)}", markup=False)
        raise CommandFailed(1) from None
    except Exception as error:  # a library's message may quote a confidential value
        if show_values:
            err.print(traceback.format_exc(), markup=False)
            raise CommandFailed(INTERNAL) from None
        from dpdist.core.plugins import plugin_of  # brings pydantic, which not every command waits for

        plugin = plugin_of(error)
        message = f"internal error: {_place(error)}" + (f", in {plugin.distribution} {plugin.version}" if plugin else "")
        to = f" to the authors of {plugin.distribution}" if plugin else ""
        remedy = (
            f"report it{to} without its message, which may quote records (confidential/log has it, and --show-values shows "
            "it on your own screen)"
        )
        err.print(f"{message}\n    remedy:  {remedy}", markup=False)
        raise CommandFailed(INTERNAL) from None


def _interrupted(afterwards: str) -> CommandFailed:
    """Prints that the command was interrupted, and what the same command will do; returns exit code 130."""
    err.print(f"Interrupted{afterwards}.")
    return CommandFailed(130)


RARE = {
    ("verify", "sign", "keygen"): "Check a release, sign it, or make a pair of keys.",
    ("diff", "series"): "Compare two releases, or tabulate several periods.",
    ("rehearse", "calibrate"): "Try mechanisms and tune constants on public files.",
    ("study", "audit"): "Study mechanisms, and audit a release's claim.",
    ("explain", "schema"): "Explain a caution; print the schema of job files.",
    ("cluster", "ledger", "stan"): "Run clusters, keep budgets, compile Stan programs.",
}
"""Commands that the first screen of help describes together; each has its own help."""


class Verbs(TyperGroup):
    """The commands. An interrupted command says so, even if it was still importing modules."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the options in a line, and the commands below each other, rarely used ones together."""
        formatter.write("\nOptions: --version, --help (also after each command)\n")
        rare = {name for names in RARE for name in names}
        verbs = {name: self.commands[name] for name in self.list_commands(ctx) if name not in rare}
        rows = [(name, verb.get_short_help_str(80)) for name, verb in verbs.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, *((", ".join(names), text) for names, text in RARE.items())])

    def invoke(self, ctx: Any) -> Any:
        try:
            with as_interrupt(exempt=(typer.Exit,)):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _interrupted(" before it began") from None


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


_REMEDIES = {
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
}


def _remedy(error: OSError, afterwards: str) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"give user {os.getuid()} access{afterwards}"
    return _REMEDIES.get(error.errno or 0, f"free or repair it{afterwards}")


JobFile = Annotated[str, typer.Argument(metavar="JOB", help="A YAML job file, or a shipped job's name.")]
StudyFile = Annotated[str, typer.Argument(metavar="STUDY", help="A YAML study file, or a shipped study's name.")]
WorkspaceFolder = Annotated[str, typer.Argument(metavar="WORKSPACE", help="Folder of a run, or s3://bucket/prefix.")]
InputFile = Annotated[Path | None, typer.Option("--input", help="File to read instead of the job's input.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Dotted job key and its YAML value; repeatable."),
]
Replay = Annotated[str | None, typer.Option("--replay", help="Reproduce the run of this WORKSPACE/confidential.")]
Replicates = Annotated[int | None, typer.Option("--replicates", min=1, help="Number of replicates; unset: the study's.")]
Log = Annotated[
    str | None,
    typer.Option("--log", envvar="DPDIST_LOG", help="JSON log file; - is stderr."),
]
Metrics = Annotated[str | None, typer.Option("--metrics", envvar="DPDIST_METRICS", help="host:port for Prometheus.")]
Traces = Annotated[
    str | None,
    typer.Option("--traces", envvar="DPDIST_TRACES", help="OpenTelemetry collector."),
]
WithEvaluation = Annotated[bool, typer.Option("--confidential", help="Add the evaluation, for the custodian's eyes only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
QuietButLedger = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and ledger failures.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON events, one per line, on stdout.")]
"""Option of verbs that make something and report their progress."""
JsonAnswer = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; progress goes to stderr.")]
"""Option of verbs that only answer."""
ShowValues = Annotated[bool, typer.Option("--show-values", help="Show confidential values in errors, on this screen.")]
