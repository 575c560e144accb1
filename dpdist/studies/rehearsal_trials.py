"""For `studies.rehearsal`: runs trials of mechanisms on thirds, ranks them by errors, and advises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.keys import Key
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.quality.summary import by_statistic
from dpdist.quality.verdict import NOMINAL, labels_of
from dpdist.release import run
from dpdist.studies.rehearsal_candidates import Candidate, RefusedCandidate
from dpdist.studies.rehearsal_thirds import FileThirds, beside_truth, given_sizes

GOOD_COVERAGE, GOOD_ERROR, GOOD_LARGEST, GOOD_BIAS = 0.85, 1.0, 4.0, 0.5
DRAWS = 4
"""Number of releases, each under new noise, of a candidate that may turn out best."""
OUT_OF_REACH = 2.0
"""Factor on the best score beyond which a candidate is not drawn again."""
NEAR = 0.1
"""A score counts as equal to the best if it is worse by at most this share."""
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
    """A candidate's releases of a third, compared with direct estimates and another third."""

    candidate: Candidate
    cells: pd.DataFrame
    """One row for each cell, statistic and draw of the noise: `COLUMNS` and the three columns below.

    `bias` is the signed error, `records` the cell's number of records, and `direct_covered` whether the direct interval
    contains the truth. Both marks are NaN if intervals are not judged.
    """
    suppressed: int
    seconds: float

    @cached_property
    def by_statistic(self) -> pd.DataFrame:
        """Median error, bias, both coverages and `score`, by table and statistic, as means over draws.

        `largest` is a median over draws, so that one draw alone does not decide.
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
        """The largest median error of any statistic; infinite if there is none."""
        worst = float(self.by_statistic["median"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def coverage(self) -> float:
        """The smallest coverage of any statistic; NaN if none is judged."""
        return float(self.by_statistic["coverage"].min())

    @property
    def score(self) -> float:
        """The figure that `RULE` defines; infinite where nothing can be judged."""
        worst = float(self.by_statistic["score"].max())
        return worst if not np.isnan(worst) else np.inf

    @property
    def score_error(self) -> float:
        """Standard error over draws; infinite for a single one."""
        by_draw = _scores(self._by_draw).groupby(self._by_draw["draw"]).max()
        return float(by_draw.std() / np.sqrt(len(by_draw))) if len(by_draw) > 1 else np.inf

    @property
    def good(self) -> bool:
        return self.score <= 1.0


def _scores(rows: pd.DataFrame) -> pd.Series[float]:
    """The largest of four figures over their limits, by statistic; for counts that the design fixes, the relative
    figures.

    The excess by which direct intervals miss is subtracted, because chance or irreparable cells cause it.
    """
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    missed = (1.0 - rows["coverage"] - beyond) / (1.0 - GOOD_COVERAGE)
    parts = [rows["median"] / GOOD_ERROR, rows["largest"] / GOOD_LARGEST, rows["bias"].abs() / GOOD_BIAS, missed]
    return pd.concat(parts, axis=1).max(axis=1)


def tied(trial: Trial, best: Trial) -> bool:
    """True if the score ties with the best one by `RULE`."""
    behind = trial.score - best.score
    if not np.isfinite(behind):
        return trial is best
    noise = np.hypot(trial.score_error, best.score_error)
    return bool(behind <= NEAR * best.score or (np.isfinite(noise) and behind <= 2.0 * noise))


def with_repetitions(first: Trial, again: Sequence[Trial]) -> Trial:
    """One trial with the draws of several."""
    cells, number = [], 0
    for part in (first, *again):
        cells.append(part.cells.assign(draw=part.cells["draw"] + number))
        number += part.draws
    return Trial(first.candidate, pd.concat(cells, ignore_index=True), first.suppressed, first.seconds)


def trial(candidate: Candidate, parts: FileThirds, workspace: Path, study: Key | None = None) -> Trial:
    """Runs one release of the current part. With the key of a `study`, all draws follow from it. Raises `DpdistError`."""
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
    """The rows of one statistic, as `Trial.cells`; a missing figure is infinitely far."""
    bias = (rows["synthetic"] - rows["direct"]) / rows["direct_se"].where(rows["direct_se"] > 0)
    lost = rows["synthetic"].isna() & rows["direct"].notna() & (rows["direct_se"] > 0)
    labels = labels_of(rows)
    cells = pd.DataFrame({"cell": rows[labels].astype(str).agg(" / ".join, axis=1) if labels else "all"}, index=rows.index)
    cells = cells.assign(mechanism=candidate.label, guarantee=candidate.guarantee, table=table, statistic=statistic)
    cells = cells.assign(error_in_direct_se=bias.abs().where(~lost, np.inf), covered=rows["covered"])
    cells = cells.assign(bias=bias, records=rows["records"], direct_covered=rows["direct_covered"], draw=0)
    return cells[[*COLUMNS, "bias", "records", "direct_covered"]]


Confirmed = dict[str, Trial | None]
"""Trials on the other third, by label; None for a candidate that could not be run."""


def confirmed(trials: Sequence[Trial], again: Callable[[Candidate], Trial | None]) -> tuple[list[Trial], bool, Confirmed]:
    """Trials in the order of `RULE`, whether the first is good enough, and trials on the other third.

    `again` runs a candidate on that third: the first, then the next, until one is good enough.
    """
    other: Confirmed = {}

    def good(tried: Trial) -> bool:
        second = other.get(tried.candidate.label, tried)
        return tried.good and second is not None and second.good

    while True:
        ordered = in_order(trials, good)
        first = ordered[0]
        if first.candidate.label in other:
            return ordered, good(first), other
        other[first.candidate.label] = again(first.candidate)


def in_order(trials: Sequence[Trial], good: Callable[[Trial], bool]) -> list[Trial]:
    """Orders trials by `RULE`: good ones, then strict ones, then by score.

    Ties with the first are ordered by having a reference, then by number of changes, then by score.
    """

    def group(tried: Trial) -> tuple[bool, bool]:
        return not good(tried), not tried.candidate.strict

    ordered = sorted(trials, key=lambda tried: (*group(tried), tried.score))
    level = [tried for tried in ordered if group(tried) == group(ordered[0]) and tied(tried, ordered[0])]
    level.sort(key=lambda tried: (not tried.candidate.on_reference, len(tried.candidate.changed), tried.score))
    return [*level, *(tried for tried in ordered if all(tried is not first_trial for first_trial in level))]


class TrialFindings(NamedTuple):
    """All trials in the order of `RULE`, the first recommended; `good` if it is good enough on both thirds."""

    trials: list[Trial]
    good: bool
    confirmed: Confirmed
    refused: list[RefusedCandidate]


class Rehearsal(NamedTuple):
    """A rehearsal's job, public file and results.

    `caution` is the reason why a run on a similar file would refuse; `unjudged` is what the split cannot judge.
    """

    job: Job
    source: str
    records: int
    findings: TrialFindings
    caution: str = ""
    unjudged: str = ""

    @property
    def trials(self) -> list[Trial]:
        return self.findings.trials

    @property
    def refused(self) -> list[RefusedCandidate]:
        return self.findings.refused

    @property
    def good(self) -> bool:
        return self.findings.good

    @property
    def verdict(self) -> str:
        return "Recommended" if self.good else "None is good enough; the least bad is"

    @property
    def best(self) -> Trial:
        """The recommended mechanism, or the least bad one."""
        return self.trials[0]

    @property
    def confirmed(self) -> Trial | None:
        """The best mechanism's trial on the other third; None if it could not be run."""
        return self.findings.confirmed[self.best.candidate.label]


FEW = 10
"""Below this number of records of a cell in one third, its direct standard error is itself uncertain."""
NAMED = 8
"""Largest number of cells that are named."""
COARSEN = (
    "Publish these cells in coarser ones: merge their levels in `columns`, leave a column out of the table, or make two "
    "tables of fewer columns. A whole file has three times the records of a third"
)
LARGER = (
    "These cells have records enough: raise the budget, state narrower public bounds, or put the skewed ones into strata "
    "of their own"
)
NOISY = "Most cells are too noisy: raise the budget (`dpdist plan --for-error 0.5` says to what), or publish fewer figures"
SHIFTED = "Figures are off to one side: clipping or borrowed shapes bias them. Raise the budget, or merge small cells"
MISSED = (
    "Intervals miss the truth more often than direct ones do: quote them with care, merge small cells, or take another "
    "mechanism"
)


def advice(rehearsal: Rehearsal) -> list[str]:
    """Sentences on figures beyond their limits, and remedies; none if a mechanism is good enough."""
    if rehearsal.good:
        return []
    thirds = {"the first third": rehearsal.best, "the other third": rehearsal.confirmed}
    return list(
        dict.fromkeys(line for name, tried in thirds.items() if tried is not None for line in _of_trial(name, tried))
    )


def _of_trial(third: str, trial: Trial) -> Iterator[str]:
    rows = trial.by_statistic
    far = rows[rows["largest"] > GOOD_LARGEST]
    for row in far.to_dict("records"):
        cells = _far_cells(trial, row["table"], row["statistic"])
        few = cells[cells["records"] < FEW]
        yield (
            f"{third}, {row['table']}, {row['statistic']}: {len(cells)} of {row['cells']} cells are more than "
            f"{GOOD_LARGEST:g} direct standard errors off, {len(few)} of them with fewer than {FEW} records in the third: "
            f"{_listed(cells)}"
        )
        if len(few):
            yield COARSEN
        if len(few) < len(cells):
            yield LARGER
    limits = {"median": (GOOD_ERROR, NOISY), "bias": (GOOD_BIAS, SHIFTED)}
    for figure, (limit, remedy) in limits.items():
        for row in rows[rows[figure].abs() > limit].to_dict("records"):
            yield f"{third}, {row['table']}, {row['statistic']}: {figure} error {row[figure]:.2f}, limit {limit:g}"
            yield remedy
    beyond = (NOMINAL - rows["direct"]).clip(lower=0.0)
    for row in rows[rows["coverage"] + beyond < GOOD_COVERAGE].to_dict("records"):
        yield (
            f"{third}, {row['table']}, {row['statistic']}: intervals cover {row['coverage']:.2f} of the truth, direct ones "
            f"{row['direct']:.2f}; the limit is {GOOD_COVERAGE - max(NOMINAL - row['direct'], 0.0):.2f}"
        )
        yield MISSED


def _far_cells(trial: Trial, table: str, statistic: str) -> pd.DataFrame:
    """Cells beyond the limit in any draw, largest errors first."""
    rows = trial.cells[(trial.cells["table"] == table) & (trial.cells["statistic"] == statistic)]
    cells = rows.groupby("cell", sort=False).agg(error=("error_in_direct_se", "max"), records=("records", "first"))
    return cells[cells["error"] > GOOD_LARGEST].sort_values("error", ascending=False)


def _listed(cells: pd.DataFrame) -> str:
    named = [f"{name} ({int(row['records'])} records)" for name, row in cells.head(NAMED).iterrows()]
    return ", ".join(named) + (f", and {len(cells) - NAMED} more" if len(cells) > NAMED else "")
