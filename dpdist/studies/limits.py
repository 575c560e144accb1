"""Checks which limits of a study file the study's results meet, and words the findings for its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.records import Floats
from dpdist.estimation.estimators import NORMAL_95
from dpdist.studies.ratios import MONTE_CARLO
from dpdist.studies.shown import Limit, Note
from dpdist.studies.verdicts import Interval, Verdict, mean_interval

OVER = {
    "replicates": "means over replicates with their 95 % intervals",
    "cells": "medians over cells with their 95 % intervals",
    "all": "the worst replicate",
}
MOST_NAMED = 12
"""Largest number of cases that a page names for a limit that is not met."""
BY = ["case", "mechanism", "epsilon", "measure"]


class Outcome(NamedTuple):
    """One result that a limit applies to: its name, its figure, and whether it meets the limit."""

    name: str
    figure: Interval
    verdict: Verdict


def findings(limits: tuple[Limit, ...], results: pd.DataFrame, same_at_every_epsilon: tuple[str, ...] = ()) -> list[Note]:
    """Sentences on which limits are met and which are not, computed from the results alone."""
    return [
        Note(title=limit.title, text=_text(limit, list(outcomes(limit, results, same_at_every_epsilon))))
        for limit in limits
    ]


def outcomes(limit: Limit, results: pd.DataFrame, same_at_every_epsilon: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """Every result that a limit applies to, by case, mechanism, ε and measure, with its verdict."""
    wanted = results[results["measure"].isin([f"{name}{end}" for name in limit.measures for end in ("", MONTE_CARLO)])]
    for column, names in (("case", limit.cases), ("epsilon", limit.epsilons)):
        wanted = wanted if names is None else wanted[wanted[column].isin(names)]
    errors = wanted[wanted["measure"].str.endswith(MONTE_CARLO)]
    wanted = wanted.drop(errors.index)
    again = wanted.duplicated(["case", "mechanism", "measure", "replicate"])
    wanted = wanted[~(again & wanted["mechanism"].isin(same_at_every_epsilon))]
    several = wanted.groupby(["case", "mechanism"])["epsilon"].transform("nunique") > 1
    wanted = wanted.assign(several=several)
    there = wanted if limit.mechanisms is None else wanted[wanted["mechanism"].isin(limit.mechanisms)]
    for (case, mechanism, epsilon, measure), rows in there.groupby(BY, sort=False):
        at = f" at ε = {epsilon}" if rows["several"].iloc[0] else ""
        name, at_error = f"{case} {mechanism}{at} {measure}", (case, mechanism, epsilon, f"{measure}{MONTE_CARLO}")
        if limit.over == "cells":
            figure = _median(rows["value"].to_numpy(float), errors.set_index(BY)["value"].get(at_error))
            yield Outcome(name, figure, figure.within(*limit.ends))
        elif len(values := _values(limit, wanted, rows)):
            yield _outcome(limit, name, values)


def _median(cells: Floats, error: float | None) -> Interval:
    """The median over cells with a ratio, and its 95 % interval.

    `error` is the median's standard error over resampled replicates. With one replicate it is unknown, and the interval
    infinite.
    """
    middle, half = float(np.nanmedian(cells)), np.inf if error is None or np.isnan(error) else NORMAL_95 * error
    return Interval(middle - half, middle, middle + half)


def _values(limit: Limit, wanted: pd.DataFrame, rows: pd.DataFrame) -> Floats:
    """A measure by replicate; for a limit with `below`, its difference from the measure that should be larger."""
    if limit.below is None:
        return rows["value"].to_numpy(float)
    other = wanted[wanted["mechanism"] == limit.below]
    both = rows.merge(other, on=["case", "epsilon", "measure", "replicate"], suffixes=("", "_larger"))
    return (both["value"] - both["value_larger"]).to_numpy(float)


def _outcome(limit: Limit, name: str, values: Floats) -> Outcome:
    if limit.over == "all":
        worst = float(values[np.argmax([limit.beyond(value) for value in values])])
        return Outcome(name, Interval(worst, worst, worst), Verdict.NO if limit.beyond(worst) > 0 else Verdict.YES)
    figure = mean_interval(values)
    return Outcome(name, figure, figure.within(*limit.ends))


def _text(limit: Limit, results: list[Outcome]) -> str:
    if not results:
        return "Nothing of it was measured."
    over = OVER[limit.over]
    of = {verdict: [each for each in results if each.verdict is verdict] for verdict in Verdict}
    text = f"Limit: {limit.text}, {over}. Kept in {len(of[Verdict.YES])} of {len(results)} results."
    if few := len(of[Verdict.TOO_FEW]):
        text += f" Too few replicates to tell in {few}."
    if not (broken := of[Verdict.NO]):
        return text
    worst = sorted(broken, key=lambda each: limit.beyond(each.figure.mean), reverse=True)[:MOST_NAMED]
    named = "; ".join(f"{each.name} {_figure(each.figure)}" for each in worst)
    return f"{text} Not in{' the following, and others' if len(broken) > len(worst) else ''}: {named}."


def _figure(figure: Interval) -> str:
    half = figure.upper - figure.mean
    return f"{figure.mean:.2f}" + (f" ± {half:.2f}" if half > 0 else "")
