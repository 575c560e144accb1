"""Panels of a study's figures: their sizes and titles, and marks that several figures have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dpdist.core.records import Floats
from dpdist.studies.kinds.protocol import Caption
from dpdist.studies.material import Material
from dpdist.studies.shown import Figure

INK = "#1f2937"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
WIDTH = 10.4
"""Width in inches of a figure that fills the page, so that it is shown without scaling."""
FEW = 30
"""Largest number of replicates at which a violin also shows each replicate as a point."""


def panels_of(figure: Figure, material: Material) -> list[tuple[str, str]]:
    """(case, ε) of every panel."""
    return [(case, epsilon) for case in material.cases(figure) for epsilon in figure.epsilons or material.study.grid]


def canvas_of(
    number: int, columns: int, height: float = 2.9, sharex: bool = False, sharey: bool = False
) -> tuple[Canvas, list[Axes]]:
    """Panels on a canvas as wide as the page, so that letters have the size of the page's text."""
    columns = min(number, columns)
    rows = -(-number // columns)
    width = WIDTH if columns > 1 else 0.55 * WIDTH
    canvas = Canvas(figsize=(width, height * rows), layout="constrained")
    axes = list(np.atleast_1d(canvas.subplots(rows, columns, sharex=sharex, sharey=sharey)).reshape(-1))
    for axis in axes[number:]:
        axis.set_visible(False)
    for axis in axes[number - columns : number]:  # nothing is shown below these, whose labels a shared axis would leave out
        axis.tick_params(labelbottom=True)
    return canvas, axes[:number]


def canvas_of_rows(number: int, labels: int, columns: int, one_case: bool) -> tuple[Canvas, list[Axes]]:
    """Panels with one row for each mechanism. They share an x axis where all are of one case."""
    return canvas_of(number, columns, 0.85 + 0.34 * labels, sharex=one_case, sharey=True)


def axis_title(caption: Caption) -> str:
    """A short axis title, because panels stand side by side; the figure's title has the details."""
    return caption.axis or caption.title


def row_labels(axis: Axes, labels: Sequence[str], measured: str, log: bool) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.set_xlabel(measured)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    if log:
        axis.set_xscale("log")
        plain_numbers(axis.xaxis, *axis.get_xlim())


def plain_numbers(axis: Axis, low: float, high: float) -> None:
    """Labels a logarithmic axis from `low` to `high` with numbers, and not with powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50.0 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def violin(axis: Axes, place: int, values: Floats, colour: str, sideways: bool = False, points: bool = True) -> None:
    """Draws a violin with median and quartiles; values without spread give a line."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    along, across = (axis.hlines, axis.vlines) if sideways else (axis.vlines, axis.hlines)
    if len(values) > 2 and values.std() > 1e-9 * max(1.0, abs(middle)):
        way: Literal["horizontal", "vertical"] = "horizontal" if sideways else "vertical"
        shape = axis.violinplot([values], [place], orientation=way, widths=0.85, showextrema=False, points=120)
        for body in shape["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=colour, edgecolor=colour, alpha=0.35, linewidth=0.8)
        along(place, low, high, color=colour, lw=3)
    across(middle, place - 0.28, place + 0.28, color=colour, lw=2)
    if points and len(values) <= FEW:
        spread = place + np.linspace(-0.15, 0.15, len(values))
        axis.plot(*((values, spread) if sideways else (spread, values)), ".", ms=3, color=colour, alpha=0.8)


def mark(axis: Axes, at: float) -> None:
    axis.axvline(at, color=INK, lw=0.9, ls="--")


def legend(canvas: Canvas, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    columns = min(len(labels), 7 if canvas.get_figwidth() >= WIDTH else 3)
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def panel_title(case: str, epsilon: str) -> str:
    return ", ".join(part for part in (case, f"ε = {epsilon}" if epsilon else "") if part)
