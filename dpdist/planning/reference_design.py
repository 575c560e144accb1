"""For `planning.making`: design effects estimated from a job's public reference, at no privacy cost.

A design effect is V/V₀. V is the variance of a direct estimate under the design, with its PSUs or replicate weights. V₀
is the variance if each record were a PSU, with weights and design strata unchanged. Published errors include weights
and strata, and so lack only the factor V/V₀. One cell's ratio is uncertain, so a figure takes the mean over cells with
the same columns (METHODS §6).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.core.records import TOTAL
from dpdist.core.table_cells import cross
from dpdist.estimation.further import Direct
from dpdist.job import DesignEffect, Job, StatisticName
from dpdist.job.design import LARGEST_EFFECT
from dpdist.survey.census import design_of
from dpdist.survey.placement import records_as_they_came, replicates_as_they_came
from dpdist.survey.reference_file import ReferenceFile

FEWEST_RECORDS = 10
"""Smallest number of records of a cell whose design effect is used."""
NEARLY_CONSTANT = 1e-7
"""Relative standard error below which a figure counts as fixed by the design, and has no design effect."""
DIGITS = 3
"""Significant digits of a design effect."""

Key = tuple[StatisticName, str | None, frozenset[str] | None]
"""A statistic, its outcome and the columns that cells are crossed by; None for all cells."""


@dataclass(frozen=True)
class ReferenceDesign:
    """Facts about the survey design, estimated from the records of a reference. All of them are public.

    `effective` is the number of equally weighted records that would count for as much (Kish). `errors` holds the median
    direct standard error of each statistic over cells, as a share of the figure.
    """

    effects: tuple[DesignEffect, ...]
    records: int
    effective: float
    errors: dict[str, float]

    def described(self) -> list[dict[str, Any]]:
        """Returns the design effects as JSON values for the statement."""
        return [effect.model_dump(mode="json") for effect in self.effects]

    def in_words(self) -> Iterator[str]:
        """Formats lines on the sample's size and its direct errors."""
        yield f"reference: {self.records:,} records count for as much as {self.effective:,.0f} of equal weight"
        for name, share in self.errors.items():
            yield f"reference: the direct standard error of a {name} is {100 * share:.2g} % of it in the median cell"


def reference_design(job: Job, reference: ReferenceFile) -> ReferenceDesign:
    """Estimates the design effects of every statistic of the job's tables."""
    by_record, census, source = job.by_record, reference.census, reference.source
    design = design_of(by_record, census)._replace(
        lonely=job.survey.lonely_record, population=np.empty(0), psu_population=None, psu_records=None
    )
    passes = [records_as_they_came(by_record, source, census, j) for j in range(len(job.outcomes))]
    replicates = replicates_as_they_came(by_record, source)
    records = Direct.of(by_record, census.frame, design, passes, replicates)
    weight = records.weight
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    effects, errors = _ratios(job, records)
    return ReferenceDesign(tuple(_entries(effects)), len(weight), effective, errors)


def _ratios(job: Job, records: Direct) -> tuple[dict[Key, list[float]], dict[str, float]]:
    """Returns V/V₀ of cells by statistic and columns, and the median relative direct error of every statistic."""
    ratios, errors = defaultdict[Key, list[float]](list), defaultdict[str, list[float]](list)
    alone, n, seen = records.without_clusters, records.frame.count.astype(np.float64), set[tuple[Any, ...]]()
    for table in job.tables:
        cells = cross(records.frame, table.by, table.margins, table.universe)
        enough = cells.membership @ n >= FEWEST_RECORDS
        for statistic in table.statistics:
            base = statistic.of or statistic
            shown = (table.by, table.margins, tuple(table.universe.items()), base)
            if shown in seen:
                continue
            seen.add(shown)
            whole, without = records.estimate(cells, base), alone.estimate(cells, base)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio, error = whole.variance / without.variance, np.sqrt(whole.variance) / np.abs(whole.value)
            varies = without.variance > (NEARLY_CONSTANT * without.value) ** 2
            for cell in np.flatnonzero(enough & varies & np.isfinite(ratio)):
                named = zip(cells.by, cells.labels[cell], strict=True)
                columns = frozenset(name for name, level in named if level != TOTAL)
                for which in (columns, None):
                    ratios[base.name, base.variable, which].append(float(ratio[cell]))
            errors[base.text] += error[enough & np.isfinite(error)].tolist()
    return ratios, {name: float(np.median(relative)) for name, relative in errors.items() if relative}


def _entries(ratios_of: dict[Key, list[float]]) -> Iterator[DesignEffect]:
    """Yields the effects. Effects of named columns come first, because a figure takes the first effect that fits it."""
    for (statistic, outcome, columns), ratios in sorted(ratios_of.items(), key=lambda entry: entry[0][2] is None):
        effect = float(f"{max(1.0, np.mean(ratios)):.{DIGITS}g}")
        by = None if columns is None else tuple(sorted(columns))
        yield DesignEffect(effect=min(effect, float(LARGEST_EFFECT)), statistics=(statistic,), outcome=outcome, by=by)
