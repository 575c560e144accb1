"""Finds how a release meets public totals: the margins to rake to, and how far weights of unidentified rows may move.

A row is unidentified where the noisy sums give only a range for its mean weight. Raking first fills such rows: their
weights take what the total leaves them, within their ranges. So identified rows lose none of their weight. If a total has
one unidentified row only, the total determines that row's weight. This is post-processing.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.estimators import Interval
from dpdist.estimation.raking import Margin, Room, margins_of
from dpdist.publish.released import ReleasedObject

FIXED = 1e-9
"""Largest distance between a cell's rows and a combination of totals at which the totals determine the cell's count."""
MET = 1e-8
"""Relative distance from its total up to which a raked count differs from it by rounding alone."""
DIGITS = 13
"""Significant digits of a count that is computed from totals."""


def margins_and_room(release: ReleasedObject) -> tuple[list[Margin], Room | None]:
    """Returns margins of the public totals, and the range within which every frame row's weight may move.

    There are no margins if the job states no totals. The range is None if all rows are identified.
    """
    margins = margins_of(release.job, release.frame)
    if not margins or not release.has_ranges:
        return margins, None
    ends = np.zeros((len(release.frame), 2))
    for stratum in release.completed_strata:
        if stratum.facts.ranges is not None:
            of_weights = stratum.facts.ranges[stratum.model.design.pattern, 0]
            ends[release.frame.rows_of(stratum.number)] = np.nan_to_num(of_weights)
    n = release.frame.count.astype(float)
    return margins, Room(*(n * ends.T))


def fixed_counts(cells: Cells, margins: list[Margin]) -> Floats:
    """1 for a cell whose count follows from the totals alone, else 0, (cell,)."""
    return np.asarray(np.isfinite(fixed_totals(cells, margins)), dtype=float)


def fixed_totals(cells: Cells, margins: list[Margin]) -> Floats:
    """The count that follows from the totals alone, without rounding errors, (cell,); NaN for other cells."""
    if not margins:
        return np.full(len(cells), np.nan)
    x, held = np.vstack([margin.membership.toarray() for margin in margins]), cells.membership.toarray()
    parts = np.linalg.lstsq(x.T, held.T, rcond=None)[0].T
    follows = np.abs(held - parts @ x).max(axis=1) < FIXED
    totals = parts @ np.concatenate([margin.totals for margin in margins])
    return np.where(follows, [float(f"{each:.{DIGITS}g}") for each in totals], np.nan)


def without_rounding(counts: Interval, totals: Floats) -> Interval:
    """Returns counts where those that `totals` (cell,) fix are exact: the total itself, with the error 0.

    A count that does not meet its total, and an error that is more than rounding, stay as they are.
    """
    with np.errstate(invalid="ignore"):
        met = np.abs(counts.value - totals) <= MET * np.abs(totals)
        exact = met & (counts.standard_error <= MET * np.abs(totals))
    value, error = np.where(met, totals, counts.value), np.where(exact, 0.0, counts.standard_error)
    lower, upper = (np.where(exact, totals, limit) for limit in (counts.lower, counts.upper))
    return counts._replace(value=value, standard_error=error, lower=lower, upper=upper)
