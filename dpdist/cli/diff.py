"""The commands that compare releases: `diff` of two, and `series` over periods, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.console import JsonAnswer, answer, out, run_command
from dpdist.core.errors import DpdistError

if TYPE_CHECKING:
    import pandas as pd

    from dpdist.publish.differences import Differences


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
        typer.Option(
            "--beyond", min=0.0, help=("A figure has moved if it differs by more than this many standard errors.")
        ),
    ] = BEYOND,
    to: Annotated[
        Path | None,
        typer.Option("--out", help=("Folder for CSV files of differences between two periods, with standard errors.")),
    ] = None,
    as_json: JsonAnswer = False,
) -> None:
    """Show what differs between two releases. Guarantee, job, tables, versions, and figures that moved beyond their errors.

    Exit code 0: no difference. 1: differences. 2: one of them is no complete release. Reads public files alone.
    """
    from dpdist.opening.results import open_release
    from dpdist.publish.differences import differences, period_differences

    def act() -> None:
        try:
            before, after = open_release(a), open_release(b)
            differing = differences(before, after, beyond)
            if to is not None:
                _write(period_differences(before, after), to)
        except DpdistError as error:
            error.exit_code = TROUBLE
            raise
        if as_json:
            answer({"a": a, "b": b, **differing.as_json})
        else:
            _print(differing)
        if differing:
            raise typer.Exit(1)

    run_command(act, as_json=as_json)


def _write(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Writes one CSV file per table; texts that a spreadsheet would run as formulas are escaped."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    from dpdist.publish.writers.csv_tables import for_spreadsheets

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        pa_csv.write_csv(for_spreadsheets(pa.Table.from_pandas(rows, preserve_index=False)), folder / f"{name}.csv")


def _print(differing: Differences) -> None:
    import pandas as pd

    from dpdist.cli.table_text import table_text
    from dpdist.publish.differences import OF_JOB

    keys = [fact for fact in differing.facts if fact.part == OF_JOB]
    for fact in differing.facts:
        if fact.part != OF_JOB:
            what = "id" if fact.what == fact.part else fact.what
            out.print(f"{fact.part}: {what}: {fact.before} -> {fact.after}", markup=False)
    head = f"figures: {len(differing.moved)} moved by more than {differing.beyond:g} standard errors"
    out.print(f"{head}, of {differing.compared} that both have", markup=False)
    if differing.moved:
        rows = pd.DataFrame([vars(figure) for figure in differing.moved]).astype(
            {"before": float, "after": float, "distance": float}
        )
        out.print(table_text("moved", rows))
    for fact in keys[:MOST_KEYS]:
        out.print(f"job: {fact.what}: {fact.before:.{LONGEST}} -> {fact.after:.{LONGEST}}", markup=False)
    if len(keys) > MOST_KEYS:
        out.print(f"job: {len(keys) - MOST_KEYS} more keys differ; --json lists them", markup=False)


NO_SERIES = 2
"""Exit code if the releases form no series."""


def series(
    places: Annotated[
        list[str], typer.Argument(metavar="RELEASE...", help="Workspaces, public folders or URLs, in order of period.")
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files of the series.")],
    as_json: JsonAnswer = False,
) -> None:
    """Write one table over periods, and the changes between them. Spends nothing.

    It has a page and a workbook. Only public files are read, after checks. Name releases in the order of their periods.
    Exit code 2: they form no series, or one of them is incomplete.
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

    run_command(act, as_json=as_json)
