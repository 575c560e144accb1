"""Figures as inline SVG: violins over replicates, distribution functions, record-level bounds; text stays text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from dpdist.evaluation.utility import ecdf
from dpdist.records import Floats
from dpdist.studies.results import as_number
from dpdist.studies.settings import DATA, Figure, FigureKind, Simulation

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#6A3D9A")
"""Okabe and Ito's colours, which most colour-blind readers tell apart; the data are grey."""
GREY, INK = "#6b7280", "#1f2937"
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
FEW = 30
"""Up to this many replicates every one is shown as a point."""
TITLES: Mapping[str, str] = {
    "database_bound": "database bound Δ",
    "unweighted_database_bound": "database bound Δ of the unweighted fit",
    "epsilon_local": "local ε = 2Δ",
    "epsilon_local_range": "local ε from the range",
    "records_censored": "records censored",
    "privacy_weight": "mean privacy weight α",
    "record_bound_before": "mean record bound, unweighted fit",
    "record_bound_after": "mean record bound, final fit",
    "max_ecdf": "max-ECDF",
    "avg_ecdf": "avg-ECDF",
    "mean": "mean",
    "median": "median",
    "q15": "15th percentile",
    "q90": "90th percentile",
    "fits": "fits",
    "worst_loss": "worst-case loss / promised ε",
}


class Material(NamedTuple):
    """What figures are drawn from: the long table of results, and record-level by-products of the first replicates."""

    study: Simulation
    results: pd.DataFrame
    records: pd.DataFrame

    @property
    def labels(self) -> list[str]:
        return [DATA, *(arm.key for arm in self.study.mechanisms)]

    def colour(self, label: str) -> str:
        return GREY if label == DATA else PALETTE[(self.labels.index(label) - 1) % len(PALETTE)]

    def values(self, case: str, mechanism: str, epsilon: str, measure: str) -> Floats:
        found = self.results
        rows = (found.case == case) & (found.mechanism == mechanism) & (found.epsilon == epsilon)
        return np.asarray(found[rows & (found.measure == measure)]["value"], dtype=float)

    def column(self, case: str, mechanism: str, epsilon: str, column: str) -> Floats:
        found = self.records[(self.records.case == case) & (self.records.mechanism == mechanism)]
        at = epsilon if epsilon in set(found.epsilon) else (self.study.grid or ("",))[0]
        return np.asarray(found[(found.epsilon == at) & (found.column == column)]["value"], dtype=float)

    def mechanisms(self, said: Figure, case: str, measure: str) -> list[str]:
        """Arms that have the measure in the case, in the study's order."""
        found = self.results[(self.results.case == case) & (self.results.measure == measure)]
        return [label for label in said.mechanisms or self.labels if label in set(found.mechanism)]

    def cases(self, said: Figure) -> list[str]:
        return list(said.cases or (case.name for case in self.study.cases))


def draw(said: Figure, material: Material, number: int) -> str:
    """One figure of the study as an SVG element that stands alone in a page."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": f"dpdist-{number}"}):
        canvas = _KINDS[said.kind](said, material)
        written = io.StringIO()
        canvas.savefig(written, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    return inline(written.getvalue(), f"f{number}-", said.title)


def inline(svg: str, prefix: str, title: str) -> str:
    """An SVG document as an element of a page: no prologue, metadata or namespaces, identifiers of its own, a name."""
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


def violins(said: Figure, material: Material) -> Canvas:
    """Distribution over replicates: a panel per ε (or per case, where results do not differ over ε)."""
    measure = said.measure or "database_bound"
    cases, grid = material.cases(said), material.study.grid or ("",)
    panels = [(case, epsilon) for case in cases for epsilon in grid]
    labels = list(dict.fromkeys(m for case in cases for m in material.mechanisms(said, case, measure)))
    canvas, axes = _panels(len(panels), 1.2 + 0.55 * len(labels), len(grid) if len(grid) > 1 else 3, sharey=len(cases) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        here = [label for label in labels if len(material.values(case, label, epsilon, measure))]
        for place, label in enumerate(here):
            _violin(axis, place, material.values(case, label, epsilon, measure), material.colour(label))
        _reference(axis, said, material, case, epsilon, measure)
        axis.set_xticks(range(len(here)), here, rotation=35, ha="right")
        axis.set_title(_panel_title(case if len(cases) > 1 else "", epsilon))
        axis.grid(axis="x", visible=False)
        if said.log:
            axis.set_yscale("log")
    axes[0].set_ylabel(TITLES.get(measure, measure))
    return canvas


def by_size(said: Figure, material: Material) -> Canvas:
    """Distribution over replicates against n: a panel per mechanism, cases of one law ordered by their size."""
    measure = said.measure or "database_bound"
    cases = sorted((case for case in material.study.cases if case.name in material.cases(said)), key=lambda case: case.n)
    epsilon = (material.study.grid or ("",))[0]
    labels = material.mechanisms(said, cases[0].name, measure)
    canvas, axes = _panels(len(labels), 1.4 + 0.4 * len(cases), 4, sharey=False)
    for axis, label in zip(axes, labels, strict=True):
        for place, case in enumerate(cases):
            values = material.values(case.name, label, epsilon, measure)
            if len(values):
                _violin(axis, place, values, material.colour(label))
        axis.set_xticks(range(len(cases)), [f"{case.n:,}" for case in cases])
        axis.set_xlabel("n")
        axis.set_title(label)
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel(TITLES.get(measure, measure))
    return canvas


def ecdfs(said: Figure, material: Material) -> Canvas:
    """Distribution functions of the data and of synthetic records, and their difference, first replicate."""
    cases, grid = material.cases(said), material.study.grid or ("",)
    panels = [(case, epsilon) for case in cases for epsilon in grid]
    canvas = Canvas(figsize=(3.4 * len(panels), 4.6), layout="constrained")
    above, below = canvas.subplots(2, len(panels), sharey="row", squeeze=False, height_ratios=(3, 2))
    for upper, lower, (case, epsilon) in zip(above, below, panels, strict=True):
        data = material.column(case, DATA, epsilon, "outcome")
        at = np.quantile(data, np.linspace(0.0, 1.0, 301))
        upper.plot(at, ecdf(data, at), color=GREY, lw=3, alpha=0.5, label=DATA)
        for label in said.mechanisms or material.labels[1:]:
            sample = material.column(case, label, epsilon, "outcome")
            if len(sample):
                upper.plot(at, ecdf(sample, at), color=material.colour(label), lw=1.1, label=label)
                lower.plot(at, ecdf(sample, at) - ecdf(data, at), color=material.colour(label), lw=1.1)
        lower.axhline(0.0, color=GREY, lw=0.9)
        upper.set_title(_panel_title(case if len(cases) > 1 else "", epsilon))
        lower.set_xlabel("outcome")
    above[0][0].set_ylabel("share at most")
    below[0][0].set_ylabel("synthetic − data")
    _legend(canvas, above[0][0])
    return canvas


def record_bounds(said: Figure, material: Material) -> Canvas:
    """Record-level bounds, first replicate: under the unweighted fit and, weighted, under the final one."""
    cases, grid = material.cases(said), material.study.grid or ("",)
    panels = [(case, epsilon) for case in cases for epsilon in grid]
    labels = [label for label in said.mechanisms or material.labels if label != DATA]
    canvas, axes = _panels(len(panels), 1.4 + 0.55 * len(labels), 3, sharey=len(cases) == 1)
    for axis, (case, epsilon) in zip(axes, panels, strict=True):
        here = [label for label in labels if len(material.column(case, label, epsilon, "weighted_record_bound"))]
        if here:
            _violin(axis, 0, material.column(case, here[0], epsilon, "unweighted_record_bound"), GREY, points=False)
        for place, label in enumerate(here, start=1):
            values = material.column(case, label, epsilon, "weighted_record_bound")
            _violin(axis, place, values, material.colour(label), points=False)
        if epsilon:
            axis.axhline(as_number(epsilon) / 2.0, color=INK, lw=0.9, ls="--")
        axis.set_xticks(range(1 + len(here)), ["before", *here], rotation=35, ha="right")
        axis.set_title(_panel_title(case if len(cases) > 1 else "", epsilon))
        axis.grid(axis="x", visible=False)
        if said.log:
            axis.set_yscale("log")
    axes[0].set_ylabel("record bound")
    return canvas


def weights_and_bounds(said: Figure, material: Material) -> Canvas:
    """Record bound against privacy weight, first replicate ([V] figures 4, 5, 8, 9): flat is efficient."""
    cases, epsilon = material.cases(said), (material.study.grid or ("",))[0]
    canvas, axes = _panels(len(cases), 3.4, 3, sharey=False)
    for axis, case in zip(axes, cases, strict=True):
        for label in said.mechanisms or material.labels[1:]:
            alpha = material.column(case, label, epsilon, "privacy_weight")
            bound = material.column(case, label, epsilon, "weighted_record_bound")
            distinct = np.unique(np.column_stack([alpha, bound]).round(4), axis=0)
            if len(distinct):
                axis.plot(distinct[:, 0], distinct[:, 1], ".", ms=3, color=material.colour(label), label=label)
        axis.set_xlabel("privacy weight α")
        axis.set_title(case if len(cases) > 1 else "")
    axes[0].set_ylabel("weighted record bound")
    _legend(canvas, axes[0])
    return canvas


def _panels(number: int, width: float, columns: int, sharey: bool) -> tuple[Canvas, list[Axes]]:
    columns = min(number, columns)
    rows = -(-number // columns)
    canvas = Canvas(figsize=(max(3.4, width) * columns, 2.9 * rows), layout="constrained")
    axes = list(np.atleast_1d(canvas.subplots(rows, columns, sharey=sharey)).reshape(-1))
    for axis in axes[number:]:
        axis.set_visible(False)
    return canvas, axes[:number]


def _violin(axis: Axes, place: int, values: Floats, colour: str, points: bool = True) -> None:
    """A violin with median and quartiles; values that do not vary are a line."""
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    if len(values) > 2 and values.std() > 1e-9 * max(1.0, abs(middle)):
        shape = axis.violinplot([values], [place], widths=0.8, showextrema=False, points=120)
        for body in shape["bodies"]:  # type: ignore[attr-defined]
            body.set(facecolor=colour, edgecolor=colour, alpha=0.35, linewidth=0.8)
        axis.vlines(place, low, high, color=colour, lw=3)
    axis.hlines(middle, place - 0.22, place + 0.22, color=colour, lw=2)
    if points and len(values) <= FEW:
        spread = np.linspace(-0.12, 0.12, len(values))
        axis.plot(place + spread, values, ".", ms=3, color=colour, alpha=0.8)


def _reference(axis: Axes, said: Figure, material: Material, case: str, epsilon: str, measure: str) -> None:
    """A dashed line: ε/2 for bounds, ε for local ε, the law's own figure for location."""
    truth = next(c for c in material.study.cases if c.name == case).generator.generator().truth()
    if measure in truth:
        axis.axhline(truth[measure], color=INK, lw=0.9, ls="--")
    elif epsilon and measure == "database_bound":
        axis.axhline(as_number(epsilon) / 2.0, color=INK, lw=0.9, ls="--")
    elif epsilon and measure.startswith("epsilon_local"):
        axis.axhline(as_number(epsilon), color=INK, lw=0.9, ls="--")


def _legend(canvas: Canvas, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), frameon=False)


def _panel_title(case: str, epsilon: str) -> str:
    return ", ".join(part for part in (case, f"ε = {epsilon}" if epsilon else "") if part)


_KINDS: Mapping[FigureKind, Callable[[Figure, Material], Canvas]] = {
    "violins": violins,
    "by_size": by_size,
    "ecdf": ecdfs,
    "record_bounds": record_bounds,
    "weights_and_bounds": weights_and_bounds,
}


def drawn(figures: Sequence[Figure], material: Material) -> list[tuple[Figure, str]]:
    return [(figure, draw(figure, material, number)) for number, figure in enumerate(figures, start=1)]
