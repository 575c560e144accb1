"""A rehearsal: every mechanism that a job's columns allow, run on halves of a public file; the best one is recommended.

The public file is the job's reference, a file that is named, or a simulated twin. One half is the current file, the other
its reference. The job's own input is never opened. What is recommended is run once more with the halves exchanged:
there its error is not that of the half that it was chosen on.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.errors import DataError, DpdistError, JobError, Problem
from dpdist.core.files import write_text
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Ints
from dpdist.evaluation.summary import by_statistic
from dpdist.evaluation.verdict import holds_direct, labels_of
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.job.yaml_lines import written
from dpdist.release import run
from dpdist.studies.rehearsal_candidates import OF_THE_RUN, Candidate, Refused, candidates
from dpdist.studies.rehearsal_trials import COLUMNS, Rehearsal, Trial
from dpdist.survey.schema import needed_columns
from dpdist.survey.source import Source, open_file, open_source, simulated_source

BY_CHANCE = Key(bytes(32)).child("rehearsal")
"""A public key: the file is public, and anybody may make the same halves."""


class Halves(NamedTuple):
    """Two parts of a public file, and records that are alone in their cell, which serve as reference only."""

    table: pa.Table
    half: Ints
    text_only: bool

    def written(self, current: int, folder: Path) -> tuple[Path, Path]:
        """Files of the current half and of its reference, for a run."""
        suffix = "csv" if self.text_only else "parquet"
        paths = folder / f"current.{suffix}", folder / f"earlier.{suffix}"
        for path, kept in zip(paths, (self.half == current, self.half != current), strict=True):
            part = self.table.filter(pa.array(kept))
            pa_csv.write_csv(part, path) if self.text_only else pq.write_table(part, path)
        return paths


def rehearse(
    job: Job, out: Path, public: Path | None = None, records: int | None = None, listener: Listener = silent
) -> Rehearsal:
    """Run a rehearsal and leave rehearsal.csv, confirmation.csv, index.html and recommended.yaml in the folder `out`.

    `public` is a file in place of the job's reference; of more than `records` records a random part is taken. Raises
    `JobError` where there is no public file, or where no mechanism can be run on it.
    """
    from dpdist.studies.rehearsal_page import page  # what draws is loaded here only

    source = public_source(job, public)
    halves = halved(job, source, records)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as name:
        folder = Path(name)
        found = tried(job, halves, folder, listener)
    made = Rehearsal(job, source.name, halves.table.num_rows, *found)
    if not made.trials:
        reasons = "; ".join(f"{each.label}: {each.reason}" for each in made.refused[:3])
        problem = Problem("rehearsal", "no mechanism can be run on the public file", "", f"see why: {reasons}")
        raise JobError(job.dataset, [problem])
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "rehearsal.csv", _csv(made.trials))
    write_text(out / "confirmation.csv", _csv([made.confirmed] if made.confirmed is not None else []))
    write_text(out / "recommended.yaml", recommended(made, out))
    write_text(out / "index.html", page(made))
    return made


def public_source(job: Job, public: Path | None) -> Source:
    """The file that is named, the job's reference, or a simulated twin. Raises `JobError` where there is none."""
    given = job.reference
    _refuse_the_input(job, public if public is not None else given.path if given is not None else None)
    if public is not None:
        return open_file(public, given if given is not None else job.input)
    if given is not None and given.path is not None:
        return open_source(job, given.path, given)
    simulated = given.simulate if given is not None and given.simulate is not None else None
    if simulated is None and job.input.simulate is not None:
        simulated = job.input.simulate.model_copy(update={"seed": job.input.simulate.seed + 1})
    if simulated is None:
        remedy = "name a public file with the job's columns by --public"
        raise JobError(job.dataset, [Problem("reference", "no public file to rehearse on", "reference.path", remedy)])
    return simulated_source(simulated)


def _refuse_the_input(job: Job, public: str | Path | None) -> None:
    """A file is told by its place on the disk: nothing of it is read, so that a copy goes unseen."""
    confidential = job.input.path
    if public is None or confidential is None or not Path(public).exists() or not Path(confidential).exists():
        return
    if Path(public).samefile(confidential):
        remedy = "name a file that is public: a rehearsal shows its errors, at no cost and without noise on them"
        raise JobError(
            job.dataset, [Problem("rehearsal", "the public file is the job's own input", "another file", remedy)]
        )


def halved(job: Job, source: Source, records: int | None) -> Halves:
    """The columns that the job reads, whole, and a random half of every combination of categories. Raises `DataError`."""
    names = list(dict.fromkeys([*needed_columns(job), *job.microdata.columns]))
    if missing := [name for name in names if name not in source.columns]:
        shown = ", ".join(list(source.columns)[:20])
        problems = [
            Problem(name, "missing column", f"the public file has {shown}", "name another file") for name in missing
        ]
        raise DataError(source.name, problems)
    table = pa.Table.from_batches(source.batches(names))
    rng = BY_CHANCE.generator("split")
    order = rng.permutation(table.num_rows)[:records]
    table = table.take(pa.array(np.sort(order)))
    combined = table.select(list(job.categories)).to_pandas().astype(str) if job.categories else None
    cell = np.zeros(table.num_rows, int) if combined is None else combined.groupby(list(combined), sort=False).ngroup()
    shuffled = rng.permutation(table.num_rows)
    within = pd.Series(np.asarray(cell)[shuffled]).groupby(np.asarray(cell)[shuffled]).cumcount().to_numpy()
    half = np.empty(table.num_rows, dtype=np.int64)
    half[shuffled] = within % 2
    half[np.bincount(cell)[cell] == 1] = 2
    return Halves(table, half, source.text_only)


def tried(job: Job, halves: Halves, folder: Path, listener: Listener) -> tuple[list[Trial], Trial | None, list[Refused]]:
    """Trials on one half, best first; the best one on the other half; what was refused."""
    current, earlier = halves.written(0, folder)
    wanted, refused = candidates(job, str(earlier))
    trials = list[Trial]()
    with stage(listener, "rehearse", len(wanted)) as tick:
        for number, each in enumerate(wanted):
            try:
                trials.append(trial(each, current, folder / f"run-{number}"))
            except DpdistError as error:
                refused.append(Refused(each.label, _first(error)))
            tick(1)
    trials.sort(key=by_rule)
    confirmed = None
    if trials:
        with stage(listener, "confirm", 1) as tick:
            current, _ = halves.written(1, folder)
            try:
                confirmed = trial(trials[0].candidate, current, folder / "confirmed")
            except DpdistError as error:
                refused.append(Refused(f"{trials[0].candidate.label}, on the other half", _first(error)))
            tick(1)
    return trials, confirmed, refused


def by_rule(trial: Trial) -> tuple[bool, bool, float]:
    """The order of `RULE`."""
    return not trial.good, not trial.candidate.strict, trial.error


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
        frames += [_cells(candidate, table.name, name, part) for name, part in by_statistic(rows)]
        published = release.tables[table.name]
        first = published[published["estimator"] == published["estimator"].iloc[0]]
        suppressed += int(first["suppressed"].sum())
    return Trial(candidate, pd.concat(frames, ignore_index=True), suppressed, took)


def _cells(candidate: Candidate, table: str, statistic: str, rows: pd.DataFrame) -> pd.DataFrame:
    error = (rows["synthetic"] - rows["direct"]) / rows["direct_se"].where(rows["direct_se"] > 0)
    interval = rows["synthetic_lower"].notna() & rows["direct"].notna()
    held = pd.Series(holds_direct(rows)).astype(object).where(interval.to_numpy(), None)
    made = pd.DataFrame({"cell": rows[labels_of(rows)].astype(str).agg(" / ".join, axis=1) if labels_of(rows) else "all"})
    made = made.assign(mechanism=candidate.label, guarantee=candidate.guarantee, table=table, statistic=statistic)
    made = made.assign(error_in_direct_se=error.abs().to_numpy(), covered=held.astype(float), bias=error.to_numpy())
    return made[[*COLUMNS, "bias"]]


def recommended(made: Rehearsal, out: Path) -> str:
    """The job under the first mechanism, with the job's own input and reference, in a file of the folder `out`."""
    best, job = made.trials[0], made.job
    terms: dict[str, Any] = {key: each for key, each in best.candidate.terms.items() if each is not None}
    terms |= job.model_dump(mode="json", exclude_unset=True, include=set(OF_THE_RUN) - {"compare"})
    terms |= {"input": _named(job.input.model_dump(mode="json", exclude_none=True), out)}
    ground = terms.get("reference")
    if ground is not None and "path" in ground:
        given = job.reference.model_dump(mode="json", exclude_none=True) if job.reference is not None else {}
        if not {"path", "simulate"} & set(given):
            given = {"path": made.source, "provenance": "a public file"}
        terms["reference"] = _named(given, out)
    verdict = "good enough by the rule" if best.good else "NOT good enough by the rule"
    head = [f"# Recommended by a rehearsal: {best.candidate.label}, {best.candidate.guarantee}; {verdict}."]
    head += [f"# Median error of the worst statistic: {best.error:.2f} direct standard errors on a half of {made.source}."]
    return "\n".join(head) + "\n" + written(terms)


def _named(given: dict[str, Any], out: Path) -> dict[str, Any]:
    """Paths as a job in the folder names them."""
    return given | ({"path": os.path.relpath(given["path"], out)} if "path" in given else {})


def _csv(trials: Sequence[Trial]) -> str:
    if not trials:
        return ",".join(COLUMNS) + "\n"
    rows = pd.concat([each.cells for each in trials])[list(COLUMNS)]
    rows = rows.assign(covered=rows["covered"].map({1.0: "true", 0.0: "false"}))
    return str(rows.to_csv(index=False, float_format="%.6g"))


def _first(error: DpdistError) -> str:
    """An error in one line: the file is public."""
    problems = getattr(error, "problems", ())
    return f"{problems[0].where}: {problems[0].found}" if problems else str(error).splitlines()[0]
