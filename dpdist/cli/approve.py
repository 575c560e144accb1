"""The command `dpdist approve`: publishes a held release, signed by a key, or refuses it, and stores the reason given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.console import RESUMES, guarded, out
from dpdist.core.errors import JobError, Problem


def approve(
    workspace: Annotated[str, typer.Argument(metavar="DIR", help="The workspace of a run that ended in hold.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, in a line; kept in the confidential folder.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Secret key of whoever approves; it signs the release. `approval: required` needs one."),
    ] = None,
    no: Annotated[
        bool, typer.Option("--refuse", help="Refuse it instead: it stays held until somebody approves it.")
    ] = False,
) -> None:
    """Publish a held release, or refuse it; both need a reason. Spends no budget, and a refusal gives none back."""
    from dpdist.approval.holding import approve as approve_release
    from dpdist.approval.holding import refuse as refuse_release
    from dpdist.cli.report import donates
    from dpdist.cli.statement_text import PUBLISHED_TOO
    from dpdist.core.minisign import SecretKey

    def act() -> None:
        if no and key is not None:
            fault = "a key to refuse with"
            raise JobError("of approve", [Problem("--key", fault, "--key FILE, or --refuse", "give one of the two")])
        if no:
            refuse_release(workspace, reason)
            out.print("refused: it stays held until somebody approves it, and its budget stays spent", markup=False)
            return
        secret = None if key is None else SecretKey.read(key)
        if donates(workspace):
            out.print(f"caution: {PUBLISHED_TOO}", markup=False)
        where = approve_release(workspace, secret, reason)
        by = "" if secret is None else f" by {secret.public.name}"
        out.print(f"approved{by}, published: {where}", markup=False)

    guarded(act, afterwards=RESUMES)
