"""`dpdist verify`, `sign` and `keygen`: whether a release is whole, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.console import guarded, out
from dpdist.core.errors import DpdistError
from dpdist.core.files import write_text
from dpdist.evaluation.verifying import problems, public_of
from dpdist.evaluation.verifying import sign as sign_folder
from dpdist.publish.minisign import PublicKey, SecretKey, SignatureError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A public folder, or the workspace that holds it.")]


def verify(
    folder: Folder,
    key: Annotated[str | None, typer.Option("--key", help="Public key, or its file: who must have signed it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Name every file of a release that was changed, is missing or was added: 0 if it is whole, else 1."""

    def act() -> None:
        wrong = problems(public_of(folder), None if key is None else _public(key))
        if as_json:
            print(json.dumps({"whole": not wrong, "problems": wrong}, indent=2))
        else:
            for line in wrong or [f"whole: {public_of(folder)}"]:
                out.print(line, markup=False)
        if wrong:
            raise typer.Exit(1)

    guarded(act)


def sign(
    folder: Folder,
    key: Annotated[Path, typer.Option("--key", help="File of a secret key that `dpdist keygen` or minisign -W wrote.")],
) -> None:
    """Sign a whole release: writes manifest.json.minisig, which minisign can check too."""

    def act() -> None:
        own = SecretKey.read(key)
        sign_folder(public_of(folder), own)
        out.print(f"signed by {own.public.name}: {public_of(folder)}", markup=False)

    guarded(act)


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of the secret key; FILE.pub holds the public one.")],
) -> None:
    """Make a pair of keys, in minisign's files. Guard the secret one: its owner's mode is all that does."""

    def act() -> None:
        public = file.with_name(f"{file.name}.pub")
        if there := [path for path in (file, public) if path.exists()]:
            raise DpdistError(f"{there[0]}: it is there already\n    remedy:  choose another name")
        made = SecretKey.from_os()
        write_text(file, made.text, mode=0o600)
        write_text(public, made.public.text)
        out.print(f"secret key (guard it): {file}\npublic key {made.public.name}: {public}", markup=False)

    guarded(act)


def _public(key: str) -> PublicKey:
    """From a file, or the key itself."""
    path = Path(key)
    try:
        return PublicKey.parse(path.read_text(encoding="utf-8") if path.is_file() else key)
    except ValueError:
        raise SignatureError(f"{key}: no public key", "give the file of one") from None
