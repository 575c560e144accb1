"""Lower bounds on the loss between two given files, by releases alone.

Every run releases one of the files anew, in a folder that is then deleted. The attacker sees the public folder: figures
of tables, noisy sums, released parameters, and synthetic records. Half of the runs show the attacker how releases of
the two files differ. For each other run, the attacker guesses the file. No budget is spent, because
both files are the auditor's and no run is published. The result shows how the files differ, so it is as confidential as
the files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, expm1, floor, log, log1p
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import scipy

from dpdist.audit.attacking import shown_by
from dpdist.audit.auditing import ALARM, MOST_CLAIMED, numbers, pad
from dpdist.core.confidential import Confidential
from dpdist.core.errors import DataError, JobError, Problem, WorkspaceError
from dpdist.core.files import scratch
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Floats
from dpdist.job import Job, Runtime
from dpdist.job.families import Record
from dpdist.job.loading import JobLike, job_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import NoGuarantee
from dpdist.release import run
from dpdist.runtime.executors import executor
from dpdist.survey.source import open_source

LOST = 0.01
"""Part of the alarm rate for losing more runs by δ than the bound allows for."""
FOLDS = 5
LIMIT = 10.0
"""Figures are clipped at this number of mean deviations from their middle."""
RANKED = 60
"""Number of figures, by difference, that are examined; the others are noise, or repeat these."""
SAME = 0.999
"""Correlation, within a file, above which a figure repeats another."""
TIES = 1e-3
SHRINKAGE = 0.2
"""Weight of the diagonal in the covariance matrix of a discriminant."""
DIFFERING = 4.0
"""All figures but the first are used only if their means differ by this many standard errors."""
CUTS = np.append(np.linspace(0.0, 1.0, 21), np.inf)
"""Quantile levels of scores among teaching releases: the attacker guesses below one level and above another."""
DOUBT = 0.001
"""Alarm rate of the bounds that choose scores and cuts, so that a few lucky guesses prove little."""
Kind = Literal["ratios", "discriminant"]
ATTACKERS: tuple[tuple[Kind, int], ...] = (
    *(("ratios", number) for number in (1, 2, 4, 8)),
    *(("discriminant", number) for number in (2, 4, 16)),
)
"""Scores to try, each with a number of figures: log ratios of independent Laplace laws, and a linear discriminant."""


class Score(NamedTuple):
    """A score of releases, larger for the second file."""

    figures: list[int]
    middle: Floats
    spread: Floats
    ends: tuple[Floats, Floats]
    """Middles of the figures under both files, in units of their spread."""
    weights: Floats | None
    """The weights of a discriminant; None: log ratios."""

    def __call__(self, released: Floats) -> Floats:
        values = _clipped(released[:, self.figures], self.middle, self.spread)
        if self.weights is not None:
            return np.asarray((values - (self.ends[0] + self.ends[1]) / 2.0) @ self.weights)
        ratios = np.abs(values - self.ends[0]) - np.abs(values - self.ends[1])
        # Ratios are alike beyond both middles. The farther release is put first there, so that levels have no ties.
        return np.asarray((ratios + TIES * values * np.sign(self.ends[1] - self.ends[0])).sum(1))


class Rule(NamedTuple):
    """What the attacker learned: it guesses the first file below one level of scores, and the second above another."""

    score: Score
    taught: Floats
    """Scores of the teaching releases, in rising order."""
    below: float
    from_on: float

    def guesses(self, released: Floats, second: Floats) -> tuple[int, int]:
        """Numbers of right guesses and of guesses; `second` (run,) is true where the second file was released."""
        levels = _levels(self.taught, self.score(released))
        first, other = levels < self.below, levels >= self.from_on
        return int((first & ~second.astype(bool)).sum() + (other & second.astype(bool)).sum()), int((first | other).sum())


def learn_rule(first: Floats, second: Floats) -> Rule:
    """Learns from releases of two files, (run, figure) each."""
    best, most = (ATTACKERS[0], 0.0, np.inf), -np.inf
    for attacker in ATTACKERS:
        levels = [np.empty(len(first)), np.empty(len(second))]
        for fold in range(FOLDS):
            training = [np.arange(len(side)) % FOLDS != fold for side in (first, second)]
            score, scale = _scaled(attacker, first[training[0]], second[training[1]])
            for level, side, teaches in zip(levels, (first, second), training, strict=True):
                level[~teaches] = _levels(scale, score(side[~teaches]))
        bound, below, from_on = _cuts(*levels)
        if bound > most:
            best, most = (attacker, below, from_on), bound
    return Rule(*_scaled(best[0], first, second), *best[1:])


def _scaled(attacker: tuple[Kind, int], first: Floats, second: Floats) -> tuple[Score, Floats]:
    score = _score(attacker, first, second)
    return score, np.sort(np.concatenate([score(first), score(second)]))


def _levels(taught: Floats, scores: Floats) -> Floats:
    """The share of teaching scores below each score, linear between two of them.

    If scores of two files are apart, level 1/2 lies in the middle of the gap. Without the interpolation it lay at its end,
    and every score beyond the last one of its file, 1 in 16 for 15 releases, was guessed wrong.
    """
    return np.interp(scores, taught, (np.arange(len(taught)) + 0.5) / len(taught))


def _cuts(first: Floats, second: Floats) -> tuple[float, float, float]:
    """The largest bound that these levels of scores would prove, with its two cuts."""
    below = [(side[:, None] < CUTS).sum(0) for side in (first, second)]
    right = below[0][:, None] + (len(second) - below[1])[None, :]
    wrong = below[1][:, None] + (len(first) - below[0])[None, :]
    ordered = CUTS[:, None] <= CUTS[None, :]
    least = scipy.special.betaincinv(np.maximum(right, 1), wrong + 1, DOUBT)
    with np.errstate(divide="ignore"):
        bound = np.where(ordered & (right > 0), np.log(least / (1.0 - least)), -np.inf)
    low, high = np.unravel_index(int(np.argmax(bound)), bound.shape)
    return float(bound[low, high]), float(CUTS[low]), float(CUTS[high])


def _score(attacker: tuple[Kind, int], first: Floats, second: Floats) -> Score:
    """The score of an attacker, from releases of both files."""
    kind, number = attacker
    middles = np.median(first, 0), np.median(second, 0)
    deviation = [np.abs(side - middle).mean(0) for side, middle in zip((first, second), middles, strict=True)]
    middle, spread = (middles[0] + middles[1]) / 2.0, (deviation[0] + deviation[1]) / 2.0
    varies = np.flatnonzero((spread > 0.0) | (middles[0] != middles[1]))
    middle, spread = middle[varies], np.where(spread > 0.0, spread, 1.0)[varies]
    values = [_clipped(side[:, varies], middle, spread) for side in (first, second)]
    features = _different(*values)[:number]
    values = [side[:, features] for side in values]
    figures, limits = varies[features].tolist(), (middle[features], spread[features])
    if kind == "ratios":
        return Score(figures, *limits, (np.median(values[0], 0), np.median(values[1], 0)), None)
    means = values[0].mean(0), values[1].mean(0)
    within = np.concatenate([side - mean for side, mean in zip(values, means, strict=True)])
    covariance = np.atleast_2d(np.cov(within, rowvar=False)) if features else np.empty((0, 0))
    diagonal = np.diag(np.diag(covariance) + 1e-9)
    weights = np.linalg.solve((1.0 - SHRINKAGE) * covariance + SHRINKAGE * diagonal, means[1] - means[0])
    return Score(figures, *limits, means, weights)


def _clipped(values: Floats, middle: Floats, spread: Floats) -> Floats:
    return np.asarray(np.clip((values - middle) / spread, -LIMIT, LIMIT))


def _different(first: Floats, second: Floats) -> list[int]:
    """Figures by the distance of their means, in standard errors, without those that repeat an earlier one."""
    variance = first.var(0) / len(first) + second.var(0) / len(second)
    errors = np.abs(first.mean(0) - second.mean(0)) / np.sqrt(variance + 1e-12)
    order = np.argsort(-errors, kind="stable")[:RANKED]
    order = order[: max(1, int((errors[order] > DIFFERING).sum()))]
    within = np.concatenate([first[:, order] - first[:, order].mean(0), second[:, order] - second[:, order].mean(0)])
    size = np.sqrt((within**2).sum(0))
    alike = np.abs(within.T @ within) / np.maximum(np.outer(size, size), 1e-12)
    differing = list[int]()
    for place in range(len(order)):
        if not differing or alike[place, differing].max() < SAME:
            differing.append(place)
    return [int(order[place]) for place in differing]


def bound_of_guesses(right: int, guesses: int, runs: int, delta: float = 0.0) -> float:
    """The ε proven by this number of right guesses; 0 if none is proven."""
    lost, rate = _lost(runs, delta)
    return shown_by(right - lost, guesses, ALARM - rate)


def p_value(right: int, guesses: int, runs: int, claimed: float, delta: float = 0.0) -> float:
    """An upper bound on the probability of so many right guesses, if the claim holds."""
    lost, rate = _lost(runs, delta)
    likely = 1.0 / (1.0 + exp(-claimed))
    return min(1.0, rate + float(scipy.stats.binom.sf(right - lost - 1, guesses, likely)))


def _lost(runs: int, delta: float) -> tuple[int, float]:
    """A number of runs that δ may lose, and the probability of losing more."""
    if delta == 0.0:
        return 0, 0.0
    number = int(scipy.stats.binom.isf(LOST * ALARM, runs, delta))
    return number, float(scipy.stats.binom.sf(number, runs, delta))


def most_shown(runs: int, delta: float = 0.0) -> float:
    """The largest ε that this number of guessed runs can prove, if all guesses are right."""
    return bound_of_guesses(runs, runs, runs, delta) if delta else -log(expm1(-log(ALARM) / runs))


def runs_to_exceed(claimed: float, delta: float = 0.0) -> int:
    """The fewest guessed runs, within a tenth, that can prove more than the claim."""
    runs = floor(log(ALARM) / -log1p(exp(-min(claimed, MOST_CLAIMED)))) + 1
    while most_shown(runs, delta) <= min(claimed, MOST_CLAIMED):
        runs += max(1, runs // 10)
    return runs


RUN_FIGURES = {
    "runs": "number of releases of both files together whose file is guessed; as many others trained the attacker",
    "difference": "how the files differ: one record has other values, or one file has one more record",
    "claimed": "the ε that the statement claims for this difference",
    "delta": "the claimed δ",
    "most_that_can_be_shown": "largest ε that this number of releases can prove",
    "guesses": "number of these releases for which the attacker made a guess",
    "right": "number of correct guesses",
    "at_least": "the ε that is proven, with a confidence of 95 %",
    "p_value": "largest probability of a difference this clear if the claim holds",
    "exceeds": "whether the proven ε is above the claim",
}
"""Columns of the result of `loss_between`."""
LARGEST = 1e30
"""Figures are limited to this size, so that their sums over runs are finite."""
EXCHANGED, ADDED = "values exchanged", "a record more"
"""Ways in which two neighbouring files differ."""


def loss_between(
    job: JobLike, first: str | Path, second: str | Path, runs: int, listener: Listener = silent
) -> Confidential[pd.DataFrame]:
    """Releases each file about `runs` times, and bounds from below how well the releases distinguish them.

    Half of the releases, equally many of each file, teach the attacker. A fair coin chooses the file of each other
    release. Returns one row with the columns of `RUN_FIGURES`. Runs are tasks of the job's executor, so a cluster
    shares them.

    Raises
    ------
    JobError : nothing is promised, or this number of runs cannot show more than the claim.
    DataError : a file cannot be read, or the two are not neighbours under the job's adjacency.
    """
    parsed = job_of(job)
    files = (str(Path(first).absolute()), str(Path(second).absolute()))
    guarantee = mechanism_of(parsed).promise(parsed).total
    if isinstance(guarantee, NoGuarantee):
        raise JobError.of(
            parsed.dataset,
            "mechanism",
            f"'{parsed.mechanism.name}' promises nothing",
            "",
            "audit a mechanism with a guarantee",
        )
    difference = _difference(parsed, *files)
    claimed = float(guarantee.substitution_epsilon if difference == EXCHANGED else guarantee.epsilon)
    delta = float(getattr(guarantee, "delta", None) or 0)
    most = most_shown(runs, delta)
    if most <= claimed:
        fault = f"{runs} releases of each file cannot show more than the claimed ε of {claimed:g}, whatever the files are"
        remedy = f"use --runs {runs_to_exceed(claimed, delta)} or more; more releases can prove more"
        raise JobError.of(parsed.dataset, "--runs", fault, "", remedy)
    sides = np.concatenate([np.arange(runs) % 2, Key.from_os().generator("coins").integers(0, 2, runs)])
    task, released = ReleaseAgain(_plain(parsed), files, tuple(sides.tolist())), [list[float]()] * len(sides)
    with stage(listener, "releases", len(sides)) as tick, executor(parsed.runtime) as workers:
        for number, figures in workers.map(task, range(len(sides))):
            released[number] = figures
            tick(1)
    table = pad(released)
    taught, guessed = table[:runs], table[runs:]
    right, guesses = learn_rule(taught[::2], taught[1::2]).guesses(guessed, sides[runs:])
    bound, p = bound_of_guesses(right, guesses, runs, delta), p_value(right, guesses, runs, claimed, delta)
    row = (runs, difference, claimed, delta, most, guesses, right, bound, p, bound > claimed)
    return Confidential(pd.DataFrame([row], columns=list(RUN_FIGURES)))


def refuse_shown(audited: Confidential[pd.DataFrame]) -> None:
    """Raises `WorkspaceError` if the proven loss is above the claim; the error states no figures."""
    if audited.disclose_to_custodian()["exceeds"].any():
        where = "add --confidential to see the figures; do not publish any further release of this mechanism"
        raise WorkspaceError("the two files", "their releases differ by more than the claimed ε allows", where)


@dataclass(frozen=True)
class ReleaseAgain:
    """Releases one of two files; returns the run's number and the numbers in its public folder."""

    job: Job
    files: tuple[str, str]
    sides: tuple[int, ...]
    """The file that every run releases, by the run's number."""

    def __call__(self, number: int) -> tuple[int, list[float]]:
        with scratch() as folder:
            release = run(self.job, folder / "run", input=self.files[self.sides[number]], counted=False)
            return number, list(_shown(Path(release)))


def _plain(job: Job) -> Job:
    """The job without slow steps outside the public folder, and without holding a release back."""
    update = {"compare": (), "ledger": None, "approval": None, "publish": "always", "runtime": Runtime()}
    return job.model_copy(update={**update, "record": Record(log_lik="never")})


def _shown(public: Path) -> Iterator[float]:
    """All numbers of tables, noisy sums and released parameters, and sums and ends of synthetic columns; 0 for blanks."""
    for value in _figures(public):
        yield float(np.clip(value, -LARGEST, LARGEST)) if not np.isnan(value) else 0.0


def _figures(public: Path) -> Iterator[float]:
    for path in sorted([*public.glob("tables/*.parquet"), *public.glob("measurements.parquet")]):
        for column in _numeric(path):
            yield from column.tolist()
    for path in sorted(public.glob("synthetic/*.parquet")):
        for column in _numeric(path):
            yield from (float(value) for value in (column.sum(), column.min(), column.max()))
    for path in sorted(public.glob("released/set-*.json")):
        yield from numbers(json.loads(path.read_text(encoding="utf-8")))


def _numeric(path: Path) -> Iterator[Floats]:
    table = pq.read_table(path).to_pandas().select_dtypes("number")
    return (table[name].to_numpy(dtype=np.float64) for name in table.columns)


def _difference(job: Job, first: str, second: str) -> str:
    """The difference of the files. Raises `DataError` unless they are neighbours under the job's adjacency."""
    public = () if job.sizes_secret else job.categories
    left, right = (_rows(job, path) for path in (first, second))
    only_one, only_other = list((left - right).elements()), list((right - left).elements())
    what, remedy = f"{first} and {second}", "give two files that differ in the record whose loss is to be bounded"
    if not only_one and not only_other:
        raise DataError.of(what, "records", "both files have the same records", "", remedy)
    if max(len(only_one), len(only_other)) > job.most_records:
        fault = f"they differ in {max(len(only_one), len(only_other)):,} records"
        raise DataError.of(what, "records", fault, f"{job.most_records} at most", remedy)
    unit = None if job.privacy_unit is None else _columns(job).index(job.privacy_unit.column)
    units = set() if unit is None else {row[unit] for row in (*only_one, *only_other)}
    if len(units) > 1:
        raise DataError.of(what, "records", f"they differ in {len(units):,} privacy units", "one", remedy)
    if len(only_one) == len(only_other):
        names = _columns(job)
        columns = [
            name for name in public if _values(only_one, names.index(name)) != _values(only_other, names.index(name))
        ]
        if columns and job.budget.exchange != "anywhere":
            fault = "the record has another value, and the job's guarantee treats this column as public"
            raise DataError(what, [Problem(name, fault, "", "change its outcome and weight alone") for name in columns])
        return EXCHANGED
    if only_one and only_other:
        fault = f"{len(only_one):,} records are only in the first file, and {len(only_other):,} in the second"
        raise DataError.of(what, "records", fault, "as many in both files, or some in one file alone", remedy)
    if not job.sizes_secret:
        fault = "one file has one more record, and the job's guarantee treats numbers of records as public"
        raise DataError.of(what, "records", fault, "", "exchange the outcome and weight of a record instead")
    return ADDED


def _values(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    return sorted(row[column] for row in rows)


def _columns(job: Job) -> list[str]:
    names = [*job.columns, *([job.survey.weight] if job.survey.weight else []), *job.outcomes]
    return list(dict.fromkeys(names if job.privacy_unit is None else [*names, job.privacy_unit.column]))


def _rows(job: Job, path: str) -> Counter[tuple[str, ...]]:
    source, names = open_source(job, path), _columns(job)
    missing = [name for name in names if name not in source.columns]
    if missing:
        fault, remedy = "no such column in the file", "give files with the columns of the job"
        raise DataError(path, [Problem(name, fault, "", remedy) for name in missing])
    rows = Counter[tuple[str, ...]]()
    for batch in source.batches(names):
        frame = batch.to_pandas()[names].astype(str)
        rows.update(frame.itertuples(index=False, name=None))
    return rows
