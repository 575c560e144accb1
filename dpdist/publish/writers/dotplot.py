"""Draws dot plots of a printed table as SVG: a line for each row, a dot for each estimate, a bar for its 90 % interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from dpdist.core.records import TOTAL, Floats, Ints
from dpdist.publish.printed import Printed, figure_text

MOST_ROWS, FEWEST_DOTS = 60, 3
WIDTH, LABELS, RIGHT, TOP, STEP = 760, 250, 55, 34, 9
LONGEST, LAST = 33, 12
"""Longest label, in characters; and the part of a longer label's end that stays when its middle is left out.

A title shows the whole label.
"""
COLOURS = 8
"""Number of colours. Groups beyond them get hollow dots in the same colours."""
LETTER, LINE = 7, 18
"""Pixels of a letter, and of a line of the legend."""
TICKS = 5


class Plot(NamedTuple):
    title: str
    svg: Markup


def plots(table: Printed) -> Iterator[Plot]:
    """Draws one plot for each statistic, if the table fits on a page. Each level across has its own colour and line.

    Plots of counts and totals leave out `Total` rows and columns, beside which the cells would be too small to see.
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
            yield Plot(head, _svg(table, head, rows, columns))


def _svg(table: Printed, head: str, rows: Ints, columns: Ints) -> Markup:
    groups, decimals = [table.columns[j].group for j in columns], table.columns[columns[0]].decimals
    labels = [" / ".join(table.rows[row]) or table.title for row in rows]
    values, lower, upper = (each[np.ix_(rows, columns)] for each in (table.values, table.lower, table.upper))
    name = f"{table.title}: {head}, with 90 % intervals; the figures stand in the table"
    return chart(name, labels, groups, values, lower, upper, decimals)


def chart(
    name: str, labels: Sequence[str], groups: Sequence[str], values: Floats, lower: Floats, upper: Floats, decimals: int
) -> Markup:
    """Draws dots (label, group) with bars from `lower` to `upper`, where there are any.

    `name` is the text for screen readers.
    """
    ticks = _ticks(np.concatenate([values, lower, upper], axis=None))
    legend = list(_legend(groups))
    top, height = TOP + LINE * len(legend), height_of(len(groups))
    bottom = top + height * len(labels)
    parts = [*legend, *_axis(ticks, top, bottom, decimals)]
    for i, label in enumerate(labels):
        y = top + height * i
        parts.append(_label(label, y + height / 2))
        for j in range(len(groups)):
            at = y + height * (j + 1) / (len(groups) + 1)
            parts += _dot(values[i, j], lower[i, j], upper[i, j], ticks, at, j, decimals)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {bottom + 8}" role="img" aria-label="{escape(name)}" xmlns="http://www.w3.org/2000/svg">'
        + "".join(parts)
        + "</svg>"
    )


def height_of(groups: int) -> int:
    """Returns the height of a row with this number of dots, in units of the drawing. A printed page has about 1,100."""
    return max(22, STEP * (groups + 1))


def _ticks(values: Floats) -> Floats:
    """Returns round numbers that cover all values; they begin at 0 where it is near."""
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    low = 0.0 if 0.0 < low < 0.5 * high else low
    raw = (high - low or abs(high) or 1.0) / TICKS
    power = 10.0 ** np.floor(np.log10(raw))
    step = power * min(each for each in (1.0, 2.0, 2.5, 5.0, 10.0) if each * power >= raw * 0.999)
    return np.asarray(np.arange(np.floor(low / step), np.ceil(high / step) + 1.0) * step)


def _x(value: float, ticks: Floats) -> float:
    return LABELS + (WIDTH - LABELS - RIGHT) * (value - float(ticks[0])) / (float(ticks[-1] - ticks[0]) or 1.0)


def _axis(ticks: Floats, top: float, bottom: float, decimals: int) -> Iterator[str]:
    spacing = float(ticks[1] - ticks[0]) if len(ticks) > 1 else 1.0
    digits = max(0, min(decimals, int(np.ceil(-np.log10(spacing))) + 1)) if spacing < 1 else 0
    for tick in ticks.tolist():
        x = _x(tick, ticks)
        yield f'<line class="grid" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{top - 10}" text-anchor="middle">{figure_text(tick, digits, ",")}</text>'


def _label(text: str, y: float) -> str:
    shown = text if len(text) <= LONGEST else f"{text[: LONGEST - LAST - 1]}…{text[-LAST:]}"
    more = f"<title>{escape(text)}</title>" if shown != text else ""
    return f'<text x="{LABELS - 10}" y="{y + 4:.1f}" text-anchor="end">{more}{escape(shown)}</text>'


def _dot(value: float, lower: float, upper: float, ticks: Floats, y: float, group: int, decimals: int) -> Iterator[str]:
    if np.isfinite([lower, upper]).all():
        ends = f'x1="{_x(lower, ticks):.1f}" x2="{_x(upper, ticks):.1f}"'
        yield f'<line class="bar g{group % COLOURS}" {ends} y1="{y:.1f}" y2="{y:.1f}"/>'
    if np.isfinite(value):
        said = f"<title>{figure_text(value, decimals, ',')}</title>"
        yield f'<circle class="{_look(group)}" cx="{_x(value, ticks):.1f}" cy="{y:.1f}" r="4">{said}</circle>'


def _look(group: int) -> str:
    return f"dot g{group % COLOURS}{' hollow' if group // COLOURS % 2 else ''}"


def _legend(groups: Sequence[str]) -> Iterator[str]:
    """Yields the lines of the legend. Each line has all the names that fit on it."""
    if len(groups) < 2:
        return
    most = WIDTH // LETTER - 6
    names = [group if len(group) <= most else f"{group[: most - 1]}…" for group in groups]
    line, x, y = "", 10, 10
    for j, (group, shown) in enumerate(zip(groups, names, strict=True)):
        width = 30 + LETTER * len(shown)
        if x + width > WIDTH and line:
            yield line
            line, x, y = "", 10, y + LINE
        line += f'<circle class="{_look(j)}" cx="{x}" cy="{y}" r="4"/>'
        more = f"<title>{escape(group)}</title>" if shown != group else ""
        line += f'<text x="{x + 10}" y="{y + 4}">{more}{escape(shown)}</text>'
        x += width
    yield line
