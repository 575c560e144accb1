"""Figures of single records of the first replicate: distributions of outcomes, record bounds, weights."""

from __future__ import annotations

import numpy as np
import scipy
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from dpdist.core.records import Floats
from dpdist.evaluation.utility import ecdf
from dpdist.studies.kinds.simulation_settings import DATA
from dpdist.studies.material import GREY, Material
from dpdist.studies.panels import (
    WIDTH,
    canvas_of,
    canvas_of_rows,
    legend,
    mark,
    panel_title,
    panels_of,
    plain_numbers,
    row_labels,
    violin,
)
from dpdist.studies.shown import Figure

POINTS_SHOWN = 1_500
"""Most records that a scatter shows of a file, so that a page stays small."""


def ecdfs(figure: Figure, material: Material) -> Canvas:
    """Draws distribution functions of the data and of synthetic records, and their differences, in the first replicate."""
    panels, cases = panels_of(figure, material), material.cases(figure)
    canvas = Canvas(figsize=(WIDTH, 4.6), layout="constrained")
    above, below = canvas.subplots(2, len(panels), sharey="row", squeeze=False, height_ratios=(3, 2))
    for upper, lower, (case, epsilon) in zip(above, below, panels, strict=True):
        data = material.column(case, DATA, epsilon, "outcome")
        at = np.quantile(data, np.linspace(0.0, 1.0, 301))
        upper.plot(at, ecdf(data, at), color=GREY, lw=3, alpha=0.5, label=DATA)
        for label in figure.mechanisms or material.arms:
            sample = material.column(case, label, epsilon, "outcome")
            if len(sample):
                upper.plot(at, ecdf(sample, at), color=material.colour(label), lw=1.1, label=label)
                lower.plot(at, ecdf(sample, at) - ecdf(data, at), color=material.colour(label), lw=1.1)
        lower.axhline(0.0, color=GREY, lw=0.9)
        upper.set_title(panel_title(case if len(cases) > 1 else "", epsilon))
        lower.set_xlabel("outcome")
    above[0].set_ylabel("share at most")
    below[0].set_ylabel("synthetic − data")
    legend(canvas, above[0])
    return canvas


def record_bounds(figure: Figure, material: Material) -> Canvas:
    """Draws record bounds in the first replicate: unweighted in the first fit, and weighted in the last one."""
    panels = panels_of(figure, material)
    labels = [label for label in figure.mechanisms or material.arms if label != DATA]
    canvas, axes = canvas_of_rows(len(panels), 1 + len(labels), 3, one_case=len(material.cases(figure)) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        after = {label: material.column(case, label, epsilon, "weighted_record_bound") for label in labels}
        before = [material.column(case, label, epsilon, "unweighted_record_bound") for label in labels]
        violin(axis, 0, next((b for b in before if len(b)), np.array([])), GREY, sideways=True, points=False)
        for place, (label, values) in enumerate(after.items(), start=1):
            violin(axis, place, values, material.colour(label), sideways=True, points=False)
        if (target := material.target(case, epsilon, "database_bound")) is not None:
            mark(axis, target)
        row_labels(axis, ["before", *labels], "record bound", figure.log)
        axis.set_title(panel_title(case if len(material.cases(figure)) > 1 else "", epsilon))
    return canvas


def weights_and_bounds(figure: Figure, material: Material) -> Canvas:
    """Draws record bounds against privacy weights in the first replicate, as [V] in figures 4, 5, 8 and 9.

    A flat curve is efficient: every record then uses the whole bound.
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


def densities(figure: Figure, material: Material) -> Canvas:
    """Draws densities of the data and of synthetic records, as [G] in figure 9: kernel estimates up to the data's 99 %."""
    places = panels_of(figure, material)
    canvas, axes = canvas_of(len(places), 2, 3.6)
    for axis, (case, epsilon) in zip(axes, places, strict=True):
        data = material.column(case, DATA, epsilon, "outcome")
        at = np.linspace(min(0.0, float(data.min())), float(np.quantile(data, 0.99)), 201)
        axis.fill_between(at, _density(data, at), color=GREY, alpha=0.3, lw=0, label=DATA)
        for label in figure.mechanisms or material.arms:
            sample = material.column(case, label, epsilon, "outcome")
            if len(sample):
                axis.plot(at, _density(sample, at), color=material.colour(label), lw=1.3, label=label)
        axis.set_title(panel_title(case if len(places) > 1 else "", epsilon))
        axis.set_xlabel("outcome")
        axis.set_yticks([])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes[0].set_ylabel("density")
    legend(canvas, axes[0])
    return canvas


def _density(sample: Floats, at: Floats) -> Floats:
    return np.asarray(scipy.stats.gaussian_kde(sample)(at))


def outcomes_and_weights(figure: Figure, material: Material) -> Canvas:
    """Draws weights against outcomes: one panel for each mechanism, all on the same logarithmic axes."""
    labels = list(figure.mechanisms or material.arms)
    case, epsilon = material.cases(figure)[0], material.study.grid[0]
    canvas, axes = canvas_of(len(labels), 3, 3.2, sharex=True, sharey=True)
    for axis, label in zip(axes, labels, strict=True):
        outcome, weight = (material.column(case, label, epsilon, name) for name in ("outcome", "weight"))
        some = slice(None, None, max(1, -(-len(outcome) // POINTS_SHOWN)))
        axis.plot(outcome[some], weight[some], ".", ms=2.5, alpha=0.5, color=material.colour(label), rasterized=True)
        axis.set_title(label)
        axis.set_xlabel("outcome")
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    plain_numbers(axes[0].xaxis, *axes[0].get_xlim())
    plain_numbers(axes[0].yaxis, *axes[0].get_ylim())
    axes[0].set_ylabel("weight")
    return canvas
