"""A trial: a real release of a half of a public file, and its errors; the rule by which a mechanism is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.evaluation.summary import by_statistic
from dpdist.evaluation.verdict import holds_direct, labels_of
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.release import run
from dpdist.studies.rehearsal_candidates import Candidate, Refused

GOOD_COVERAGE, GOOD_ERROR = 0.85, 1.0
RULE = (
    "A mechanism is as good as its worst statistic in a table. It is good enough if there its 90 % intervals hold at least "
    f"{GOOD_COVERAGE:g} of the direct estimates, and its median error is at most {GOOD_ERROR:g} direct standard error. "
    "A figure that is not published counts as infinitely far off, and as not held. "
    "The mechanism must be good enough on both halves: if it is not on the other one, the next is taken. "
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

    @cached_property
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
        """The median of the worst statistic; infinite where there is none."""
        worst = float(self.by_statistic["median"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def coverage(self) -> float:
        """Of the worst statistic."""
        return float(self.by_statistic["coverage"].min())

    @property
    def good(self) -> bool:
        return self.coverage >= GOOD_COVERAGE and self.error <= GOOD_ERROR


def trial(candidate: Candidate, current: Path, workspace: Path) -> Trial:
    """One release of a half, for real, and its evaluation. Raises `DpdistError`."""
    quiet = {"record": {"log_lik": "never"}, "runtime": {"executor": "serial"}}
    job = job_of({**candidate.terms, **quiet, "input": {"path": str(current)}})
    began = time.perf_counter()
    release = run(job, workspace, counted=False)
    took = time.perf_counter() - began
    frames, suppressed = [], 0
    for table in job.tables:
        rows = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{table.name}.parquet")
        frames += [cells_of(candidate, table.name, name, part) for name, part in by_statistic(rows)]
        published = release.tables[table.name]
        first = published[published["estimator"] == published["estimator"].iloc[0]]
        suppressed += int(first["suppressed"].sum())
    return Trial(candidate, pd.concat(frames, ignore_index=True), suppressed, took)


def cells_of(candidate: Candidate, table: str, statistic: str, rows: pd.DataFrame) -> pd.DataFrame:
    """A statistic's rows of an evaluation as `COLUMNS` and `bias`.

    A direct estimate with records asks for a figure with an interval: where one is missing, it is not held, and where its
    error is known, the figure is infinitely far off.
    """
    bias = (rows["synthetic"] - rows["direct"]) / rows["direct_se"].where(rows["direct_se"] > 0)
    lost = rows["synthetic"].isna() & rows["direct"].notna() & (rows["direct_se"] > 0)
    asked = rows["direct"].notna() & (rows["records"] > 0)
    held = pd.Series(holds_direct(rows) & rows["synthetic_lower"].notna().to_numpy(), index=rows.index)
    labels = labels_of(rows)
    made = pd.DataFrame({"cell": rows[labels].astype(str).agg(" / ".join, axis=1) if labels else "all"}, index=rows.index)
    made = made.assign(mechanism=candidate.label, guarantee=candidate.guarantee, table=table, statistic=statistic)
    made = made.assign(error_in_direct_se=bias.abs().where(~lost, np.inf), covered=held.astype(float).where(asked))
    return made.assign(bias=bias)[[*COLUMNS, "bias"]]


Confirmed = dict[str, Trial | None]
"""Trials on the other half, by the candidate's label; none where it could not be run there."""


def confirmed(trials: Sequence[Trial], again: Callable[[Candidate], Trial | None]) -> tuple[list[Trial], bool, Confirmed]:
    """Trials in the order of `RULE`, whether the first is good enough, and what was run on the other half to know it.

    `again` runs a candidate there. The first is always run; one that is not good there goes behind those that are.
    """
    other: Confirmed = {}

    def good(each: Trial) -> bool:
        second = other.get(each.candidate.label, each)
        return each.good and second is not None and second.good

    while True:
        ordered = sorted(trials, key=lambda each: (not good(each), not each.candidate.strict, each.error))
        first = ordered[0]
        if first.candidate.label in other:
            return ordered, good(first), other
        other[first.candidate.label] = again(first.candidate)


class Findings(NamedTuple):
    """Trials in the order of the rule, the first recommended, and whether it is good enough on both halves; trials on the
    other half by label; what could not be run."""

    trials: list[Trial]
    good: bool
    confirmed: Confirmed
    refused: list[Refused]


class Rehearsal(NamedTuple):
    """A job, the public file that it was rehearsed on, what was found, and why a run on a file like it would refuse."""

    job: Job
    source: str
    records: int
    findings: Findings
    caution: str = ""

    @property
    def trials(self) -> list[Trial]:
        return self.findings.trials

    @property
    def refused(self) -> list[Refused]:
        return self.findings.refused

    @property
    def good(self) -> bool:
        return self.findings.good

    @property
    def best(self) -> Trial:
        """What is recommended."""
        return self.trials[0]

    @property
    def confirmed(self) -> Trial | None:
        """The recommended mechanism on the other half; None where it could not be run there."""
        return self.findings.confirmed[self.best.candidate.label]
