"""Simulated surveys of doctorates, on which several kinds of study compare tables with the truth: settings and samples."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.direct import Totals, totals
from dpdist.job import Budget, Frozen, Job, Name, StatisticName
from dpdist.quality.compare import truth_in_cells
from dpdist.studies.kinds.protocol import Result
from dpdist.studies.kinds.table_errors import STATISTICS
from dpdist.studies.settings import Study
from dpdist.survey.census import take_census
from dpdist.survey.placement import place
from dpdist.survey.simulate import TOP_CODE
from dpdist.survey.source import Source, open_source

BOUNDS = {"lognormal": (1e3, 2e6), "top_coded": (1e3, TOP_CODE)}
"""Public bounds of salaries."""


EARLIER = {"sd": 0.4, "noise_sd": 0.4, "gap": 1.0}
"""The law of the earlier survey: sd of log salaries, sd of the noise in log sizes, and relative gap between the sexes."""


class SurveyCase(Frozen):
    """A simulated survey and an earlier one, new in every replicate.

    `sd` is of log salaries, `gap` multiplies the built-in gap between the sexes, and `growth` is the relative change of
    salaries and population since the earlier survey. That has the values of `EARLIER`.
    """

    name: Name
    population: int = Field(gt=0)
    sample: int = Field(gt=0)
    law: Literal["lognormal", "top_coded"] = "lognormal"
    growth: float = Field(default=0.0, gt=-1)
    sd: float = Field(default=EARLIER["sd"], gt=0)
    noise_sd: float = Field(default=EARLIER["noise_sd"], ge=0)
    gap: float = Field(default=EARLIER["gap"], ge=0)
    replicates: int | None = Field(default=None, ge=1, description="at most, of this case")

    @property
    def n(self) -> int:
        return self.sample

    def described(self, every: str = "") -> str:
        """Text for the page; `every` follows the growth, such as " a period"."""
        law = "lognormal salaries" if self.law == "lognormal" else "left-skewed, rounded, top-coded salaries"
        drift = [f"salaries and population {100 * self.growth:+.0f} %{every}"] if self.growth else []
        ends = [(name, first, getattr(self, name)) for name, first in EARLIER.items()]
        drift += [f"{name} {first:g} → {last:g}" for name, first, last in ends if first != last]
        return f"n = {self.sample:,} of {self.population:,}, {law}, {', '.join(drift) or 'no drift'}"


class OfSurveys(Study):
    cases: tuple[SurveyCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)

    def replicates_of(self, case: int) -> int:
        return min(self.replicates, self.cases[case].replicates or self.replicates)


@dataclass(frozen=True)
class Survey:
    """A sample, the table's cells, the truth in them, and direct totals."""

    frame: Frame
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    totals: Totals


def simulated(job: Job) -> Survey:
    source = open_source(job)
    truth = source.truth
    assert truth is not None
    return placed_survey(job, source, lambda frame, _: truth_in_cells(truth, job, job.tables[0], frame))


def placed_survey(job: Job, source: Source, truth: Callable[[Frame, Cells], dict[str, Floats]]) -> Survey:
    """Records in their frame; `truth` gives the population's figures."""
    census = take_census(job, source)
    frame = census.frame
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place(job, source, census, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        records = Records(*fields)
    table = job.tables[0]
    cells = cross(frame, table.by, table.margins)
    return Survey(frame, records, cells, truth(frame, cells), totals([records], frame, clustered=False))


def errors_of(label: str, epsilon: str, values: Mapping[StatisticName, Floats], survey: Survey) -> Iterator[Result]:
    """(estimate − truth)/truth by cell. A cell without a record has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
