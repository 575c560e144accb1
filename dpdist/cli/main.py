"""Entry point of the command line: the commands, and the module of each.

A command imports its modules when it is called, so help texts and refusals of a command line appear quickly.
"""

from __future__ import annotations

import signal
from importlib.metadata import version
from types import FrameType
from typing import Annotated

import typer

from dpdist.cli import cluster, init, ledger, releases, stan, trials, verify
from dpdist.cli.console import Verbs
from dpdist.core.this_process import (
    import_without_collecting,
    interrupt,
    open_standard_streams,
    remember_interrupts,
    share_memory_with_arrow,
    write_no_core,
)

app = typer.Typer(
    cls=Verbs,
    help="Publish survey tables and synthetic records from confidential microdata. init, validate and plan spend "
    "nothing. run spends a job's budget once, and leaves WORKSPACE/public (to publish) and "
    "WORKSPACE/confidential (to guard).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        print(f"dpdist {version('dpdist')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print dpdist's version, and end.")
    ] = False,
) -> None:
    pass


app.add_typer(cluster.app, name="cluster")
app.add_typer(ledger.app, name="ledger")
app.add_typer(stan.app, name="stan")
for verb in (
    *(init.init, init.show, releases.validate, releases.plan, releases.run, releases.status, releases.report),
    *(releases.publish, verify.approve, verify.verify, verify.sign, verify.keygen, verify.diff, verify.series),
    *(trials.rehearse, trials.calibrate, trials.study, trials.audit, init.explain, init.schema),
):
    app.command()(verb)


def main() -> None:
    """Runs the command line. SIGTERM ends a command as Ctrl-C does.

    The first process of a container would otherwise ignore SIGTERM. No process writes a core file, because its memory may
    contain records and keys.
    """
    share_memory_with_arrow()
    import_without_collecting()
    open_standard_streams()
    write_no_core(for_good=True)
    remember_interrupts()
    signal.signal(signal.SIGTERM, _as_interrupt)
    app()


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # Ctrl-C is ignored, for example in a shell's background
        interrupt(number, frame)
        return
    handler(signal.SIGINT, frame)
