"""Dot plots of a printed table, with 90 % intervals as bars.

Positions are per cent of the page's width, so a plot fits on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from dpdist.core.records import TOTAL, Floats, Ints
from dpdist.publish.printed_tables import NO_ESTIMATE, PrintedTable, figure_text

MOST_ROWS, FEWEST_DOTS = 60, 3
STEP, LEAST_HEIGHT = 9, 22
"""Pixels between the lines of a row, and the least height of a row."""
TOP = 20
"""Pixels above the first row, for the axis."""
COLOURS = 8
"""Number of colours. Further groups get hollow dots in the same colours."""
TICKS = 5


class Plot(NamedTuple):
    title: str
    drawing: Markup
    has_bars_alone: bool
    """True if a figure without an estimate has an interval, as withheld figures have."""


def plots(table: PrintedTable) -> Iterator[Plot]:
    """Draws one plot for each statistic, if the table fits on a page. Each level across has its own colour and line.

    Plots of counts and totals omit `Total` rows and columns, because other cells would look too small beside them.
    """
    if len(table.rows) > MOST_ROWS:
        return
    heads = list(dict.fromkeys(column.head for column in table.columns))
    for number, head in enumerate(heads):
        columns = np.arange(number, len(table.columns), len(heads))
        rows = np.arange(len(table.rows))
        if table.columns[number].statistic.name in ("count", "total"):
            inner = [j for j in columns if table.columns[j].group != TOTAL]
            below = [i for i in rows if TOTAL not in table.rows[i]]
            columns, rows = np.array(inner, dtype=int), np.array(below, dtype=int)
        if np.isfinite(table.values[np.ix_(rows, columns)]).sum() >= FEWEST_DOTS:
            values, lower = (figures[np.ix_(rows, columns)] for figures in (table.values, table.lower))
            yield Plot(head, _drawn(table, head, rows, columns), bool((np.isnan(values) & np.isfinite(lower)).any()))


def _drawn(table: PrintedTable, head: str, rows: Ints, columns: Ints) -> Markup:
    groups, decimals = [table.columns[j].group for j in columns], table.columns[columns[0]].decimals
    labels = [" / ".join(table.rows[row]) or table.title for row in rows]
    values, lower, upper = (figures[np.ix_(rows, columns)] for figures in (table.values, table.lower, table.upper))
    name = f"{table.title}: {head}, with 90 % intervals; the table has the figures"
    none = np.isnan(values)
    lower, upper = (np.where(none, np.nan, limits) for limits in (lower, upper))
    return chart(name, labels, groups, values, lower, upper, decimals, NO_ESTIMATE)


def chart(
    name: str,
    labels: Sequence[str],
    groups: Sequence[str],
    values: Floats,
    lower: Floats,
    upper: Floats,
    decimals: int,
    absent: str = "",
) -> Markup:
    """Draws dots (label, group) with bars from `lower` to `upper`, where there are any.

    `name` is the text for screen readers, and `absent` stands in place of a dot that there is not.
    """
    ticks, height = _ticks(np.concatenate([values, lower, upper], axis=None)), height_of(len(groups))
    parts = [f'<svg class="axis">{"".join(_axis(ticks, decimals))}</svg>']
    for i, label in enumerate(labels):
        dots = list[str]()
        for j in range(len(groups)):
            centre = height * (j + 1) / (len(groups) + 1)
            dots += _dot(values[i, j], lower[i, j], upper[i, j], ticks, centre, j, decimals)
            if absent and np.isnan(values[i, j]):
                dots.append(f'<text class="absent g{j % COLOURS}" x="0" y="{centre:.1f}">{absent}</text>')
        parts.append(f'<div><span><bdi>{escape(label)}</bdi></span><svg height="{height}">{"".join(dots)}</svg></div>')
    rows = f'<div class="rows" style="padding-top:{TOP}px">{"".join(parts)}</div>'
    return Markup(f'<div class="chart" role="img" aria-label="{escape(name)}">{_legend(groups)}{rows}</div>')


def height_of(groups: int) -> int:
    """Returns the height in pixels of a row with this number of dots.
    A printed page has the height of about 1,100 pixels.
    """
    return max(LEAST_HEIGHT, STEP * (groups + 1))


def _ticks(values: Floats) -> Floats:
    """Returns round numbers that cover all values; they begin at 0 if it is near."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    low = 0.0 if 0.0 < low < 0.5 * high else low
    raw = (high - low or abs(high) or 1.0) / TICKS
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * min(step_size for step_size in (1.0, 2.0, 2.5, 5.0, 10.0) if step_size * power >= raw * 0.999)
    return np.asarray(np.arange(np.floor(low / step), np.ceil(high / step) + 1.0) * step)


def _x(value: float, ticks: Floats) -> str:
    return f"{100.0 * (value - float(ticks[0])) / (float(ticks[-1] - ticks[0]) or 1.0):.2f}%"


def _axis(ticks: Floats, decimals: int) -> Iterator[str]:
    spacing = float(ticks[1] - ticks[0]) if len(ticks) > 1 else 1.0
    digits = max(0, min(decimals, int(np.ceil(-np.log10(spacing))) + 1)) if spacing < 1 else 0
    while abs(round(spacing, digits) - spacing) > 1e-9 * spacing:  # as 2.5 is, whose ticks would read 0, 2, 5, 8
        digits += 1
    for tick in ticks.tolist():
        x = _x(tick, ticks)
        yield f'<line class="grid" x1="{x}" y1="{TOP - 4}" x2="{x}" y2="100%"/>'
        yield f'<text class="tick" x="{x}" y="{TOP - 10}" text-anchor="middle">{figure_text(tick, digits, ",")}</text>'


def _dot(value: float, lower: float, upper: float, ticks: Floats, y: float, group: int, decimals: int) -> Iterator[str]:
    if np.isfinite([lower, upper]).all():
        ends = f'x1="{_x(lower, ticks)}" x2="{_x(upper, ticks)}"'
        yield f'<line class="bar g{group % COLOURS}" {ends} y1="{y:.1f}" y2="{y:.1f}"/>'
    if np.isfinite(value):
        title = f"<title>{figure_text(value, decimals, ',')}</title>"
        yield f'<circle class="{_look(group)}" cx="{_x(value, ticks)}" cy="{y:.1f}" r="4">{title}</circle>'


def _look(group: int) -> str:
    return f"dot g{group % COLOURS}{' hollow' if group // COLOURS % 2 else ''}"


def _legend(groups: Sequence[str]) -> str:
    if len(groups) < 2:
        return ""
    dots = [
        f'<svg width="10" height="10"><circle class="{_look(j)}" cx="5" cy="5" r="4"/></svg>' for j in range(len(groups))
    ]
    items = (f"<span>{dot}<bdi>{escape(group)}</bdi></span>" for dot, group in zip(dots, groups, strict=True))
    return f'<div class="legend">{"".join(items)}</div>'
