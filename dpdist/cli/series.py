"""The command `dpdist series`: one file over periods, changes between them, a page and a workbook, from public folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.console import JsonAnswer, answer, guarded, out
from dpdist.core.errors import DpdistError

NO_SERIES = 2
"""Exit code if the releases make no series."""


def series(
    places: Annotated[
        list[str], typer.Argument(metavar="RELEASE...", help="Workspaces, public folders or URLs, by period.")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files of the series.")],
    as_json: JsonAnswer = False,
) -> None:
    """Write one table over periods, and the changes between them. Spends nothing.

    It has a page and a workbook. Only public files are read, after checks. Name releases in the order of their periods.
    Exit code 2: they make no series, or one of them is incomplete.
    """
    from dpdist.opening.results import open_release
    from dpdist.publish.series import series_of
    from dpdist.publish.writers.series import write_series

    def act() -> None:
        try:
            product = series_of([open_release(place) for place in places])
            write_series(to, product)
        except DpdistError as error:
            error.exit_code = NO_SERIES
            raise
        significant = int(product.changes["significant"].astype(bool).sum())
        if as_json:
            summary = {
                "periods": [period.name for period in product.periods],
                "tables": list(product.tables),
                "notes": product.notes,
            }
            answer({**summary, "figures": len(product.rows), "changes": len(product.changes), "significant": significant})
            return
        periods = f"{len(product.periods)} periods, {len(product.tables)} tables, {len(product.rows):,} figures"
        out.print(f"{periods}; {significant:,} of {len(product.changes):,} changes significant at 90 %", markup=False)
        for note in product.notes:
            out.print(f"note: {note}", markup=False)
        out.print(f"Next: open {to / 'index.html'}", markup=False)

    guarded(act, as_json=as_json)
