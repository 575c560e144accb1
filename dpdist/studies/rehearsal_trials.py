"""Runs trials of mechanisms, each a release of a third of a public file, and ranks the mechanisms by their errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.evaluation.summary import by_statistic
from dpdist.evaluation.under_design import NOMINAL
from dpdist.evaluation.verdict import labels_of
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.release import run
from dpdist.studies.parts import Parts, beside_truth, given_sizes
from dpdist.studies.rehearsal_candidates import Candidate, Refused

GOOD_COVERAGE, GOOD_ERROR, GOOD_LARGEST, GOOD_BIAS = 0.85, 1.0, 4.0, 0.5
DRAWS = 4
"""Number of releases, each under new noise, of a candidate that may turn out best."""
OUT_OF_REACH = 2.0
"""Factor on the best score; a candidate whose first score is worse than that is not drawn again."""
NEAR = 0.1
"""A score counts as equal to the best one if it is worse by at most this share of it."""
RULE = (
    "Every statistic of a table has four figures over draws of the noise. Three are in direct standard errors: the median "
    "error, the largest error, and the mean error with its sign (bias). The largest error is a median over draws, and the "
    "others are means. The fourth is the share of figures of the truth that 90 % intervals miss. The truth is another "
    f"third of the file, with its own error. What direct intervals miss beyond {1 - NOMINAL:.2g} is taken off. "
    f"Each is divided by its limit: {GOOD_ERROR:g}, {GOOD_LARGEST:g}, {GOOD_BIAS:g} and {1 - GOOD_COVERAGE:.2g}. "
    "The score of a mechanism is the largest of these. It is good enough if the score is at most 1, on both thirds. "
    "If its score on the second third is above 1, the next mechanism is tried. "
    "Of those that are good enough, strict ones come first, and of these "
    f"the smallest score. Scores tie if they differ by less than {100 * NEAR:.0f} %, or by less than two standard errors "
    "over draws. Of those that tie with the best, one with a public reference comes first, then the job with the fewest "
    "changes. A figure that is not published counts as infinitely far off, and as missed by its interval."
)
COLUMNS = ("mechanism", "guarantee", "table", "statistic", "cell", "error_in_direct_se", "covered", "draw")


@dataclass(frozen=True)
class Trial:
    """A candidate's releases of a third, compared with its direct estimates and with another third."""

    candidate: Candidate
    cells: pd.DataFrame
    """One row for each cell, statistic and draw of the noise: `COLUMNS` and the three columns below.

    `bias` is the error with its sign, `records` the cell's number of records, and `direct_covered` says whether the direct
    estimate's own interval holds the truth. Where no interval is judged, it is NaN, as `covered` is.
    """
    suppressed: int
    seconds: float

    @cached_property
    def by_statistic(self) -> pd.DataFrame:
        """Median and largest error, bias, both coverages and `score` of every statistic in every table.

        They are means over draws. The largest error is a median over draws: one draw alone would decide otherwise.
        """
        groups = self._by_draw.groupby(["table", "statistic"], sort=False)
        rows = groups.mean().drop(columns="draw").assign(largest=groups["largest"].median()).reset_index()
        return rows.assign(score=_scores(rows), cells=rows["cells"].astype(int))

    @cached_property
    def _by_draw(self) -> pd.DataFrame:
        groups = self.cells.groupby(["draw", "table", "statistic"], sort=False)
        return groups.agg(
            median=("error_in_direct_se", "median"),
            largest=("error_in_direct_se", "max"),
            bias=("bias", "mean"),
            coverage=("covered", "mean"),
            direct=("direct_covered", "mean"),
            cells=("cell", "size"),
        ).reset_index()

    @property
    def draws(self) -> int:
        return int(self.cells["draw"].nunique())

    @property
    def error(self) -> float:
        """The largest median error of any statistic; infinite where there is none."""
        worst = float(self.by_statistic["median"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def coverage(self) -> float:
        """The smallest coverage of any statistic; NaN where none is judged."""
        return float(self.by_statistic["coverage"].min())

    @property
    def score(self) -> float:
        """The score as `RULE` defines it: good enough if at most 1, infinite where nothing can be judged."""
        worst = float(self.by_statistic["score"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def score_error(self) -> float:
        """Standard error of the score over draws; infinite for a single draw."""
        by_draw = _scores(self._by_draw).groupby(self._by_draw["draw"]).max()
        return float(by_draw.std() / np.sqrt(len(by_draw))) if len(by_draw) > 1 else np.inf

    @property
    def good(self) -> bool:
        return self.score <= 1.0


def _scores(rows: pd.DataFrame) -> pd.Series[float]:
    """Scores of statistics: the largest of four figures over their limits; NaN where no error is known.

    What direct intervals miss more than nominally is chance, or the fault of cells that no release can mend. The truth is
    the same, so it is taken off. Coverage that is not judged has no part.
    """
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    missed = (1.0 - rows["coverage"] - beyond) / (1.0 - GOOD_COVERAGE)
    parts = [rows["median"] / GOOD_ERROR, rows["largest"] / GOOD_LARGEST, rows["bias"].abs() / GOOD_BIAS, missed]
    return pd.concat(parts, axis=1).max(axis=1).where(rows["median"].notna())


def tied(trial: Trial, best: Trial) -> bool:
    """True if a trial's score ties with the best one, as `RULE` defines it."""
    apart = trial.score - best.score
    if not np.isfinite(apart):
        return trial is best
    noise = np.hypot(trial.score_error, best.score_error)
    return bool(apart <= NEAR * best.score or (np.isfinite(noise) and apart <= 2.0 * noise))


def repeated(first: Trial, again: Sequence[Trial]) -> Trial:
    """One trial that holds the draws of several."""
    cells, number = [], 0
    for each in (first, *again):
        cells.append(each.cells.assign(draw=each.cells["draw"] + number))
        number += each.draws
    return Trial(first.candidate, pd.concat(cells, ignore_index=True), first.suppressed, first.seconds)


def trial(candidate: Candidate, parts: Parts, workspace: Path, study: Key | None = None) -> Trial:
    """Runs one release of the current part, and compares it with direct estimates and the truth. Raises `DpdistError`.

    With the key of a study, all random draws follow from that key. Without a key, the release is a real one.
    """
    quiet = {"record": {"log_lik": "never"}, "runtime": {"executor": "serial"}, "input": {"path": str(parts.current)}}
    if "path" in candidate.terms.get("reference", {}):
        quiet["reference"] = candidate.terms["reference"] | {"path": str(parts.earlier)}
    job = job_of({**candidate.terms, **quiet})
    began = time.perf_counter()
    release = run(job, workspace, counted=False, study=study)
    took = time.perf_counter() - began
    current, truth = (given_sizes(job, path) for path in (parts.current, parts.truth))
    frames, suppressed = [], 0
    for table in job.tables:
        rows = pd.read_parquet(workspace / "confidential" / "evaluation" / f"{table.name}.parquet")
        rows = rows.join(beside_truth(rows, current[table.name], truth[table.name], job.survey.design_effect is not None))
        frames += [cells_of(candidate, table.name, name, part) for name, part in by_statistic(rows)]
        published = release.tables[table.name]
        first = published[published["estimator"] == published["estimator"].iloc[0]]
        suppressed += int(first["suppressed"].sum())
    return Trial(candidate, pd.concat(frames, ignore_index=True), suppressed, took)


def cells_of(candidate: Candidate, table: str, statistic: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of an evaluation for one statistic, with the columns of `Trial.cells`.

    A missing figure is infinitely far.
    """
    bias = (rows["synthetic"] - rows["direct"]) / rows["direct_se"].where(rows["direct_se"] > 0)
    lost = rows["synthetic"].isna() & rows["direct"].notna() & (rows["direct_se"] > 0)
    labels = labels_of(rows)
    made = pd.DataFrame({"cell": rows[labels].astype(str).agg(" / ".join, axis=1) if labels else "all"}, index=rows.index)
    made = made.assign(mechanism=candidate.label, guarantee=candidate.guarantee, table=table, statistic=statistic)
    made = made.assign(error_in_direct_se=bias.abs().where(~lost, np.inf), covered=rows["covered"])
    made = made.assign(bias=bias, records=rows["records"], direct_covered=rows["direct_covered"], draw=0)
    return made[[*COLUMNS, "bias", "records", "direct_covered"]]


Confirmed = dict[str, Trial | None]
"""Trials on the other third, by label; None where a candidate could not be run there."""


def confirmed(trials: Sequence[Trial], again: Callable[[Candidate], Trial | None]) -> tuple[list[Trial], bool, Confirmed]:
    """Trials in the order of `RULE`, whether the first is good enough, and the trials on the other third.

    `again` runs a candidate on the other third. The first candidate is always run there. One that is not good enough there
    moves behind those that are, and the next one is run.
    """
    other: Confirmed = {}

    def good(each: Trial) -> bool:
        second = other.get(each.candidate.label, each)
        return each.good and second is not None and second.good

    while True:
        ordered = in_order(trials, good)
        first = ordered[0]
        if first.candidate.label in other:
            return ordered, good(first), other
        other[first.candidate.label] = again(first.candidate)


def in_order(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> list[Trial]:
    """Orders trials by `RULE`: good ones, then strict ones, then by score.

    Trials that tie with the first one are ordered anew: first those with a reference, then by the number of changes to the
    job, then by score.
    """

    def group(each: Trial) -> tuple[bool, bool]:
        return not good(each), not each.candidate.strict

    ordered = sorted(trials, key=lambda each: (*group(each), each.score))
    level = [each for each in ordered if group(each) == group(ordered[0]) and tied(each, ordered[0])]
    level.sort(key=lambda each: (not each.candidate.on_reference, len(each.candidate.changed), each.score))
    return [*level, *(each for each in ordered if all(each is not one for one in level))]


class Findings(NamedTuple):
    """Results of all trials. `trials` are ordered by the rule, so the first is the recommended one.

    `good` says whether the first is good enough on both thirds. `confirmed` holds the trials on the other third, and
    `refused` the candidates that could not be run.
    """

    trials: list[Trial]
    good: bool
    confirmed: Confirmed
    refused: list[Refused]


class Rehearsal(NamedTuple):
    """A rehearsal's job, public file and results.

    `caution` says why a run on a similar file would refuse, if it would. `unjudged` says what the split cannot judge.
    """

    job: Job
    source: str
    records: int
    findings: Findings
    caution: str = ""
    unjudged: str = ""

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
    def verdict(self) -> str:
        """What the first mechanism is: recommended, or only the least bad one."""
        return "Recommended" if self.good else "None is good enough; the least bad is"

    @property
    def best(self) -> Trial:
        """The trial of the recommended mechanism, or of the least bad one."""
        return self.trials[0]

    @property
    def confirmed(self) -> Trial | None:
        """The recommended mechanism's trial on the other third; None where it could not be run there."""
        return self.findings.confirmed[self.best.candidate.label]
