"""For `publish.statement`: names cells that are borrowed, shared, drifted, unidentified or uncertain, and a failed bound.

All lists follow from released figures alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import Table
from dpdist.job.families import family_facts
from dpdist.mechanisms.parts import words_of
from dpdist.models.on_reference import OnDistributions
from dpdist.models.outputs import CellFacts
from dpdist.publish.released import ReleasedObject
from dpdist.reference.clipping import AT_THE_BOUND
from dpdist.reference.drift import DRIFTED

DRIFT_ALARM = 0.05
"""Largest probability that a release without drift names any drifted cell."""
NEAR_THE_BOUND = 0.9
"""Share of the public upper bound at which mean clipped weights stop a release, unless histograms show more."""
SATURATED = (
    "about {share:.0f} % of the weights lie at or above the public bound of {weight}, {top:,.10g}: counts and totals are "
    "too low by an unknown factor. Correct the bound, its unit first; a release under other bounds costs ε again"
)
PERHAPS_SATURATED = (
    "clipped weights are near the public bound of {weight}, {top:,.10g}, on average, and noise hides how many lie above "
    "it: counts and totals may be too low by an unknown factor. Correct the bound, its unit first, or give histograms more "
    "of the budget; either costs ε again"
)
SHARES = (
    "Small-area borrowing: this share of the shape of these cells is that of cells like them in the reference, at a scale "
    "of the cell's own, and the rest its own records'. How unlike cells are is in the errors."
)
WEIGHTS = (
    "Small-area borrowing: cells with few reference records take part of their distributions from other cells. The weight "
    "of a cell's own records is smaller where these are fewer, and where they are more like the others."
)

MOSTLY = 0.5
"""If an estimate has less than this part of the cell's own figure, it is named as mostly its group's."""
MOSTLY_COMMON = {
    False: "Noise leaves these cells mostly the figure of their group, and their intervals suppose cells like it: {}.",
    True: "Noise leaves these cells mostly the reference's figure, moved like the others, and intervals suppose it: {}.",
}
"""Note of a table that names such cells, for jobs with and without an earlier reference."""
MISSING = 2
"""Number of most influential records that a sample may lack."""
LARGER = 1.0
"""Ratio of other errors to the sampling error above which a figure is named."""
ONE_WEIGHT = 1e-6
"""Relative standard deviation of weights up to which they count as one weight: files round them."""
MOST = 99.0
"""Ratio that also stands for all larger ones."""

ByCell = dict[str, dict[str, float]]
"""Values by variable and cell. The variables are the outcomes, and "weight"."""


def named_cells(released: ReleasedObject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the statement's entries that name cells, with their keys and in order, as far as there are such cells."""
    words = words_of(released.job).entries
    lists: dict[str, Mapping[str, Any]] = {
        "not_identified": unidentified(released),
        "shrunk": mostly_common(released),
        "collapsed": {"units": units} if (units := collapsed(released)) else {},
        "beyond_sampling": beyond_sampling(released),
        "drift": drifted(released),
    }
    for name, cells in lists.items():
        if cells:
            yield name, {"in_words": words[name], **cells}


def _values_where(
    released: ReleasedObject, values: Callable[[CellFacts], Floats | None], holds: Callable[[float], bool]
) -> ByCell:
    """Values (cell, variable) for which a condition holds, without variables that have no such cell."""
    chosen: ByCell = {}
    for stratum in released.completed_strata:
        table = values(stratum.facts)
        if table is None:
            continue
        variables = ("weight", *stratum.outcomes)[-table.shape[1] :]
        for variable, column in zip(variables, table.T.tolist(), strict=True):
            such = {cell: value for cell, value in zip(stratum.cells, column, strict=True) if holds(value)}
            chosen.setdefault(variable, {}).update(such)
    return {variable: cells for variable, cells in chosen.items() if cells}


def unidentified(released: ReleasedObject) -> dict[str, list[str]]:
    """Names of cells with unidentified means, by outcome; those of mean weights are under "weight"."""
    cells = _values_where(released, lambda facts: None if facts.ranges is None else facts.ranges[..., 0], isfinite)
    return {variable: list(ends) for variable, ends in cells.items()}


def saturated(released: ReleasedObject) -> str | None:
    """The reason not to publish if many weights reach their public upper bound; otherwise None.

    Such weights count as the bound, so counts are too low by an unknown amount.
    """
    # Noisy histograms give the share of such weights. The table's noisy sums, which have independent noise, must also allow
    # this share. Where noise hides the share, as in small files, or where a release of an earlier version lacks it, mean
    # clipped weights near the bound are a sufficient reason.
    weight = released.job.survey.measured_weight
    if weight is None or not released.has_ranges:
        return None
    top = (released.job.columns[weight].bounds or (0.0, np.inf))[1]
    sums, shares, records = list[Floats](), list[Floats](), list[Floats]()
    for stratum in released.completed_strata:
        facts = stratum.facts
        if facts.ranges is not None:
            sums.append(facts.clipped_weights / top)
            shares.append(np.full(len(stratum.count), np.nan) if facts.shares_at_bound is None else facts.shares_at_bound)
            records.append(np.asarray(stratum.count, dtype=np.float64))
    clipped, share, count = (np.concatenate(parts) for parts in (sums, shares, records))
    beyond, hidden = float(count @ np.nan_to_num(share)), np.isnan(share)
    if min(beyond, clipped.sum()) >= AT_THE_BOUND * count.sum():
        return SATURATED.format(share=100.0 * beyond / count.sum(), weight=weight, top=top)
    if count[hidden].sum() > 0 and clipped[hidden].sum() >= NEAR_THE_BOUND * count[hidden].sum():
        return PERHAPS_SATURATED.format(weight=weight, top=top)
    return None


def drifted(released: ReleasedObject) -> dict[str, list[str]]:
    """Cells whose noisy sums differ from what a reference file or an earlier release predicts, by variable.

    Empty if the job pays for histograms in place of such a reference.
    """
    # Where a reference's weights do not vary, a departure is Laplace noise alone: it exceeds t standard deviations with the
    # probability exp(−√2 t). Sampling makes its tails lighter. So without drift no cell is named, but for a probability of
    # DRIFT_ALARM over all departures (Bonferroni).
    reference = released.job.reference
    if reference is None or reference.paid is not None:
        return {}
    tests = sum(stratum.facts.departures.size for stratum in released.completed_strata)
    beyond = max(DRIFTED, float(np.log(max(tests, 1) / DRIFT_ALARM) / np.sqrt(2.0)))
    cells = _values_where(released, lambda facts: facts.departures, lambda departure: abs(departure) > beyond)
    return {variable: list(departures) for variable, departures in cells.items()}


def borrowing(released: ReleasedObject) -> dict[str, Any]:
    """The statement's entry on shapes taken from similar cells; empty if no cell borrows."""
    if shares := _rounded(_values_where(released, lambda facts: facts.borrowed_shares, lambda share: share > 0.0)):
        return {"in_words": SHARES, **shares}
    cells = _borrowed_scores(released)
    return {"in_words": WEIGHTS, "cells": cells} if cells else {}


def _borrowed_scores(released: ReleasedObject) -> list[dict[str, Any]]:
    """Returns one entry for each cell that borrows: its number of reference records, and their weight by distribution.

    A distribution with weight 1 borrows nothing and is left out. The weight is 0 if the cell has no reference record of
    this kind.
    """
    entries = []
    for stratum, label in enumerate(released.frame.stratum_labels if family_facts(released.job).on_reference else ()):
        model = released.model(stratum)
        assert isinstance(model, OnDistributions)
        for cell, records, weights in model.borrowed_shapes():
            shares = {name: round(share, 3) for name, share in weights.items() if share < 1.0}
            if shares:
                entries.append({"stratum": label, "cell": cell, "reference_records": records, "own_weight": shares})
    return entries


def mostly_common(released: ReleasedObject) -> ByCell:
    """The part of a cell's own figure in its estimate, if it is below MOSTLY."""
    return _rounded(_values_where(released, lambda facts: facts.kept_shares, lambda share: round(share, 3) < MOSTLY))


def note_on_common(released: ReleasedObject, spec: Table) -> tuple[str, ...]:
    """A note for a published table on cells whose figure is mostly common to their group; empty without such cells.

    Most records of a noted cell are in base cells that `mostly_common` names, for a variable of the table.
    """
    variables = {"weight"} if all(statistic.name == "count" for statistic in spec.statistics) else None
    named = {
        cell for name, cells in mostly_common(released).items() if variables is None or name in variables for cell in cells
    }
    if not named:
        return ()
    count = released.frame.count.astype(np.float64)
    sign = np.full(len(count), -1.0)
    for stratum in released.completed_strata:
        common = np.array([cell in named for cell in stratum.cells])
        sign[released.frame.rows_of(stratum.number)] += 2.0 * common[stratum.model.design.pattern]
    cells = released.cells(spec)
    of_group = np.flatnonzero(cells.membership @ (count * sign) > 0.0)
    names = [released.job.presentation.cell(spec.by, cells.labels[k]) for k in of_group]
    return (MOSTLY_COMMON[released.job.has_reference].format("; ".join(names)),) if names else ()


def _rounded(shares: ByCell) -> ByCell:
    return {variable: {cell: round(share, 3) for cell, share in cells.items()} for variable, cells in shares.items()}


def collapsed(released: ReleasedObject) -> list[list[str]]:
    """The names of cells that share a noisy sum, one list for each sum of several cells."""
    groups = []
    for stratum in released.completed_strata:
        sums = stratum.facts.noisy_sum
        shared = np.flatnonzero(np.bincount(sums) > 1)
        groups += [[stratum.cells[k] for k in np.flatnonzero(sums == number).tolist()] for number in shared]
    return groups


def beyond_sampling(released: ReleasedObject) -> ByCell:
    """The ratio of a figure's other errors, by noise and reference, to its sampling error, if above LARGER.

    It is 0 for cells of at most MISSING records. Cells without a record are left out, and counts of cells with one
    common weight.
    """
    # The sampling error is one that the current sample may show: without its MISSING most influential records, because a
    # sample may happen to have no record of a distribution's tail. So it is the least standard error that the unprotected
    # estimate is likely to have.
    ratios: ByCell = {}
    for stratum in released.completed_strata:
        points = stratum.model.points_of_cells(released, stratum.number)[0]
        errors = zip(stratum.facts.error_variances.T, stratum.facts.noise_variances.T, strict=True)
        for k, (variable, (whole, noise)) in enumerate(zip(("weight", *stratum.outcomes), errors, strict=True)):
            for cell, n, pairs, total, by_noise in zip(
                stratum.cells, stratum.count, points[max(k - 1, 0)], whole, noise, strict=True
            ):
                if n < 1:
                    continue
                every, least = _sampling(pairs, float(n), of_weight=k == 0)
                if k == 0 and n * every <= ONE_WEIGHT**2:
                    continue  # weights that do not vary: the design fixes the count, and it has no sampling error
                other = max(float(total) - every, float(by_noise))
                if other > LARGER**2 * least:
                    ratio = round(float(np.sqrt(other / least)), 2) if least > 0.0 else MOST
                    ratios.setdefault(variable, {})[cell] = min(ratio, MOST)
    return ratios


def _sampling(points: Floats, n: float, of_weight: bool) -> tuple[float, float]:
    """Sampling variances of log mean weight, or of mean outcome, of n records like these points (weight, outcome).

    The second variance leaves out the most influential records.
    """
    weight, outcome = points.T
    share = weight / weight.mean()
    squares = np.sort((share - 1.0 if of_weight else share * (outcome - np.average(outcome, weights=weight))) ** 2)
    kept = squares[: int(np.ceil(len(squares) * max(0.0, 1.0 - MISSING / n)))]
    return float(squares.mean()) / n, float(kept.mean()) / n if len(kept) else 0.0
