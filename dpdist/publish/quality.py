"""Rates the reliability of printed figures by rules that the job states, from published figures and errors alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats
from dpdist.job import StatisticName
from dpdist.job.presentation import FLAGS, Quality, Thresholds

Flags = NDArray[np.str_]


class Rated(NamedTuple):
    """Ratings of figures, (row, column): a flag, "" if a figure is not rated; and whether the figure is printed."""

    flags: Flags
    printed: NDArray[np.bool_]


def rated(rules: Quality, statistics: Sequence[StatisticName], values: Floats, errors: Floats, margins: Floats) -> Rated:
    """Rates figures (row, column). `statistics` has the statistics of one group of columns; all groups have them in this
    order.
    """
    grade = np.full(values.shape, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cv = errors / np.abs(values)
    if rules.cv is not None:
        grade = np.maximum(grade, _graded(cv, rules.cv))
    for j, name in enumerate(statistics):
        if name in rules.margin:
            grade[:, j] = np.maximum(grade[:, j], _graded(margins[:, j], rules.margin[name]))
    shown = np.ones(values.shape, dtype=bool)
    if rules.minimum is not None:
        shown = ~(_counts(statistics, values) < rules.minimum)
    if rules.hide_unreliable:
        shown &= grade < FLAGS.index("unreliable")
    return Rated(np.array(["", *FLAGS])[grade + 1], shown)


def _graded(measure: Floats, thresholds: Thresholds) -> NDArray[np.int_]:
    """Position in FLAGS of every figure's measure of error, −1 where the measure is unknown."""
    grade = (measure > thresholds.caution).astype(int) + (measure > thresholds.unreliable)
    return np.where(np.isnan(measure), -1, grade)


def _counts(statistics: Sequence[StatisticName], values: Floats) -> Floats:
    """The published count of every figure's cell. Each group of columns contains one column of counts."""
    places = [j for j, name in enumerate(statistics) if name == "count"]
    return np.repeat(values[:, places], len(statistics) // len(places), axis=1)


def in_words(rules: Quality) -> list[str]:
    """The rules as notes of a table."""
    notes = []
    if rules.cv is not None:
        low, high = (f"{100 * each:g} %" for each in (rules.cv.caution, rules.cv.unreliable))
        notes.append(
            f"A figure is flagged caution where its coefficient of variation is above {low}, unreliable above {high}."
        )
    for name, limits in rules.margin.items():
        notes.append(
            f"A {name} is flagged caution where its margin of error is above {limits.caution:,.10g}, unreliable above "
            f"{limits.unreliable:,.10g}."
        )
    if rules.minimum is not None:
        notes.append(f"Figures of cells with a published count below {rules.minimum:,} are not printed.")
    if rules.hide_unreliable:
        notes.append("Unreliable figures are not printed.")
    return notes
