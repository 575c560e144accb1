"""Makes the custodian report's sections on errors: by statistic, beside comparators, and then cell by cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dpdist.publish.writers.dotplot import MOST_ROWS as MOST_PLOTTED
from dpdist.publish.writers.dotplot import chart, height_of
from dpdist.quality.report.material import Material
from dpdist.quality.report.parts import MOST_ROWS, Figure, Grid, Section, cell, error, grid
from dpdist.quality.report.verdict_section import SCALE
from dpdist.quality.summary import (
    ROWS,
    by_statistic,
    class_of,
    errors,
    estimates_of,
    missing,
    notes,
)
from dpdist.quality.verdict import labels_of, place

LEAST_AXIS, TIMES = 3.0, 1.5
"""The error axis ends at TIMES the release's largest error, and at LEAST_AXIS standard errors or more."""
TALLEST = 1_000
"""Largest height of a drawing that fits on a printed page, in units of the drawing."""


def errors_section(material: Material, number: int, name: str, rows: pd.DataFrame) -> Section:
    """Makes a table's section: errors by statistic beside comparators with their guarantees, then errors cell by cell."""
    made = Section(f"errors-{number}", f"Errors: {name}", [SCALE])
    guarantee = str(material.statement["guarantee"])
    for statistic, group in by_statistic(rows):
        made.grids.append(grid(f"{statistic}: errors over {len(group)} cells", errors(group, guarantee), 1, missing(group)))
        made.grids.append(_by_cell(statistic, group, guarantee))
        made.figures += _cells_drawn(statistic, group)
    made.sentences += notes(rows)
    return made


def _by_cell(statistic: str, rows: pd.DataFrame, guarantee: str) -> Grid:
    """Errors in direct standard errors, the largest first. Column heads name each estimate's guarantee."""
    hows = list(estimates_of(rows))
    of = {
        how: guarantee if how.startswith("synthetic") else "" if how == "clipping" else class_of(rows, how) for how in hows
    }
    heads = [f"{ROWS.get(how, how)} ({of[how]})" if of[how] else ROWS.get(how, how) for how in hows]
    order = rows.sort_values("synthetic_error_in_se", ascending=False, kind="stable").head(MOST_ROWS)
    by = labels_of(rows)
    cells = [
        [cell(place(row, by)), cell(int(row["records"])), *(error(float(row[f"{how}_error_in_se"])) for how in hows)]
        for _, row in order.iterrows()
    ]
    more = [f"The {MOST_ROWS} furthest of {len(rows):,} cells."] if len(rows) > MOST_ROWS else []
    return Grid(f"{statistic}: errors by cell, in SE", ["cell", "records", *heads], cells, notes=more)


def _cells_drawn(statistic: str, rows: pd.DataFrame) -> Iterator[Figure]:
    """Draws the errors of cells and margins as dots, if they fit on the page."""
    hows = [how for how in estimates_of(rows) if rows[f"{how}_error_in_se"].notna().any()]
    if len(rows) > MOST_PLOTTED or not hows:
        return
    sizes = rows[[f"{how}_error_in_se" for how in hows]].to_numpy(dtype=float)
    most = max(LEAST_AXIS, TIMES * float(np.nanmax(sizes[:, 0])) if np.isfinite(sizes[:, 0]).any() else 0.0)
    beyond = int((sizes > most).sum())
    sizes, none, by = np.where(sizes > most, np.nan, sizes), np.full_like(sizes, np.nan), labels_of(rows)
    labels = [place(row, by) for _, row in rows.iterrows()]
    left = f" ({beyond} beyond {most:.3g} SE left out)" if beyond else ""
    size = max(1, TALLEST // height_of(len(hows)))
    for first in range(0, len(rows), size):
        chunk = slice(first, first + size)
        part = f", cells {first + 1} to {min(first + size, len(rows))}" if len(rows) > size else ""
        name, legend = f"{statistic}: errors by cell{part}", [ROWS.get(how, how) for how in hows]
        drawing = chart(name, labels[chunk], legend, sizes[chunk], none[chunk], none[chunk], 2)
        yield Figure(f"{statistic}: errors by cell, in SE, drawn{part}{left}", drawing)
