"""Draws a study's figures as inline SVG with real text: violins over replicates, distribution functions, record bounds."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dpdist.studies.material import Material
from dpdist.studies.panels import (
    INK,
    STYLE,
    axis_title,
    canvas_of,
    canvas_of_rows,
    legend,
    mark,
    panel_title,
    panels_of,
    row_labels,
    violin,
)
from dpdist.studies.record_figures import densities, ecdfs, outcomes_and_weights, record_bounds, weights_and_bounds
from dpdist.studies.shown import Figure, FigureKind
from dpdist.studies.svg import inline


def draw(figure: Figure, material: Material, number: int) -> str:
    """Draws one figure of the study as an SVG element for a page."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": f"dpdist-{number}"}):
        canvas = _KINDS[figure.kind](figure, material)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None})
    return inline(written.getvalue(), f"f{number}-", figure.title)


def violins(figure: Figure, material: Material) -> Canvas:
    """Draws distributions over replicates: one panel for each case and ε, one row for each mechanism."""
    measure = figure.measure or "database_bound"
    panels = panels_of(figure, material)
    labels = list(dict.fromkeys(m for case, _ in panels for m in material.mechanisms(figure, case, measure)))
    canvas, axes = canvas_of_rows(len(panels), len(labels), 3, one_case=len(material.cases(figure)) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        for place, label in enumerate(labels):
            values, colour = material.values(case, label, epsilon, measure), material.colour(label)
            violin(axis, place, values, colour, sideways=True, points="_ratio_" not in measure)
        if (target := material.target(case, epsilon, measure)) is not None:
            mark(axis, target)
        row_labels(axis, labels, axis_title(material.caption(measure)), figure.log)
        axis.set_title(panel_title(case if len(material.cases(figure)) > 1 else "", epsilon))
    return canvas


def by_size(figure: Figure, material: Material) -> Canvas:
    """Draws distributions over replicates against n, with cases of one law ordered by n: one panel for each mechanism."""
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


def by_period(figure: Figure, material: Material) -> Canvas:
    """Draws means over replicates against the period: one panel for each case and ε, one line for each mechanism."""
    measure = figure.measure or "mean_median"
    panels = panels_of(figure, material)
    canvas, axes = canvas_of(len(panels), 3, 3.1, sharey=True)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        for label in material.mechanisms(figure, case, measure):
            line = material.by_period(case, label, epsilon, measure)
            axis.plot(np.arange(1, len(line) + 1), line, ".-", ms=5, lw=1.2, color=material.colour(label), label=label)
        if measure.endswith("_coverage"):
            axis.axhline(0.9, color=INK, lw=0.9, ls="--")
        if figure.log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("period")
        axis.set_title(panel_title(case if len(material.cases(figure)) > 1 else "", epsilon))
    axes[0].set_ylabel("share of cells" if measure.endswith("_coverage") else "direct standard errors")
    legend(canvas, axes[0])
    return canvas


_KINDS: Mapping[FigureKind, Callable[[Figure, Material], Canvas]] = {
    "violins": violins,
    "by_size": by_size,
    "by_period": by_period,
    "ecdf": ecdfs,
    "densities": densities,
    "record_bounds": record_bounds,
    "weights_and_bounds": weights_and_bounds,
    "outcomes_and_weights": outcomes_and_weights,
}


def drawn(figures: Sequence[Figure], material: Material) -> list[tuple[Figure, str]]:
    return [(figure, draw(figure, material, number)) for number, figure in enumerate(figures, start=1)]
