"""Verdicts of a study: whether published figures reproduce, and limits are met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_95
from dpdist.studies.figures import StudyMaterial, number
from dpdist.studies.kinds.populations import MONTE_CARLO
from dpdist.studies.settings import ComparisonTable, Limit, Note, StudyRow, as_number

CONFIDENCE = 0.95
MARGIN_IN_SD = 0.5
"""Distance, in standard deviations between replicates, within which two figures count as the same."""
ROUNDING = 1e-9
"""Relative difference within which two figures without Monte Carlo error count as the same."""


class ClaimVerdict(Enum):
    """Conclusion of a run about a claim or a limit."""

    YES = "yes"
    NO = "no"
    TOO_FEW = "too few replicates to tell"


class ReplicateInterval(NamedTuple):
    """A mean over replicates and its interval, which is infinite for a single replicate."""

    lower: float
    mean: float
    upper: float

    def within(self, low: float, high: float) -> ClaimVerdict:
        """Whether the mean is within the limit, as far as its interval can show."""
        if low <= self.lower and self.upper <= high:
            return ClaimVerdict.YES
        return ClaimVerdict.NO if self.upper < low or high < self.lower else ClaimVerdict.TOO_FEW


def mean_interval(values: Floats) -> ReplicateInterval:
    """Student's 95 % interval, from (replicate,)."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return ReplicateInterval(-np.inf, mean, np.inf)
    half = float(scipy.special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2.0) * values.std(ddof=1) / np.sqrt(n))
    return ReplicateInterval(mean - half, mean, mean + half)


class ReplicateMean(NamedTuple):
    """Mean over replicates, standard deviation between them, and their number."""

    mean: float
    sd: float
    replicates: int

    @property
    def variance(self) -> float:
        return self.sd**2 / self.replicates


def estimate_of(values: Floats) -> ReplicateMean:
    return ReplicateMean(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else np.nan, len(values))


def reproduces(ours: ReplicateMean, theirs: ReplicateMean) -> ClaimVerdict:
    """Whether two means agree within half a standard deviation between replicates.

    Yes if Welch's interval of the difference lies within this margin, no if it lies outside.
    """
    if ours.replicates < 2:
        return ClaimVerdict.TOO_FEW
    variance, difference = ours.variance + theirs.variance, ours.mean - theirs.mean
    if variance <= (ROUNDING * theirs.mean) ** 2:
        return ClaimVerdict.YES if abs(difference) <= ROUNDING * abs(theirs.mean) else ClaimVerdict.NO
    parts = [estimate.variance**2 / (estimate.replicates - 1) for estimate in (ours, theirs) if estimate.replicates > 1]
    freedom = variance**2 / sum(parts) if any(parts) else np.inf  # a mean without spread, beside one of one replicate
    half = float(scipy.special.stdtrit(freedom, 0.5 + CONFIDENCE / 2.0) * np.sqrt(variance))
    margin = MARGIN_IN_SD * float(np.sqrt((ours.sd**2 + theirs.sd**2) / 2.0))
    return ReplicateInterval(difference - half, difference, difference + half).within(-margin, margin)


OVER = {
    "replicates": "means over replicates with their 95 % intervals",
    "cells": "medians over cells with their 95 % intervals",
    "all": "the worst replicate",
}
MOST_NAMED = 12
"""Largest number of cases that a page names for a limit that is not met."""
BY = ["case", "mechanism", "epsilon", "measure"]


class LimitedResult(NamedTuple):
    """A result that a limit applies to."""

    name: str
    figure: ReplicateInterval
    verdict: ClaimVerdict


def findings(limits: tuple[Limit, ...], results: pd.DataFrame) -> list[Note]:
    """Sentences on which limits are met."""
    return [Note(title=limit.title, text=_text(limit, list(outcomes(limit, results)))) for limit in limits]


def outcomes(limit: Limit, results: pd.DataFrame) -> Iterator[LimitedResult]:
    """Every result that a limit applies to, with its verdict."""
    selection = results[results["measure"].isin([f"{name}{end}" for name in limit.measures for end in ("", MONTE_CARLO)])]
    for column, names in (("case", limit.cases), ("epsilon", limit.epsilons)):
        selection = selection if names is None else selection[selection[column].isin(names)]
    errors = selection[selection["measure"].str.endswith(MONTE_CARLO)]
    selection, by_result = selection.drop(errors.index), errors.set_index(BY)["value"]
    several = selection.groupby(["case", "mechanism"])["epsilon"].transform("nunique") > 1
    selection = selection.assign(several=several)
    there = selection if limit.mechanisms is None else selection[selection["mechanism"].isin(limit.mechanisms)]
    for (case, mechanism, epsilon, measure), rows in there.groupby(BY, sort=False):
        suffix = f" at ε = {epsilon}" if rows["several"].iloc[0] else ""
        name, at_error = f"{case} {mechanism}{suffix} {measure}", (case, mechanism, epsilon, f"{measure}{MONTE_CARLO}")
        if limit.over == "cells":
            figure = _median(rows["value"].to_numpy(float), by_result.get(at_error))
            yield LimitedResult(name, figure, figure.within(*limit.ends))
        elif len(values := _values(limit, selection, rows)):
            yield _outcome(limit, name, values)


def _median(cells: Floats, error: float | None) -> ReplicateInterval:
    """The median over cells with a ratio, and its 95 % interval, infinite without a Monte Carlo error."""
    middle, half = float(np.nanmedian(cells)), np.inf if error is None or np.isnan(error) else NORMAL_95 * error
    return ReplicateInterval(middle - half, middle, middle + half)


def _values(limit: Limit, selection: pd.DataFrame, rows: pd.DataFrame) -> Floats:
    """Values by replicate; with `below`, differences from the other mechanism's."""
    if limit.below is None:
        return rows["value"].to_numpy(float)
    other = selection[selection["mechanism"] == limit.below]
    both = rows.merge(other, on=["case", "epsilon", "measure", "replicate"], suffixes=("", "_larger"))
    return (both["value"] - both["value_larger"]).to_numpy(float)


def _outcome(limit: Limit, name: str, values: Floats) -> LimitedResult:
    if limit.over == "all":
        worst = float(values[np.argmax([limit.beyond(value) for value in values])])
        return LimitedResult(
            name, ReplicateInterval(worst, worst, worst), ClaimVerdict.NO if limit.beyond(worst) > 0 else ClaimVerdict.YES
        )
    figure = mean_interval(values)
    return LimitedResult(name, figure, figure.within(*limit.ends))


def _text(limit: Limit, results: list[LimitedResult]) -> str:
    if not results:
        return "Nothing in it was measured."
    over = OVER[limit.over]
    of = {verdict: [outcome for outcome in results if outcome.verdict is verdict] for verdict in ClaimVerdict}
    text = f"Limit: {limit.text}, {over}. Met in {len(of[ClaimVerdict.YES])} of {len(results)} results."
    if number := len(of[ClaimVerdict.TOO_FEW]):
        text += f" Too few replicates to tell in {number}."
    if not (broken := of[ClaimVerdict.NO]):
        return text
    worst = sorted(broken, key=lambda outcome: limit.beyond(outcome.figure.mean), reverse=True)[:MOST_NAMED]
    figures = "; ".join(f"{outcome.name} {_figure(outcome.figure)}" for outcome in worst)
    return f"{text} Not met in{', among others' if len(broken) > len(worst) else ''}: {figures}."


def _figure(figure: ReplicateInterval) -> str:
    half = figure.upper - figure.mean
    return f"{figure.mean:.2f}" + (f" ± {half:.2f}" if half > 0 else "")


ANSWERS = {
    ClaimVerdict.YES: "reproduces",
    ClaimVerdict.NO: "does not reproduce",
    ClaimVerdict.TOO_FEW: ClaimVerdict.TOO_FEW.value,
}
READING = (
    "Reproduces: the 95 % interval of the difference lies within ± half the standard deviation between replicates. Does "
    "not reproduce: the whole interval lies outside. Otherwise, there are too few replicates to tell, here or in the "
    "source."
)
RANGE = re.compile(r"(-?[\d.]+) – (-?[\d.]+)")
"""Two ends of an interval, as a study file writes them."""


def comparison_of(table: ComparisonTable, material: StudyMaterial) -> dict[str, Any]:
    """Rows of published figures with this run's."""
    rows = []
    for row in table.rows:
        epsilons = [e for e in material.study.grid if row.epsilon is None or as_number(e) == float(row.epsilon)]
        place = (table.case or material.study.case_names[0], row.mechanism, epsilons[0] if epsilons else "")
        answer, distance = verdict(table, row, material, *place)
        rows.append(
            {
                "mechanism": row.mechanism,
                "epsilon": "" if row.epsilon is None else place[2],
                "published": [_published(row.values.get(key, "")) for key in table.columns],
                "ours": _statistic(table, material, *place),
                "verdict": answer,
                "distance": distance,
            }
        )
    return {"table": table, "rows": rows, "any_epsilon": any(row["epsilon"] for row in rows)}


def verdict(
    table: ComparisonTable, row: StudyRow, material: StudyMaterial, case: str, mechanism: str, epsilon: str
) -> tuple[str, str]:
    """Whether a row's published figures agree with this run, and their largest difference in its standard errors.

    Both are empty if nothing can be compared.
    """
    if table.published is None:
        return "", ""
    theirs = _figures(row.values.get(table.published.column, ""))
    ours = _estimates(table, material, case, mechanism, epsilon)
    if not theirs or len(theirs) != len(ours):
        return "", ""
    sd = row.values.get(table.published.sd or "", "")
    pairs = [
        (mine, ReplicateMean(figure, float(sd) if isinstance(sd, float) else mine.sd, table.published.replicates))
        for mine, figure in zip(ours, theirs, strict=True)
    ]
    answers = {reproduces(*pair) for pair in pairs}
    worst = next(possible for possible in (ClaimVerdict.NO, ClaimVerdict.TOO_FEW, ClaimVerdict.YES) if possible in answers)
    distances = [
        (mine.mean - figure.mean) / np.sqrt(variance)
        for mine, figure in pairs
        if (variance := mine.variance + figure.variance) > (ROUNDING * figure.mean) ** 2
    ]
    return ANSWERS[worst], f"{max(distances, key=abs):+.1f}" if distances else ""


def _figures(value: float | str) -> list[float]:
    if not isinstance(value, str):
        return [float(value)]
    ends = RANGE.fullmatch(value)
    return [float(end) for end in ends.groups()] if ends else []


def _estimates(
    table: ComparisonTable, material: StudyMaterial, case: str, mechanism: str, epsilon: str
) -> list[ReplicateMean]:
    place = (case, mechanism, epsilon)
    if table.statistic == "interval":
        ends = [material.values(*place, table.measure + end) for end in ("_lower", "_upper")]
        return [estimate_of(values) for values in ends if len(values)]
    values = material.values(*place, table.measure)
    if not len(values) or table.statistic in ("range", "five_numbers"):
        return []
    if table.statistic == "median":
        replicates = material.study.replicates
        error = material.values(*place, table.measure + MONTE_CARLO)
        return (
            [ReplicateMean(float(np.nanmedian(values)), float(error[0]) * np.sqrt(replicates), replicates)]
            if len(error)
            else []
        )
    return [estimate_of(values)]


def _statistic(table: ComparisonTable, material: StudyMaterial, case: str, mechanism: str, epsilon: str) -> str:
    values = material.values(case, mechanism, epsilon, table.measure)
    if not len(values):
        return "—"
    if table.statistic == "range":
        least, most = number(values.min()), number(values.max())
        return least if least == most else f"{least} – {most}"
    if table.statistic == "median":
        error = material.values(case, mechanism, epsilon, table.measure + MONTE_CARLO)
        return number(float(np.nanmedian(values))) + (f" ± {error[0]:.2f}" if len(error) else "")
    if table.statistic == "five_numbers":
        return " · ".join(number(value) for value in np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]))
    if table.statistic == "interval":
        ends = [material.values(case, mechanism, epsilon, table.measure + end) for end in ("_lower", "_upper")]
        text = f"{ends[0].mean():.1f} – {ends[1].mean():.1f}"
        return text if len(values) < 2 else f"{text}, sd {ends[0].std(ddof=1):.1f} – {ends[1].std(ddof=1):.1f}"
    if len(values) < 2:
        return number(values.mean())
    sd = float(values.std(ddof=1))
    error = sd / np.sqrt(len(values))
    places = max(0, 1 - int(np.floor(np.log10(error)))) if error > 0 else 3
    spread = f", sd {number(sd)}" if table.statistic == "mean_sd" else ""
    return f"{values.mean():,.{places}f} ± {error:.{places}f}{spread}"


def _published(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,g}"
