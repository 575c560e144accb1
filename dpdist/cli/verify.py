"""The commands on finished releases: `verify`, `approve`, `sign`, `keygen`; `diff` of two, `series` over periods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.cli.console import RESUMES, JsonAnswer, answer, err, errors_reported, out
from dpdist.cli.listening import listening
from dpdist.core.errors import DpdistError, JobError, WorkspaceError
from dpdist.core.files import write_text

if TYPE_CHECKING:
    import pandas as pd

    from dpdist.publish.differences import Differences, MovedFigure


TROUBLE = 2
"""Exit code if the releases cannot be compared. Exit code 1 means that they differ."""

BEYOND = 2.0
"""Default threshold, in standard errors of the difference, above which a figure counts as moved."""
MOST_KEYS, LONGEST = 10, 60
"""Largest number of job keys printed, and of characters printed per value."""

Place = Annotated[str, typer.Argument(help="A workspace, its public folder, or a URL of one.")]


def diff(
    a: Place,
    b: Place,
    beyond: Annotated[
        float,
        typer.Option("--beyond", min=0.0, help="Number of standard errors beyond which a figure counts as changed."),
    ] = BEYOND,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for CSV files of differences between two periods, with standard errors."),
    ] = None,
    as_json: JsonAnswer = False,
) -> None:
    """Show what differs between two releases. Compares guarantee, job, tables, versions and figures.

    Exit code 0: no difference. 1: differences. 2: one of them is incomplete. Reads only public files.
    """
    from dpdist.opening.results import open_release
    from dpdist.publish.differences import compared_periods, differences

    with errors_reported(as_json=as_json):
        notes = list[str]()
        try:
            before, after = open_release(a), open_release(b)
            differing = differences(before, after, beyond)
            if to is not None:
                tables, notes = compared_periods(before, after)
                _write(tables, to)
        except DpdistError as error:
            error.exit_code = TROUBLE
            raise
        if as_json:
            answer({"a": a, "b": b, **differing.as_json, "notes": notes})
        else:
            _print(differing)
            for note in notes:
                out.print(f"note: {note}", markup=False)
        if differing:
            raise typer.Exit(1)


def _write(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Writes one CSV file per table; texts that a spreadsheet would run as formulas are escaped."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    from dpdist.publish.writers.csv_tables import for_spreadsheets

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        pa_csv.write_csv(for_spreadsheets(pa.Table.from_pandas(rows, preserve_index=False)), folder / f"{name}.csv")


def _print(differing: Differences) -> None:
    from dpdist.publish.differences import OF_JOB

    keys = [fact for fact in differing.facts if fact.part == OF_JOB]
    for fact in differing.facts:
        if fact.part != OF_JOB:
            what = "id" if fact.what == fact.part else fact.what
            out.print(f"{fact.part}: {what}: {fact.before} -> {fact.after}", markup=False)
    moved = len(differing.moved)
    head = f"figures: {moved} of {differing.compared} that both releases publish {'differs' if moved == 1 else 'differ'}"
    out.print(f"{head} by more than {differing.beyond:g} standard errors", markup=False)
    _print_figures("moved", differing.moved)
    if differing.in_one:
        new = sum(figure.before is None for figure in differing.in_one)
        former = f"{new} newly published, {len(differing.in_one) - new} now withheld or missing"
        out.print(f"figures: {len(differing.in_one)} in one of the releases alone: {former}", markup=False)
        _print_figures("in one release alone", differing.in_one)
    for fact in keys[:MOST_KEYS]:
        out.print(f"job: {fact.what}: {fact.before:.{LONGEST}} -> {fact.after:.{LONGEST}}", markup=False)
    if len(keys) > MOST_KEYS:
        out.print(f"job: {len(keys) - MOST_KEYS} more keys differ; --json lists them", markup=False)


def _print_figures(title: str, figures: Sequence[MovedFigure]) -> None:
    import pandas as pd

    from dpdist.cli.table_text import table_text

    if not figures:
        return
    rows = pd.DataFrame([vars(figure) for figure in figures]).astype({"distance": float})
    for name, texts in zip(("before", "after"), zip(*map(_with_digits, figures), strict=True), strict=True):
        widest = max(map(len, texts))
        rows[name] = [text.rjust(widest) for text in texts]
    out.print(table_text(title, rows if rows["distance"].notna().any() else rows.drop(columns="distance")))


def _with_digits(moved: MovedFigure) -> tuple[str, str]:
    """The two values, with the decimals that the standard error of their difference leaves; "none" for a missing one."""
    import numpy as np

    from dpdist.publish.printed_tables import decimals_of

    values = np.array([moved.before, moved.after], dtype=float)
    error = abs(values[1] - values[0]) / moved.distance if moved.distance else np.nan
    decimals = decimals_of(values, np.full(2, error))
    before, after = (
        "none" if np.isnan(value) else f"{round(value, decimals):,.{max(decimals, 0)}f}" for value in values.tolist()
    )
    return before, after


NO_SERIES = 2
"""Exit code if the releases form no series."""


def series(
    places: Annotated[
        list[str], typer.Argument(metavar="RELEASE...", help="Workspaces, public folders or URLs, in order of period.")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files of the series.")],
    title: Annotated[
        str | None,
        typer.Option("--title", help="Title of the page and the workbook. Otherwise the releases' own, with the periods."),
    ] = None,
    as_json: JsonAnswer = False,
) -> None:
    """Write one table over periods, and the changes between them. Spends nothing.

    Also writes a page and a workbook. Reads only public files, and checks them first. Name releases in order of period.
    Exit code 2: the releases do not form a series, or one of them is incomplete.
    """
    from dpdist.opening.results import open_release
    from dpdist.publish.series import series_of
    from dpdist.publish.writers.series import write_series

    with errors_reported(as_json=as_json):
        try:
            product = series_of([open_release(place) for place in places])
            write_series(to, product, title)
        except DpdistError as error:
            error.exit_code = NO_SERIES
            raise
        significant = int(product.changes["significant"].astype(bool).sum())
        if as_json:
            summary = {
                "periods": [period.name for period in product.periods],
                "tables": list(product.tables),
                "cautions": {period.name: period.cautions for period in product.periods},
                "notes": product.notes,
            }
            answer({**summary, "figures": len(product.rows), "changes": len(product.changes), "significant": significant})
            return
        periods = f"{len(product.periods)} periods, {len(product.tables)} tables, {len(product.rows):,} figures"
        out.print(f"{periods}; {significant:,} of {len(product.changes):,} changes significant at 90 %", markup=False)
        for period in product.periods:
            if number := len(period.cautions):
                its = "its page states it" if number == 1 else "its page states them"
                out.print(f"{period.name}: {number} caution{'s' * (number > 1)}; {its}", markup=False)
        for note in product.notes:
            out.print(f"note: {note}", markup=False)
        out.print(f"Next: open {to / 'index.html'}", markup=False)


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A public folder, or the workspace that holds it.")]


def verify(
    folder: Folder,
    key: Annotated[str | None, typer.Option("--key", help="The signer's public key, or the file that holds it.")] = None,
    as_json: JsonAnswer = False,
) -> None:
    """List files of a release that were changed, added or lost. Exit code 0: complete; 1: incomplete.

    Derives ε again from the proof record and compares it with the statement. Publishes the release again from released/
    and compares every file. Lists what could not be checked.
    Names each advisory on the release, which is a fault of the version that made it; exit codes do not depend on these.
    """
    from dpdist.core.minisign import PublicKey
    from dpdist.opening.results import HELD, is_held
    from dpdist.opening.verifying import advised, public_of, verify_folder

    with errors_reported(as_json=as_json):
        if is_held(folder):
            raise WorkspaceError(str(folder), HELD, f"verify the folder {folder / 'held'}")
        public = public_of(folder)
        with listening(quiet=as_json or not err.file.isatty()) as listener:
            wrong, derived, unchecked = verify_folder(public, None if key is None else PublicKey.named(key), listener)
        which, faults = {} if wrong else _which(public), advised(public)
        if wrong:
            derived, unchecked = "", []
        unchecked += ["who made the release: give --key"] if key is None and not wrong else []
        if as_json:
            advisories = {"advisories": [{"name": advisory.name, "words": advisory.words} for advisory in faults]}
            derivation = {"derived": derived, "not_checked": unchecked}
            answer({"whole": not wrong, "problems": wrong, **which, **advisories, **derivation})
        else:
            for line in wrong or [f"complete: {public}", *_corrects(which), *filter(None, [derived])]:
                out.print(line, markup=False)
            for line in unchecked:
                out.print(f"not checked: {line}", markup=False)
            for advisory in faults:
                out.print(f"advisory {advisory.name}: {advisory.words}", markup=False)
        if wrong:
            raise typer.Exit(1)


def _which(public: Path) -> dict[str, Any]:
    from dpdist.core.public_files import MANIFEST, read_object

    manifest = read_object(public, MANIFEST)
    correction = manifest["job"].get("correction") or {"version": 1}
    which = {"release": manifest["release"], "version": correction["version"]}
    return which | ({"corrects": correction["of"]} if "of" in correction else {})


def _corrects(which: Mapping[str, Any]) -> list[str]:
    if "corrects" not in which:
        return []
    return [f"release {which['release']} is version {which['version']}, and corrects release {which['corrects']}"]


def sign(
    folder: Folder,
    key: Annotated[Path, typer.Option("--key", help="File of a secret key that `dpdist keygen` or minisign -W wrote.")],
) -> None:
    """Sign a complete release. Writes manifest.json.minisig, which minisign can check, too."""
    from dpdist.core.minisign import SecretKey
    from dpdist.opening.verifying import public_of, sign as sign_folder

    with errors_reported():
        secret = SecretKey.read(key)
        sign_folder(public_of(folder), secret)
        out.print(f"signed by {secret.public.name}: {public_of(folder)}", markup=False)


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the secret key; FILE.pub gets the public one.")],
) -> None:
    """Make a pair of keys in minisign's format. Guard the secret key: only its file's mode protects it."""
    from dpdist.core.minisign import SecretKey

    with errors_reported():
        public = file.with_name(f"{file.name}.pub")
        if there := [path for path in (file, public) if path.exists()]:
            raise DpdistError(f"{there[0]}: it exists already\n    remedy:  choose another name")
        secret = SecretKey.from_os()
        write_text(file, secret.text, mode=0o600)
        write_text(public, secret.public.text)
        out.print(f"secret key (guard it): {file}\npublic key {secret.public.name}: {public}", markup=False)


def approve(
    workspace: Annotated[str, typer.Argument(metavar="DIR", help="The workspace of a held run.")],
    reason: Annotated[str, typer.Option("--reason", help="The reason, in one line; kept in the confidential folder.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="The approver's secret key, which signs the release; `approval: required` needs one."),
    ] = None,
    no: Annotated[
        bool, typer.Option("--refuse", help="Refuse instead: the release stays held until somebody approves it.")
    ] = False,
) -> None:
    """Publish a held release, or refuse it, with a reason. Spends no budget, and a refusal gives none back."""
    from dpdist.approval.holding import approve as approve_release, refuse as refuse_release
    from dpdist.cli.report import donates
    from dpdist.cli.table_text import PUBLISHED_TOO
    from dpdist.core.minisign import SecretKey

    with errors_reported(afterwards=RESUMES):
        if no and key is not None:
            fault = "--refuse together with --key"
            raise JobError.of("of approve", "--key", fault, "--key FILE, or --refuse", "give one of the two")
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
