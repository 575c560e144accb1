"""A study's figures as inline SVG, over replicates, periods and single records; with names and colours of its results."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import Floats
from dpdist.quality.microdata import ecdf
from dpdist.studies.kinds.simulation import DATA
from dpdist.studies.settings import Caption, FigureKind, Study, StudyFigure

if TYPE_CHECKING:  # an extra, which studies without figures do not need
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#6A3D9A")
"""Okabe and Ito's colours, which most colour-blind readers can distinguish. The data themselves are drawn in grey."""
GREY = "#6b7280"


class StudyMaterial(NamedTuple):
    """A study, the long table of its results, and by-products of the first replicates for every record."""

    study: Study
    results: pd.DataFrame
    records: pd.DataFrame

    def caption(self, measure: str) -> Caption:
        return self.study.captions.get(measure, Caption(measure))

    @property
    def arms(self) -> list[str]:
        return [label for label in self.study.labels if label != DATA]

    def colour(self, label: str) -> str:
        return GREY if label == DATA else PALETTE[self.arms.index(label) % len(PALETTE)]

    def values(self, case: str, mechanism: str, epsilon: str, measure: str) -> Floats:
        table = self.results
        rows = (table.case == case) & (table.mechanism == mechanism) & (table.epsilon == epsilon)
        return np.asarray(table[rows & (table.measure == measure)]["value"], dtype=float)

    def column(self, case: str, mechanism: str, epsilon: str, column: str) -> Floats:
        rows = self.records[(self.records.case == case) & (self.records.mechanism == mechanism)]
        grid_epsilon = epsilon if epsilon in set(rows.epsilon) else self.study.grid[0]
        return np.asarray(rows[(rows.epsilon == grid_epsilon) & (rows.column == column)]["value"], dtype=float)

    def mechanisms(self, figure: StudyFigure, case: str, measure: str) -> list[str]:
        """The mechanisms that have the measure, in the study's order."""
        rows = self.results[(self.results.case == case) & (self.results.measure == measure)]
        return [label for label in figure.mechanisms or self.study.labels if label in set(rows.mechanism)]

    def cases(self, figure: StudyFigure) -> list[str]:
        return list(figure.cases or self.study.case_names)


def number(value: float) -> str:
    """Three significant digits; from 1,000 on all whole digits, with commas."""
    size = abs(value)
    if not np.isfinite(value):
        return "∞" if value > 0 else "–"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.01:
        return f"{value:.3f}"
    return f"{value:.2g}" if size else "0"


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
"""Width in inches of a full-width figure, which needs no scaling."""
FEW = 30
"""Largest number of replicates at which a violin also shows each replicate as a point."""
POINTS_SHOWN = 1_500
"""Largest number of a file's records in a scatter plot, so that a page stays small."""


def draw(figure: StudyFigure, material: StudyMaterial, number: int) -> str:
    """An SVG element for a page."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE | {"svg.hashsalt": f"dpdist-{number}"}):
        canvas = _KINDS[figure.kind](figure, material)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue(), f"f{number}-", figure.title)


def violins(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Distributions over replicates: a panel for each case and ε, a row for each mechanism."""
    measure = figure.measure or "database_bound"
    panels, caption = panels_of(figure, material), material.caption(measure)
    labels = list(dict.fromkeys(m for case, _ in panels for m in material.mechanisms(figure, case, measure)))
    canvas, axes = canvas_of_rows(len(panels), len(labels), one_case=len(material.cases(figure)) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        for place, label in enumerate(labels):
            values, colour = material.values(case, label, epsilon, measure), material.colour(label)
            violin(axis, place, values, colour, sideways=True, points="_ratio_" not in measure)
        if (target := material.study.target(case, epsilon, measure)) is not None:
            mark(axis, target)
        row_labels(axis, labels, caption.axis or caption.title, figure.log)
        axis.set_title(panel_title(case if len(material.cases(figure)) > 1 else "", epsilon))
    return canvas


def by_size(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Distributions over replicates against n: a panel for each mechanism."""
    measure = figure.measure or "database_bound"
    cases = sorted((case for case in material.study.cases if case.name in material.cases(figure)), key=lambda case: case.n)
    epsilon = material.study.grid[0]
    labels = material.mechanisms(figure, cases[0].name, measure)
    canvas, axes = canvas_of(len(labels), 4)
    for axis, label in zip(axes, labels, strict=True):
        for place, case in enumerate(cases):
            values = material.values(case.name, label, epsilon, measure)
            if len(values):
                violin(axis, place, values, material.colour(label))
        axis.set_xticks(range(len(cases)), [f"{case.n:,}" for case in cases])
        axis.set_xlabel("n")
        axis.set_title(label)
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel(material.caption(measure).title)
    return canvas


def ecdfs(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Distribution functions of data and synthetic records, and their differences."""
    from matplotlib.figure import Figure as Canvas

    panels, cases = panels_of(figure, material), material.cases(figure)
    canvas = Canvas(figsize=(WIDTH, 4.6), layout="constrained")
    above, below = canvas.subplots(2, len(panels), sharey="row", squeeze=False, height_ratios=(3, 2))
    for upper, lower, (case, epsilon) in zip(above, below, panels, strict=True):
        data = material.column(case, DATA, epsilon, "outcome")
        grid = np.quantile(data, np.linspace(0.0, 1.0, 301))
        upper.plot(grid, ecdf(data, grid), color=GREY, lw=3, alpha=0.5, label=DATA)
        for label in figure.mechanisms or material.arms:
            sample = material.column(case, label, epsilon, "outcome")
            if len(sample):
                upper.plot(grid, ecdf(sample, grid), color=material.colour(label), lw=1.1, label=label)
                lower.plot(grid, ecdf(sample, grid) - ecdf(data, grid), color=material.colour(label), lw=1.1)
        lower.axhline(0.0, color=GREY, lw=0.9)
        upper.set_title(panel_title(case if len(cases) > 1 else "", epsilon))
        lower.set_xlabel("outcome")
    above[0].set_ylabel("share at most")
    below[0].set_ylabel("synthetic − data")
    legend(canvas, above[0])
    return canvas


def record_bounds(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Record bounds: unweighted in the first fit, weighted in the last."""
    panels = panels_of(figure, material)
    labels = [label for label in figure.mechanisms or material.arms if label != DATA]
    canvas, axes = canvas_of_rows(len(panels), 1 + len(labels), one_case=len(material.cases(figure)) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        after = {label: material.column(case, label, epsilon, "weighted_record_bound") for label in labels}
        before = [material.column(case, label, epsilon, "unweighted_record_bound") for label in labels]
        violin(axis, 0, next((b for b in before if len(b)), np.array([])), GREY, sideways=True, points=False)
        for place, (label, values) in enumerate(after.items(), start=1):
            violin(axis, place, values, material.colour(label), sideways=True, points=False)
        if (target := material.study.target(case, epsilon, "database_bound")) is not None:
            mark(axis, target)
        row_labels(axis, ["before", *labels], "record bound", figure.log)
        axis.set_title(panel_title(case if len(material.cases(figure)) > 1 else "", epsilon))
    return canvas


def weights_and_bounds(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Record bounds against privacy weights, as in [V], figures 4, 5, 8, 9.
    Where the curve is flat, records use the whole bound.
    """
    cases, epsilon = material.cases(figure), material.study.grid[0]
    canvas, axes = canvas_of(len(cases), 3)
    for axis, case in zip(axes, cases, strict=True):
        for label in figure.mechanisms or material.arms:
            alpha = material.column(case, label, epsilon, "privacy_weight")
            bound = material.column(case, label, epsilon, "weighted_record_bound")
            distinct = np.unique(np.column_stack([alpha, bound]).round(4), axis=0)
            if len(distinct):
                axis.plot(distinct[:, 0], distinct[:, 1], ".", ms=3, color=material.colour(label), label=label)
        axis.set_xlabel("privacy weight α")
        axis.set_title(case if len(cases) > 1 else "")
    axes[0].set_ylabel("weighted record bound")
    legend(canvas, axes[0])
    return canvas


def densities(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    """Kernel estimates up to the data's 99 %, as in [G], figure 9."""
    from matplotlib.ticker import FuncFormatter

    places = panels_of(figure, material)
    canvas, axes = canvas_of(len(places), 2, 3.6)
    for axis, (case, epsilon) in zip(axes, places, strict=True):
        data = material.column(case, DATA, epsilon, "outcome")
        grid = np.linspace(min(0.0, float(data.min())), float(np.quantile(data, 0.99)), 201)
        axis.fill_between(grid, _density(data, grid), color=GREY, alpha=0.3, lw=0, label=DATA)
        for label in figure.mechanisms or material.arms:
            sample = material.column(case, label, epsilon, "outcome")
            if len(sample):
                axis.plot(grid, _density(sample, grid), color=material.colour(label), lw=1.3, label=label)
        axis.set_title(panel_title(case if len(places) > 1 else "", epsilon))
        axis.set_xlabel("outcome")
        axis.set_yticks([])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes[0].set_ylabel("density")
    legend(canvas, axes[0])
    return canvas


def _density(sample: Floats, grid: Floats) -> Floats:
    return np.asarray(scipy.stats.gaussian_kde(sample)(grid))


def outcomes_and_weights(figure: StudyFigure, material: StudyMaterial) -> Canvas:
    labels = list(figure.mechanisms or material.arms)
    case, epsilon = material.cases(figure)[0], material.study.grid[0]
    canvas, axes = canvas_of(len(labels), 3, 3.2, sharex=True, sharey=True)
    for axis, label in zip(axes, labels, strict=True):
        outcome, weight = (material.column(case, label, epsilon, name) for name in ("outcome", "weight"))
        sample = slice(None, None, max(1, -(-len(outcome) // POINTS_SHOWN)))
        axis.plot(outcome[sample], weight[sample], ".", ms=2.5, alpha=0.5, color=material.colour(label), rasterized=True)
        axis.set_title(label)
        axis.set_xlabel("outcome")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    plain_numbers(axes[0].xaxis, *axes[0].get_xlim())
    plain_numbers(axes[0].yaxis, *axes[0].get_ylim())
    axes[0].set_ylabel("weight")
    return canvas


_KINDS: Mapping[FigureKind, Callable[[StudyFigure, StudyMaterial], Canvas]] = {
    "violins": violins,
    "by_size": by_size,
    "ecdf": ecdfs,
    "densities": densities,
    "record_bounds": record_bounds,
    "weights_and_bounds": weights_and_bounds,
    "outcomes_and_weights": outcomes_and_weights,
}


def draw_figures(figures: Sequence[StudyFigure], material: StudyMaterial) -> list[tuple[StudyFigure, str]]:
    return [(figure, draw(figure, material, number)) for number, figure in enumerate(figures, start=1)]


def panels_of(figure: StudyFigure, material: StudyMaterial) -> list[tuple[str, str]]:
    """(case, ε) of every panel."""
    return [(case, epsilon) for case in material.cases(figure) for epsilon in figure.epsilons or material.study.grid]


def canvas_of(
    number: int, columns: int, height: float = 2.9, sharex: bool = False, sharey: bool = False
) -> tuple[Canvas, list[Axes]]:
    from matplotlib.figure import Figure as Canvas

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


def canvas_of_rows(number: int, labels: int, one_case: bool) -> tuple[Canvas, list[Axes]]:
    """Panels with a row for each mechanism."""
    return canvas_of(number, 3, 0.85 + 0.34 * labels, sharex=one_case, sharey=True)


def panel_title(case: str, epsilon: str) -> str:
    return ", ".join(part for part in (case, f"ε = {epsilon}" if epsilon else "") if part)


def row_labels(axis: Axes, labels: Sequence[str], label: str, log: bool) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.set_xlabel(label)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    if log:
        axis.set_xscale("log")
        plain_numbers(axis.xaxis, *axis.get_xlim())


def plain_numbers(axis: Axis, low: float, high: float) -> None:
    """Labels a logarithmic axis by numbers, not by powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50.0 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def violin(axis: Axes, place: int, values: Floats, colour: str, sideways: bool = False, points: bool = True) -> None:
    """A violin with median and quartiles; a line for values without spread."""
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


def mark(axis: Axes, value: float) -> None:
    axis.axvline(value, color=INK, lw=0.9, ls="--")


def legend(canvas: Canvas, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    columns = min(len(labels), 7 if canvas.get_figwidth() >= WIDTH else 3)
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def inline(svg: str, prefix: str, title: str) -> str:
    """The document for a page, without prologue and namespaces, with a name and unique identifiers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
    svg = re.sub(r'<svg ([^>]*?)width="([\d.]+)pt"', r'<svg \1style="max-width:\2pt"', svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)\s*height="[\d.]+pt"', r"\1", svg, count=1)
    name = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
