"""The command `dpdist series`: one file over periods, changes between them, a page and a workbook, from public folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.console import JsonAnswer, answer, guarded, out
from dpdist.core.errors import DpdistError

TROUBLE = 2
"""Exit code if the releases make no series."""


def series(
    places: Annotated[
        list[str], typer.Argument(metavar="RELEASE...", help="Workspaces, public folders or URLs, by period.")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files of the series.")],
    as_json: JsonAnswer = False,
) -> None:
    """Write one table over periods, and changes between them. With a page and a workbook. Spends nothing.

    Reads public files alone, after checking them. Name releases in the order of their periods.
    Exit code 2: they make no series, or one of them is incomplete.
    """
    from dpdist.opening.results import open_release
    from dpdist.publish.series import series_of
    from dpdist.publish.writers.series import write_series

    def act() -> None:
        try:
            found = series_of([open_release(place) for place in places])
            write_series(to, found)
        except DpdistError as error:
            error.exit_code = TROUBLE
            raise
        significant = int(found.changes["significant"].astype(bool).sum())
        if as_json:
            told = {
                "periods": [period.name for period in found.periods],
                "tables": list(found.tables),
                "notes": found.notes,
            }
            answer({**told, "figures": len(found.rows), "changes": len(found.changes), "significant": significant})
            return
        periods = f"{len(found.periods)} periods, {len(found.tables)} tables, {len(found.rows):,} figures"
        out.print(f"{periods}; {significant:,} of {len(found.changes):,} changes significant at 90 %", markup=False)
        for note in found.notes:
            out.print(f"note: {note}", markup=False)
        out.print(f"Next: open {to / 'index.html'}", markup=False)

    guarded(act, as_json=as_json)
