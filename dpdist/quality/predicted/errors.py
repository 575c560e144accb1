"""For `predicted.prediction`: one replicate's errors in published cells, in direct standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells, cell_name, cross
from dpdist.estimation.direct import Design
from dpdist.estimation.further import Direct
from dpdist.job import Job, Statistic, Table
from dpdist.quality.predicted.population import Population
from dpdist.quality.verdict import relative_to

COLUMNS = ("table", "statistic", "name", "outcome", "cell", "records", "error", "relative", "given_n", "held", "alone")


class Replicate(NamedTuple):
    """A current file and a reference, with all that does not depend on ε: direct estimates, and the reference's
    figures.
    """

    current: Records
    reference: Records | None
    figures: list[Figures]


@dataclass(frozen=True)
class Figures:
    """A statistic of a table, (cell,) each: direct estimate, its standard errors, the reference's figure, and the truth.

    `given_n` is the direct standard error for fixed numbers of records in base cells.
    """

    table: Table
    statistic: Statistic
    cells: Cells
    records: Floats
    value: Floats
    error: Floats
    given_n: Floats
    alone: Floats
    truth: Floats

    def beside(self, published: pd.DataFrame) -> pd.DataFrame:
        """The errors of a published table, one row for each cell; `held` is 1 if the interval contains the truth."""
        rows = published[published["statistic"] == self.statistic.label]
        about = self.statistic.about
        rows = rows[rows["variable"].isna() if about is None else rows["variable"] == about]
        rows = rows[rows["estimator"] == rows["estimator"].iloc[0]]
        estimate, low, high = (rows[name].to_numpy(dtype=float) for name in ("estimate", "lower", "upper"))
        gap = np.abs(estimate - self.value)
        in_errors, given, relative = relative_to(gap, self.value, self.error, self.given_n)
        alone = relative_to(np.abs(self.alone - self.value), self.value, self.error, self.given_n)[0]
        judged = np.isfinite(low) & np.isfinite(high) & np.isfinite(self.truth)
        held = np.where(judged, (low <= self.truth) & (self.truth <= high), np.nan)
        figures = (in_errors, relative, given, held, alone)
        return rows_of(self.table.name, self.statistic, self.cells, self.records, figures)


def rows_of(
    table: str, statistic: Statistic, cells: Cells, records: Floats, figures: Sequence[Floats | float]
) -> pd.DataFrame:
    """One row for each cell, with `COLUMNS`; `figures` are the last five."""
    names = [cell_name(label) for label in cells.labels]
    made = pd.DataFrame({"cell": names, "records": records} | dict(zip(COLUMNS[6:], figures, strict=True)))
    made = made.assign(table=table, statistic=statistic.text, name=statistic.name, outcome=statistic.about)
    return made[list(COLUMNS)]


def replicate(job: Job, frame: Frame, population: Population, truths: list[Floats], rng: np.random.Generator) -> Replicate:
    """Draws both files, and computes what does not depend on ε."""
    current = population.current(frame, rng)
    reference = population.reference(rng) if job.has_reference else None
    estimates = direct_of(job, frame, current)
    alone = None if reference is None else direct_of(job, frame, _at_sizes(job, frame, reference))
    by_cell = replace(estimates, frame=frame.stratified(tuple(frame.codes)))
    figures = []
    for (table, statistic, cells), truth in zip(published(job, frame), truths, strict=True):
        value, variance = estimates.estimate(cells, statistic)
        of_sizes = np.sqrt(by_cell.estimate(cells, statistic).variance)
        of_reference = np.full(len(cells), np.nan) if alone is None else alone.estimate(cells, statistic).value
        n = cells.membership @ frame.count.astype(float)
        figures.append(Figures(table, statistic, cells, n, value, np.sqrt(variance), of_sizes, of_reference, truth))
    return Replicate(current, reference, figures)


def published(job: Job, frame: Frame) -> list[tuple[Table, Statistic, Cells]]:
    """Every statistic of every table, with the table's cells."""
    tables = [(table, cross(frame, table.by, table.margins, table.universe)) for table in job.tables]
    return [(table, statistic, cells) for table, cells in tables for statistic in table.statistics]


def truths_of(job: Job, frame: Frame, population: Population) -> list[Floats]:
    """The population's figures at the frame's sizes, (cell,) each, in the order of `published`."""
    whole = direct_of(job, frame, population.whole(frame))
    return [whole.estimate(cells, statistic).value for _, statistic, cells in published(job, frame)]


def direct_of(job: Job, frame: Frame, records: Records) -> Direct:
    """The records for direct estimates within design strata, each record a PSU."""
    passes = [iter([records.about(number)]) for number in range(len(job.outcomes))]
    return Direct.of(job, frame, Design(lonely="certainty"), passes).without_clusters


def _at_sizes(job: Job, frame: Frame, reference: Records) -> Records:
    """The reference's records, weighted to the current number of records in every base cell."""
    cell = frame.group(job.cell_columns)[0]
    here, there = np.bincount(cell, weights=frame.count), np.bincount(cell[reference.frame], minlength=int(cell.max()) + 1)
    scale = here / np.maximum(there, 1)
    return replace(reference, weight=reference.weight * scale[cell[reference.frame]])
