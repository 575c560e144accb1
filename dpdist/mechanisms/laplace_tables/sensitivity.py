"""Sensitivities of the figures of whole tables, where margins get noise as cells do ([T]; METHODS §7).

Local sensitivities are computed from the file at hand, with weight w and outcome y. Each is the largest over a table's
cells: for a count max w − min w; for a total max wy − min wy; for a mean (max wy − min wy) / (Σw − (max w − min w)). They
depend on the records themselves, so there is no guarantee.

Public sensitivities: a record enters every cell that contains it, over all tables, by its pair of sums
(`laplace_cells.sensitivity`). A pair has the L1 sensitivity 2, or 1 where no table needs the outcome. So K cells have 2K.
This holds under zero_out and under an exchange within the cells. A record that changes cells leaves and enters at most K
cells, and costs up to 2ε. Means are ratios of noisy totals and counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import scipy

from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.job import Job, StatisticName, Table
from dpdist.mechanisms.laplace_cells.sensitivity import SENSITIVITY, UNIT
from dpdist.mechanisms.laplace_tables.least_squares import LeastSquares
from dpdist.privacy.queries import Moved, NoisyQuery
from dpdist.privacy.units import moves, record_epsilon

Extremes = tuple[Floats, Floats]
"""Smallest and largest value per frame row; +∞ and −∞ where a row has no record."""


def sensitivities(weight_sum: Floats, weight: Extremes, product: Extremes, cells: Cells) -> dict[StatisticName, float]:
    """Local sensitivities of a count, a mean and a total, from the extremes of the records of every frame row."""
    low_w, high_w = _over_cells(weight, cells)
    low_p, high_p = _over_cells(product, cells)
    occupied = high_w >= low_w
    weight_range = (high_w - low_w)[occupied]
    total = (cells.membership @ weight_sum)[occupied]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (high_p - low_p)[occupied] / (total - weight_range)
    return {
        "count": float(weight_range.max()),
        "mean": float(mean[np.isfinite(mean)].max(initial=0.0)),
        "total": float((high_p - low_p)[occupied].max()),
    }


def figures_met(frame: Frame, tables: Sequence[Table]) -> int:
    """Number of figures, over all tables, to which one record contributes."""
    return sum(cross(frame, table.by, table.margins).per_record * len(table.statistics) for table in tables)


def local_scale(job: Job, frame: Frame) -> Fraction:
    """Scale of the noise on a figure, in 1/UNIT of its sensitivity.

    Under `laplace` each figure gets all of ε. Under `laplace_composed` the figures to which a record contributes share
    it.
    """
    share = figures_met(frame, job.tables) if job.mechanism.name == "laplace_composed" else 1
    return Fraction(share * UNIT) / job.epsilon_of_tables


def public_scale(job: Job, frame: Frame) -> Fraction:
    """Scale of the noise on a cell's sums of pairs, in units of the pairs."""
    met = moves(job) * sum(cross(frame, table.by, table.margins).per_record for table in job.tables)
    moved = met * (SENSITIVITY if outcome_needed(job.tables) else 1) * UNIT
    return moved / record_epsilon(job, job.epsilon_of_tables)


def figures(cells: int, outcome: bool, scale: Fraction) -> NoisyQuery:
    """The query for the sums of all cells that a record enters, margins and tables together, under public bounds."""
    distance = Fraction(cells * (SENSITIVITY if outcome else 1) * UNIT)
    return NoisyQuery("sums of cells of tables", Moved(distance, distance, 2 * distance), scale)


def outcome_needed(tables: Sequence[Table]) -> bool:
    """True if some table asks for more than counts."""
    return any(statistic.name != "count" for table in tables for statistic in table.statistics)


def consistent(noisy: Floats, membership: scipy.sparse.csr_array) -> Floats:
    """The additive figures that are nearest to noisy ones in least squares, (cell,).

    Additive means that margins are sums of cells. `membership` is (cell, frame row). All figures have noise of one
    variance, so this is the best linear unbiased estimate (Hay, Rastogi, Miklau & Suciu 2010). With local sensitivities the
    tables have noise of different scales, but these scales are confidential, so the fit does not use them.
    """
    return np.asarray(membership @ LeastSquares.of(membership).solve(noisy[None]).rows[0])


def consistent_table(noisy: Mapping[StatisticName, Floats], cells: Cells) -> dict[StatisticName, Floats]:
    """One table's figures made consistent: counts and totals are additive, and means are their ratios if it has both."""
    return ratios({k: v if k == "mean" else consistent(v, cells.membership) for k, v in noisy.items()})


def ratios(figures: Mapping[StatisticName, Floats]) -> dict[StatisticName, Floats]:
    """Replaces means by total over count where a table has all three."""
    found = dict(figures)
    if {"count", "mean", "total"} <= set(found):
        with np.errstate(divide="ignore", invalid="ignore"):
            found["mean"] = found["total"] / found["count"]
    return found


def stacked(tables: Sequence[Cells]) -> scipy.sparse.csr_array:
    """Membership of the cells of several tables in one matrix, (cell, frame row)."""
    return scipy.sparse.csr_array(scipy.sparse.vstack([cells.membership for cells in tables]))


def _over_cells(per_row: Extremes, cells: Cells) -> Extremes:
    coo = cells.membership.tocoo()
    low, high = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
    np.minimum.at(low, coo.row, per_row[0][coo.col])
    np.maximum.at(high, coo.row, per_row[1][coo.col])
    return low, high
