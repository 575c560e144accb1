"""Parts of a report's section: sentences, tables, figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from dpdist.core.records import Floats
from dpdist.quality.microdata import ecdf
from dpdist.quality.summary import brief

MOST_ROWS = 60
"""Largest number of rows of a table on the page. All rows are in the files of the evaluation."""


class ReportCell(NamedTuple):
    text: str
    value: str = ""
    """The value to sort by; empty for text."""


class Grid(NamedTuple):
    """A table: a caption, headings, rows whose first `stub` cells are labels, and notes."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[ReportCell]]
    stub: int = 1
    notes: Sequence[str] = ()

    def is_text(self, column: int) -> bool:
        return not any(row[column].value for row in self.rows)


class ReportFigure(NamedTuple):
    caption: str
    svg: Markup


@dataclass
class Section:
    """One section of the report. Links refer to it by `name`."""

    name: str
    title: str
    sentences: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    figures: list[ReportFigure] = field(default_factory=list)


def cell(value: object) -> ReportCell:
    """Formats a value for a table: text as it is, yes or no, a rounded number, or nothing where it is missing."""
    if isinstance(value, bool | np.bool_):
        return ReportCell("yes" if value else "no")
    if isinstance(value, int | np.integer):
        return ReportCell(f"{int(value):,}", str(int(value)))
    if isinstance(value, float | np.floating):
        return ReportCell("", "NaN") if np.isnan(value) else ReportCell(rounded(float(value)), f"{float(value):.10g}")
    return ReportCell("" if value is None else str(value))


def rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def error(value: float) -> ReportCell:
    """Formats an error that is a multiple of a standard error."""
    return ReportCell("", "NaN") if np.isnan(value) else ReportCell(brief(value), f"{value:.6g}")


def grid(caption: str, table: pd.DataFrame, stub: int = 1, notes: Iterable[str] = ()) -> Grid:
    rows = [[cell(value) for value in row] for row in table.head(MOST_ROWS).itertuples(index=False)]
    more = [f"The first {MOST_ROWS} of {len(table):,} rows."] if len(table) > MOST_ROWS else []
    return Grid(caption, [str(name) for name in table.columns], rows, stub, [*notes, *more])


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 320, 70, 20, 30, 44
MOST_POINTS = 1500
CURVE_POINTS = 240
"""Number of points at which a distribution function is drawn."""
WIDE_RANGE = 30.0
"""Ratio of largest to smallest value above which an axis of positive values is logarithmic."""


class Axis(NamedTuple):
    """An axis of values from `low` to `high`, logarithmic if `log` is true; `marked` are its ticks, round values else."""

    name: str
    low: float
    high: float
    log: bool
    marked: tuple[float, ...] = ()

    def position(self, value: Floats) -> Floats:
        """Returns positions on the axis, from 0 to 1."""
        low, high = np.log10([self.low, self.high]) if self.log else (self.low, self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = (np.log10(value) if self.log else value) - low
        return np.asarray(scaled / (high - low or 1.0))

    @property
    def ticks(self) -> Floats:
        if self.marked:
            return np.array(self.marked)
        if self.log:
            powers = 10.0 ** np.arange(np.floor(np.log10(self.low)), np.ceil(np.log10(self.high)) + 1)
            values = np.outer(powers, [1.0, 2.0, 5.0] if len(powers) < 5 else [1.0]).ravel()
            return np.asarray(values[(values >= self.low) & (values <= self.high)])
        step = 10.0 ** np.floor(np.log10((self.high - self.low or 1.0) / 5.0))
        step *= min((1.0, 2.0, 5.0, 10.0), key=lambda factor: abs((self.high - self.low) / (factor * step) - 5.0))
        return np.asarray(np.arange(np.ceil(self.low / step), np.floor(self.high / step) + 1.0) * step)


def axis(name: str, *values: Floats) -> Axis:
    """Makes an axis that holds all values."""
    numbers = np.concatenate(values)
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    log = low > 0.0 and high > WIDE_RANGE * low
    return Axis(name, low, high if high > low else low + 1.0, log)


def thin(number: int, most: int = MOST_POINTS) -> slice:
    """A slice with at most `most` of `number` positions, evenly spread."""
    return slice(0, None, max(1, -(-number // most)))


def scatter(name: str, x: Axis, y: Axis, points: Mapping[str, tuple[Floats, Floats]]) -> Markup:
    """Draws points, with one panel for each group, because groups in one panel would hide each other."""
    width = (WIDTH - LEFT - RIGHT * len(points)) / len(points)
    parts = list[str]()
    for number, (group, (across, up)) in enumerate(points.items()):
        x0 = LEFT + number * (width + RIGHT)
        parts += _frame(x, y, x0, width, number == 0)
        parts.append(_text(x0 + width / 2, 14, group, "middle"))
        finite = np.isfinite(across) & np.isfinite(up)
        which = thin(int(finite.sum()))
        px, py = x0 + width * x.position(across[finite][which]), _up(y.position(up[finite][which]))
        path = "".join(f"M{a:.0f} {b:.0f}h0" for a, b in zip(px.tolist(), py.tolist(), strict=True))
        parts.append(f'<path class="points g{number}" d="{path}"/>')
    return _drawing(name, parts)


def steps(
    name: str, x: Axis, curves: Mapping[str, tuple[Floats, Floats | None]], share_of: str = "share of records, or of weight"
) -> Markup:
    """Draws the distribution function of each group, weighted if the group has weights."""
    y = Axis(share_of, 0.0, 1.0, False)
    parts = list(_frame(x, y, LEFT, WIDTH - LEFT - RIGHT, True))
    share = np.linspace(0.0, 1.0, CURVE_POINTS)
    value = 10.0 ** (np.log10(x.low) + share * np.log10(x.high / x.low)) if x.log else x.low + share * (x.high - x.low)
    for number, (group, (values, weight)) in enumerate(curves.items()):
        height = ecdf(values, value, weight)
        pairs = zip((LEFT + (WIDTH - LEFT - RIGHT) * share).tolist(), _up(height).tolist(), strict=True)
        parts.append(f'<path class="curve g{number}" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in pairs)}"/>')
        parts.append(f'<circle class="dot g{number}" cx="{LEFT + 12 + 230 * number}" cy="10" r="4"/>')
        parts.append(_text(LEFT + 22 + 230 * number, 14, group, "start"))
    return _drawing(name, parts)


def lines(name: str, x: Axis, y: Axis, curves: Mapping[str, tuple[Floats, Floats]], levels: Mapping[str, float]) -> Markup:
    parts, width = list(_frame(x, y, LEFT, WIDTH - LEFT - RIGHT, True)), WIDTH - LEFT - RIGHT
    for number, (group, (across, up)) in enumerate(curves.items()):
        finite = np.isfinite(across) & np.isfinite(up)
        pairs = list(
            zip((LEFT + width * x.position(across[finite])).tolist(), _up(y.position(up[finite])).tolist(), strict=True)
        )
        if pairs:
            parts.append(f'<path class="curve g{number}" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in pairs)}"/>')
        parts += [f'<circle class="dot g{number}" cx="{a:.1f}" cy="{b:.1f}" r="4"/>' for a, b in pairs]
        if np.isfinite(level := levels.get(group, np.nan)):
            high = float(_up(y.position(np.array([level])))[0])
            parts.append(f'<path class="curve alone g{number}" d="M{LEFT} {high:.1f}H{LEFT + width}"/>')
        place = LEFT + number * width / len(curves)
        parts.append(f'<circle class="dot g{number}" cx="{place + 12:.1f}" cy="10" r="4"/>')
        parts.append(_text(place + 22, 14, group, "start"))
    return _drawing(name, parts)


def _up(share: Floats) -> Floats:
    return np.asarray(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share)


def _frame(x: Axis, y: Axis, x0: float, width: float, labelled: bool) -> Iterator[str]:
    """Draws grid lines with labels below, on request also at the left, and the names of both axes."""
    base, occupied = HEIGHT - BOTTOM, -np.inf
    for tick, share in zip(x.ticks.tolist(), x.position(x.ticks).tolist(), strict=True):
        place = x0 + width * share
        yield f'<line class="grid" x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{base}"/>'
        if place - occupied > 48:
            yield _text(place, base + 16, f"{tick:,.10g}", "middle", "tick")
            occupied = place
    for tick, up in zip(y.ticks.tolist(), _up(y.position(y.ticks)).tolist(), strict=True):
        yield f'<line class="grid" x1="{x0:.1f}" y1="{up:.1f}" x2="{x0 + width:.1f}" y2="{up:.1f}"/>'
        if labelled:
            yield _text(x0 - 6, up + 4, f"{tick:,.10g}", "end", "tick")
    yield _text(x0 + width / 2, HEIGHT - 8, x.name + (" (log scale)" if x.log else ""), "middle")
    if labelled:
        middle = (TOP + base) / 2
        caption = escape(y.name + (" (log scale)" if y.log else ""))
        yield f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">{caption}</text>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(name: str, parts: list[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}" xmlns="http://www.w3.org/2000/svg">'
    return Markup(head + "".join(parts) + "</svg>")
