"""Sensitivities of whole tables, margins included, for `laplace` and `laplace_composed` ([T]).

With public bounds, a record enters every cell that contains it, in all tables, by its pair of sums
(`privacy.cell_sums`). A pair has the L1 sensitivity 2, or 1 where no table needs the outcome. So K cells have the
sensitivity 2K, under zero_out and under an exchange within the cells. A record that changes cells leaves at most K
cells and enters at most K others, so it costs up to 2ε. Means are ratios of noisy totals and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpdist.core.records import UNIT, Crosstab, cells_of_record
from dpdist.job import Job, Table
from dpdist.privacy.cell_sums import SENSITIVITY, figures_met
from dpdist.privacy.guarantees import Moved, NoisyQuery, query_of_tables


def local_scale(job: Job, crosstab: Crosstab) -> Fraction:
    """Scale of the noise on a figure, in 1/UNIT of its sensitivity.

    Under `laplace` each figure gets all of ε. Under `laplace_composed` the figures to which a record contributes share
    it.
    """
    share = figures_met(crosstab, job.tables) if job.mechanism.name == "laplace_composed" else 1
    return Fraction(share * UNIT) / job.epsilon.tables


def query_of(job: Job) -> NoisyQuery:
    """The query for the sums of all cells that a record enters, margins and tables together, under public bounds."""
    cells = sum(cells_of_record(table.by, table.margins) for table in job.tables)
    distance = Fraction(cells * (SENSITIVITY if outcome_needed(job.tables) else 1) * UNIT)
    return query_of_tables(job, "sums of cells of tables", Moved(distance, distance, 2 * distance))


def outcome_needed(tables: Sequence[Table]) -> bool:
    """True if some table asks for more than counts."""
    return any(statistic.name != "count" for table in tables for statistic in table.statistics)
