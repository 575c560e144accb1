"""For `cli.trials`: bounds the loss between two given files from below, by releases alone (`audit.guesses`).

Every run releases one of the files anew, in a folder that is then deleted. The attacker sees the public folder: figures
of tables, noisy sums, released parameters, and synthetic records. Half of the runs show the attacker how releases of
the two files differ. For each other run, the attacker guesses the file (`audit.guesses`). No budget is spent, because
both files are the auditor's and no run is published. The result shows how the files differ, so it is as confidential as
the files.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.audit.guesses import bound_of_guesses, learned, most_shown, p_value, runs_to_exceed
from dpdist.audit.lower_bounds import filled, numbers
from dpdist.core.confidential import Confidential
from dpdist.core.errors import DataError, JobError, Problem, WorkspaceError
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Floats
from dpdist.job import Job, Runtime
from dpdist.job.loading import JobLike, job_of
from dpdist.job.runtime import Record
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import NoGuarantee
from dpdist.release import run
from dpdist.runtime.executors import executor
from dpdist.survey.source import open_source

RUN_FIGURES = {
    "runs": "number of releases of both files together whose file is guessed; as many others taught the attacker",
    "difference": "how the files differ: values of a record exchanged, or a record more",
    "claimed": "the ε that the statement claims for this difference",
    "delta": "the claimed δ",
    "most_that_can_be_shown": "largest ε that this number of releases can prove",
    "guesses": "number of these releases of which the attacker guessed the file",
    "right": "number of right guesses",
    "at_least": "the ε that is proven, with a confidence of 95 %",
    "p_value": "probability of as clear a difference, at most, if the claim holds",
    "exceeds": "whether the proven ε is above the claim",
}
"""Columns of the result of `loss_between`."""
LARGEST = 1e30
"""Figures are limited to this size, so that their sums over runs are finite."""
EXCHANGED, ADDED = "values exchanged", "a record more"
"""Ways in which two neighbouring files differ."""


def loss_between(
    job: JobLike, one: str | Path, other: str | Path, runs: int, listener: Listener = silent
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
    files = (str(Path(one).absolute()), str(Path(other).absolute()))
    guarantee = mechanism_of(parsed).promise(parsed).total
    if isinstance(guarantee, NoGuarantee):
        raise JobError(
            parsed.dataset,
            [Problem("mechanism", f"'{parsed.mechanism.name}' promises nothing", "", "audit a mechanism with a guarantee")],
        )
    difference = _difference(parsed, *files)
    claimed = float(guarantee.substitution_epsilon if difference == EXCHANGED else guarantee.epsilon)
    delta = float(getattr(guarantee, "delta", None) or 0)
    most = most_shown(runs, delta)
    if most <= claimed:
        fault = f"{runs} releases of each file cannot show more than the claimed ε of {claimed:g}, whatever they are"
        remedy = f"it takes --runs {runs_to_exceed(claimed, delta)} at least; more show more"
        raise JobError(parsed.dataset, [Problem("--runs", fault, "", remedy)])
    sides = np.concatenate([np.arange(runs) % 2, Key.from_os().generator("coins").integers(0, 2, runs)])
    task, released = ReleaseAgain(_plain(parsed), files, tuple(sides.tolist())), [list[float]()] * len(sides)
    with stage(listener, "releases", len(sides)) as tick, executor(parsed.runtime) as workers:
        for number, figures in workers.map(task, range(len(sides))):
            released[number] = figures
            tick(1)
    table = filled(released)
    taught, guessed = table[:runs], table[runs:]
    right, guesses = learned(taught[::2], taught[1::2]).guesses(guessed, sides[runs:])
    bound, p = bound_of_guesses(right, guesses, runs, delta), p_value(right, guesses, runs, claimed, delta)
    row = (runs, difference, claimed, delta, most, guesses, right, bound, p, bound > claimed)
    return Confidential(pd.DataFrame([row], columns=list(RUN_FIGURES)))


def refuse_shown(audited: Confidential[pd.DataFrame]) -> None:
    """Raises `WorkspaceError` if the proven loss is above the claim; the error states no figures."""
    if audited.disclose_to_custodian()["exceeds"].any():
        where = "add --confidential to see the figures; publish nothing more of this mechanism"
        raise WorkspaceError("the two files", "their releases differ by more than is claimed", where)


@dataclass(frozen=True)
class ReleaseAgain:
    """Releases one of two files; returns the run's number and the numbers in its public folder."""

    job: Job
    files: tuple[str, str]
    sides: tuple[int, ...]
    """The file that every run releases, by the run's number."""

    def __call__(self, number: int) -> tuple[int, list[float]]:
        with tempfile.TemporaryDirectory(prefix="dpdist-audit-") as folder:
            release = run(self.job, Path(folder) / "run", input=self.files[self.sides[number]], counted=False)
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


def _difference(job: Job, one: str, other: str) -> str:
    """The difference of the files. Raises `DataError` unless they are neighbours under the job's adjacency."""
    public = () if job.sizes_secret else job.categories
    left, right = (_rows(job, path) for path in (one, other))
    only_one, only_other = list((left - right).elements()), list((right - left).elements())
    what, remedy = f"{one} and {other}", "give two files that differ in the record whose loss is to be bounded"
    if not only_one and not only_other:
        raise DataError(what, [Problem("records", "both files have the same records", "", remedy)])
    if max(len(only_one), len(only_other)) > job.most_records:
        fault = f"they differ in {max(len(only_one), len(only_other)):,} records"
        raise DataError(what, [Problem("records", fault, f"{job.most_records} at most", remedy)])
    unit = None if job.privacy_unit is None else _columns(job).index(job.privacy_unit.column)
    units = set() if unit is None else {row[unit] for row in (*only_one, *only_other)}
    if len(units) > 1:
        raise DataError(what, [Problem("records", f"they differ in {len(units):,} privacy units", "one", remedy)])
    if len(only_one) == len(only_other):
        names = _columns(job)
        moved = [name for name in public if _values(only_one, names.index(name)) != _values(only_other, names.index(name))]
        if moved and job.budget.exchange != "anywhere":
            fault = "the record has another value, and the job's guarantee takes this column as public"
            raise DataError(what, [Problem(name, fault, "", "change its outcome and weight alone") for name in moved])
        return EXCHANGED
    if only_one and only_other:
        fault = f"{len(only_one):,} records stand in the first file alone, and {len(only_other):,} in the second"
        raise DataError(what, [Problem("records", fault, "as many in both, or some in one file alone", remedy)])
    if not job.sizes_secret:
        fault = "one file has a record more, and the job's guarantee takes numbers of records as public"
        raise DataError(what, [Problem("records", fault, "", "exchange the outcome and weight of a record instead")])
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
