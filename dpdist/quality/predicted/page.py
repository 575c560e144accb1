"""A self-contained page of a plan's predicted errors, and their curve over ε."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpdist.job import budget_text
from dpdist.planning.plan import Plan
from dpdist.privacy.claims import promised
from dpdist.publish.predicted_errors import FAR, FAR_NAMED
from dpdist.publish.writers.page import environment
from dpdist.quality.errors import FAR_RECORDS
from dpdist.quality.predicted.alternatives import Alternative, grid
from dpdist.quality.predicted.prediction import ErrorPrediction
from dpdist.quality.predicted.scores import HEADINGS, Statistics, number
from dpdist.quality.predicted.words import UNIT, alarms, not_known, not_predicted, proposals, worth
from dpdist.quality.report_parts import Axis, Grid, ReportCell, ReportFigure, Section, axis, lines
from dpdist.quality.summary import brief, percent
from dpdist.survey.reference_file import ReferenceFile

MOST_DRAWN = 60
"""Largest number of tables whose curves are drawn, so that the page stays light."""
IN_ONE_FIGURE = 3
"""Largest number of curves in a figure."""
SHARES = ("relative", "largest_relative")
"""Figures that are shown in per cent."""


class ErrorCurve(NamedTuple):
    """A statistic's figures at the job's ε, and at each of `epsilons`."""

    here: Statistics
    epsilons: Sequence[float]
    points: Sequence[Statistics]

    @property
    def fixed(self) -> bool:
        """True if the design fixes every cell, so that errors are shares of the figures."""
        return self.here.cells <= self.here.fixed

    @property
    def medians(self) -> list[float]:
        return [point.relative if self.fixed else point.median for point in self.points]


def page(plan: Plan, prediction: ErrorPrediction, public: Path | None, changes: Sequence[Alternative] = ()) -> str:
    """One HTML document that loads nothing. Its figures are those of `plan --json`."""
    first = Section("errors", "Predicted errors")
    parts, headline = [first], not_known(prediction)
    if prediction.computed:
        headline = "; ".join(worth(prediction)) or "without a reference, there are no figures to compare with"
        largest = (
            f"Largest errors, and numbers of errors above {FAR:g} and {FAR_NAMED:g}, are for cells with {FAR_RECORDS} "
            "records or more"
        )
        first.sentences += [f"{text[0].upper()}{text[1:]}." for text in (UNIT, largest, *not_predicted(prediction))] + [
            f"{text}." for text in (*alarms(prediction), *proposals(prediction))
        ]
        first.grids += _nearer(prediction)
        if changes:
            parts.append(Section("alternatives", "Alternatives", grids=[grid(changes)]))
        parts += _tables(prediction)
    return rendered(f"Predicted errors of {plan.job.dataset}, {plan.job.period}", _facts(plan, public), headline, parts)


def rendered(title: str, facts: Iterable[tuple[str, str]], headline: str, sections: Sequence[Section]) -> str:
    """A page of what is known before a run. The headline is in the first section."""
    template = environment("dpdist.quality", "dpdist.publish.writers").get_template("plan.html")
    sentence = headline[0].upper() + headline[1:]
    return template.render(title=title, facts=list(facts), headline=sentence, sections=sections)


def _facts(plan: Plan, public: Path | None) -> Iterator[tuple[str, str]]:
    statement = promised(plan.promise, {})
    yield "Mechanism", plan.job.mechanism.name
    none = statement["guarantee"] == "none"
    yield "Guarantee", "none" if none else f"{statement['guarantee']}, ε = {budget_text(plan.job.budget.epsilon)}"
    if isinstance(plan.reference, ReferenceFile):
        yield "Public records", f"{plan.reference.name}, the reference"
    elif public is not None:
        yield "Public records", public.name


def _nearer(prediction: ErrorPrediction) -> Iterator[Grid]:
    """The share of cells, over all statistics, whose release is nearer than the reference alone, by ε."""
    if prediction.job.has_reference:
        rows = [[ReportCell(f"{epsilon:g}"), _shown(prediction.better(epsilon))] for epsilon in prediction.epsilons]
        yield Grid("Against the reference alone", ["ε", "share of cells in which the release is nearer"], rows)


def _tables(prediction: ErrorPrediction) -> Iterator[Section]:
    """A section for each table: figures at the job's ε, medians at every ε, and their curves."""
    by_epsilon = [prediction.statistics(epsilon) for epsilon in prediction.epsilons]
    here, notes = prediction.statistics(), list(_draws(prediction))
    for place, table in enumerate(dict.fromkeys(row.table for row in here)):
        curves = [
            ErrorCurve(row, prediction.epsilons, [statistics[number] for statistics in by_epsilon])
            for number, row in enumerate(here)
            if row.table == table
        ]
        section = Section(
            f"table-{place + 1}", table, grids=[_figures([row.here for row in curves]), _medians(curves, notes)]
        )
        if place < MOST_DRAWN:
            section.figures += _drawn(curves)
        else:
            section.sentences.append(f"Curves of the first {MOST_DRAWN} tables are drawn.")
        yield section


def _draws(prediction: ErrorPrediction) -> Iterator[str]:
    """Yields a note if the curve has fewer draws at other ε than at the job's."""
    here = prediction.curve[float(prediction.job.budget.epsilon)].draws
    least = min(at.draws for at in prediction.curve.values())
    if least < here:
        yield (
            f"Errors come from {here} draws of both files at the job's ε, and from {least} at others: curves may bend "
            "there."
        )


def _figures(statistics: Sequence[Statistics]) -> Grid:
    """A table's statistics at the job's ε."""
    columns = [name for name in HEADINGS if any(number(getattr(row, name)) is not None for row in statistics)]
    columns = [name for name in columns if name != "fixed" or any(row.fixed for row in statistics)]
    rows = [
        [ReportCell(row.statistic), *(_shown(getattr(row, name), name in SHARES) for name in columns)] for row in statistics
    ]
    return Grid("At the job's ε, in direct standard errors", ["statistic", *(HEADINGS[name] for name in columns)], rows)


def _medians(curves: Sequence[ErrorCurve], notes: list[str]) -> Grid:
    rows = [
        [ReportCell(curve.here.statistic), *(_shown(value, curve.fixed) for value in curve.medians)] for curve in curves
    ]
    in_shares = ["In per cent: shares of figures that the design fixes, which have no direct standard error."]
    heads = ["statistic", *(f"ε = {epsilon:g}" for epsilon in curves[0].epsilons)]
    return Grid("Median error by ε", heads, rows, notes=notes + (in_shares if any(curve.fixed for curve in curves) else []))


def _drawn(curves: Sequence[ErrorCurve]) -> Iterator[ReportFigure]:
    """Median errors over ε, a few statistics in a figure; percentages have separate figures."""
    epsilons = np.array(curves[0].epsilons)
    x = Axis("ε", float(epsilons[0]), float(max(epsilons[-1], 2.0 * epsilons[0])), True, tuple(curves[0].epsilons))
    for fixed in (False, True):
        shown_curves = [curve for curve in curves if curve.fixed == fixed]
        for start in range(0, len(shown_curves), IN_ONE_FIGURE):
            group = shown_curves[start : start + IN_ONE_FIGURE]
            scale, unit = (100.0, "% of the figure") if fixed else (1.0, "direct standard errors")
            points = {curve.here.statistic: (epsilons, scale * np.array(curve.medians)) for curve in group}
            levels = {} if fixed else {curve.here.statistic: curve.here.reference_alone for curve in group}
            y = axis(unit, *(up for _, up in points.values()), np.array(list(levels.values())))
            y = y if y.log else y._replace(low=0.0)
            caption = f"Median error over ε: {', '.join(points)}"
            dashes = any(map(np.isfinite, levels.values()))
            yield ReportFigure(
                caption + (" (dashed: the reference alone)" if dashes else ""), lines(caption, x, y, points, levels)
            )


def _shown(value: float, share: bool = False) -> ReportCell:
    """A figure with the value of `plan --json`, by which the column is sorted; integers have all digits."""
    if isinstance(value, int):
        return ReportCell(f"{value:,}", str(value))
    if (exact := number(value)) is None:
        return ReportCell("", "NaN")
    return ReportCell(percent(value) if share else brief(value), f"{exact:.10g}")
