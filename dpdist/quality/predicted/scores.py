"""Scores of releases on public data: a statistic's errors over the cells of a table, and over replicates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.core.records import rows_of_groups
from dpdist.publish.predicted_errors import FAR, FAR_NAMED
from dpdist.quality.errors import FAR_RECORDS, Errors, of_figures

PUBLIC = Key(bytes(32)).child("predicted errors")
"""The key of replicates. It is public, so that anyone can repeat them."""
FALSE_ALARM = 0.05
"""Largest probability that any figure of a statistic is named although none has a predicted error above 1.

Because replicates are few, a named figure's root mean squared error must also be large for Laplace errors of standard
deviation 1. With the probability above, one of as many cells would exceed this limit. Normal errors exceed it less
often.
"""
FAR_CHANCE = 0.1
"""Probability of an error above FAR_NAMED from which a cell is named, if formulas predict it."""
SIMULATED = 200_000
"""Number of simulated cells that give this limit."""


class Statistics(NamedTuple):
    """A statistic's predicted errors over a table's cells, margins included. Errors are in direct standard errors.

    - `cells` to `largest_relative`: as a verdict measures them (`errors.Errors`), as means over replicates; largest errors
      are medians over them, so that one replicate alone does not decide.
    - `coverage`, `direct`: the share of 90 % intervals that hold the true figure; the same of direct estimates.
    - `bias`: the mean error with its sign.
    - `better`: the share of cells in which the release is nearer to the direct estimate than the reference alone.
    - `far`: names of cells whose predicted error is far above 1 (`named_above`), the largest first. Where formulas
      predict errors, these are cells with a chance above FAR_CHANCE of an error above FAR_NAMED.

    Unknown figures are NaN.
    """

    table: str
    statistic: str
    name: str
    outcome: str | None
    cells: int
    fixed: int
    median: float
    largest: float
    over_2: float
    over_4: float
    coverage: float
    direct: float
    bias: float
    given_n: float
    relative: float
    largest_relative: float
    reference_alone: float
    largest_alone: float
    better: float
    far: tuple[str, ...]

    @property
    def errors(self) -> Errors:
        return Errors(*(getattr(self, name) for name in Errors._fields))


HEADINGS = {
    "cells": "cells",
    "median": "median error",
    "largest": "largest error",
    "over_2": f"cells above {FAR:g}",
    "over_4": f"cells above {FAR_NAMED:g}",
    "coverage": "coverage of 90 % intervals",
    "reference_alone": "reference alone, median",
    "largest_alone": "reference alone, largest",
    "better": "share of cells in which the release is nearer than the reference alone",
    "given_n": "median error given n",
    "fixed": "cells that the design fixes",
    "relative": "median error, of the figure",
    "largest_relative": "largest error, of the figure",
}
"""Headings of a statistic's figures on a page. A column without a figure is left out."""
FIGURES = tuple(name for name in HEADINGS if name not in ("cells", "fixed"))
"""Figures of a statistic in `plan --json`, in direct standard errors, or as shares."""


def number(value: float) -> float | None:
    """The figure with four digits for JSON; None if unknown."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


MEANS = {"coverage": "held", "direct": "direct_held", "bias": "bias"}
"""Figures that are means of a column."""


def summaries(rows: pd.DataFrame, least: int = FAR_RECORDS) -> list[Statistics]:
    """Errors of every statistic of every table, from rows of one candidate (`replicates.COLUMNS` and `replicate`).

    Errors are called large in cells of at least `least` records.
    """
    # Groups of arrays: a data frame for each of thousands takes longer than its figures.
    columns = {str(name): rows[name].to_numpy() for name in rows}
    group = rows.groupby(["table", "statistic"], sort=False).ngroup().to_numpy().astype(np.int64)
    return [
        _summed({name: of[places] for name, of in columns.items()}, least)
        for places in rows_of_groups(group, int(group.max(initial=-1)) + 1)
    ]


def _summed(rows: Mapping[str, Any], least: int) -> Statistics:
    """One statistic at one ε, from columns, (row,); every replicate has the same cells, in one order."""
    replicates = len(np.unique(rows["replicate"]))
    columns = ("error", "given_n", "relative", "records", "alone")
    by_replicate = (rows[name].astype(float).reshape(replicates, -1) for name in columns)
    error, given_n, relative, records, alone = by_replicate
    errors = [Errors.of(*part, least) for part in zip(error, given_n, relative, records, strict=True)]
    middle, mean = partial(of_figures, np.median), partial(of_figures, np.mean)
    averaged = dict.fromkeys(("median", "over_2", "over_4", "given_n", "relative"), mean)
    averaged |= dict.fromkeys(("largest", "largest_relative"), middle)
    known = ~np.isnan(error)
    squares = np.where(known, error, 0.0) ** 2
    root = np.sqrt(squares.sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan))
    limit, both = named_above(replicates, int(np.isfinite(root).sum())), known & ~np.isnan(alone)
    if "chance" in rows:
        root, limit = rows["chance"].astype(float)[: len(root)], FAR_CHANCE
    far = [cell for cell in np.argsort(-root, kind="stable") if root[cell] > limit]
    pairs = list(zip(alone, records, strict=True))
    return Statistics(
        table=str(rows["table"][0]),
        statistic=str(rows["statistic"][0]),
        name=str(rows["name"][0]),
        outcome=None if pd.isna(rows["outcome"][0]) else str(rows["outcome"][0]),
        cells=max(part.cells for part in errors),
        fixed=max(part.fixed for part in errors),
        **{name: average(np.array([getattr(part, name) for part in errors])) for name, average in averaged.items()},
        **{name: mean(rows[column].astype(float)) if column in rows else np.nan for name, column in MEANS.items()},
        reference_alone=mean(np.array([middle(values) for values, _ in pairs])),
        largest_alone=middle(np.array([of_figures(np.max, values[size >= least]) for values, size in pairs])),
        better=float((error < alone)[both].mean()) if both.any() else np.nan,
        far=tuple(str(rows["cell"][cell]) for cell in far),
    )


@cache
def named_above(replicates: int, cells: int) -> float:
    """The root mean squared error over replicates, in direct standard errors, above which a figure is named."""
    noise = PUBLIC.generator("alarms").laplace(0.0, np.sqrt(0.5), (SIMULATED, replicates))
    level = max(FALSE_ALARM / max(cells, 1), 10.0 / SIMULATED)
    return max(FAR, float(np.quantile(np.sqrt((noise**2).mean(axis=1)), 1.0 - level)))
