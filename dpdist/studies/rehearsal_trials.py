"""What a rehearsal finds: a trial of every candidate, its figures by statistic, and the rule that orders them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from dpdist.job import Job
from dpdist.studies.rehearsal_candidates import Candidate, Refused

GOOD_COVERAGE, GOOD_ERROR = 0.85, 1.0
RULE = (
    "A mechanism is as good as its worst statistic in a table. It is good enough if there its 90 % intervals hold at least "
    f"{GOOD_COVERAGE:g} of the direct estimates, and its median error is at most {GOOD_ERROR:g} direct standard error. "
    "Of those that are, strict ones come first, and of these the one with the smallest median error. If none is, the "
    "strict one with the smallest median error is written, and is not good enough."
)
COLUMNS = ("mechanism", "guarantee", "table", "statistic", "cell", "error_in_direct_se", "covered")


@dataclass(frozen=True)
class Trial:
    """A candidate's release of a half beside the half's direct estimates."""

    candidate: Candidate
    cells: pd.DataFrame
    """A row a cell and statistic: `COLUMNS`, and `bias`, the error with its sign."""
    suppressed: int
    seconds: float

    @property
    def by_statistic(self) -> pd.DataFrame:
        """Median and largest error, bias and coverage of every table's statistics."""
        groups = self.cells.groupby(["table", "statistic"], sort=False)
        return groups.agg(
            median=("error_in_direct_se", "median"),
            largest=("error_in_direct_se", "max"),
            bias=("bias", "mean"),
            coverage=("covered", "mean"),
            cells=("cell", "size"),
        ).reset_index()

    @property
    def error(self) -> float:
        """The median of the worst statistic."""
        return float(self.by_statistic["median"].max())

    @property
    def coverage(self) -> float:
        """Of the worst statistic."""
        return float(self.by_statistic["coverage"].min())

    @property
    def good(self) -> bool:
        return self.coverage >= GOOD_COVERAGE and self.error <= GOOD_ERROR


class Rehearsal(NamedTuple):
    """All trials in the order of the rule, the first recommended; the same on the other half; what could not be run."""

    job: Job
    source: str
    records: int
    trials: list[Trial]
    confirmed: Trial | None
    refused: list[Refused]
