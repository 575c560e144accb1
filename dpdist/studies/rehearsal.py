"""Runs a rehearsal: tries every mechanism that a job allows on thirds of a public file, and recommends one.

The public file is the job's reference, a named file, or a simulated survey. One third plays the current file, one its
reference, and one the truth. The job's own input is never opened. The recommended mechanism is then run with another third
as the current file, whose errors did not influence the choice. It must be good enough there too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dpdist.core.errors import DpdistError, JobError, Problem
from dpdist.core.files import write_text
from dpdist.core.progress import Event, Listener, silent, stage
from dpdist.core.scratch import scratch
from dpdist.core.this_process import refuse_nested_start
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.job.yaml_lines import written
from dpdist.privacy import small_counts
from dpdist.studies.parts import Parts
from dpdist.studies.rehearsal_candidates import Candidate, Refused, candidates
from dpdist.studies.rehearsal_folder import (
    CONFIRMATION,
    CSV,
    PAGE,
    RECOMMENDED,
    Results,
    in_one_line,
    resumable,
)
from dpdist.studies.rehearsal_thirds import Thirds, in_thirds, public_reference, public_source
from dpdist.studies.rehearsal_trials import (
    COLUMNS,
    DRAWS,
    OUT_OF_REACH,
    Findings,
    Rehearsal,
    Trial,
    confirmed,
    repeated,
    trial,
)
from dpdist.studies.results import versions
from dpdist.survey.census import take_census
from dpdist.survey.source import TableSource


def rehearse(
    job: Job,
    out: Path,
    public: Path | None = None,
    records: int | None = None,
    listener: Listener = silent,
    *,
    chains: bool = False,
) -> Rehearsal:
    """Runs a rehearsal; writes rehearsal.csv, confirmation.csv, index.html and recommended.yaml into the folder `out`.

    rehearsal.csv grows with every candidate. A killed rehearsal of the same job and file resumes. Another begins
    anew, and first removes these four files of an earlier one.

    `public` is a file to use in place of the job's reference. Of a file with more than `records` records, a random part is
    used. Mechanisms with Markov chains are tried only if `chains` is true. Raises `JobError` if there is no public file, or
    if no mechanism can be run on it.
    """
    refuse_nested_start()
    source = public_source(job, public)
    with stage(listener, "read public file", source.rows) as tick:
        thirds = in_thirds(job, source, records, tick)
    options = {"public": source.fingerprint(), "records": records, "chains": chains}
    identity = {"job": job.model_dump(mode="json")} | options | {"versions": dict(versions())}
    with scratch() as folder, resumable(out, identity, listener) as results:
        runs = Runs(folder, results, out / CSV)
        findings = tried(job, thirds, public_reference(job, public), runs, listener, chains)
        return _written(job, source.name, thirds, findings, out, listener)


def _written(job: Job, name: str, thirds: Thirds, findings: Findings, out: Path, listener: Listener) -> Rehearsal:
    """Writes the files of a finished rehearsal."""
    from dpdist.studies.rehearsal_page import page  # Modules that draw are imported only here.

    caution = small(findings.trials[0].candidate, thirds)
    made = Rehearsal(job, name, thirds.table.num_rows, findings, caution, thirds.caution)
    with stage(listener, "page", 1) as tick:
        write_text(out / CSV, _csv(made.trials))
        write_text(out / CONFIRMATION, _csv([each for each in findings.confirmed.values() if each is not None]))
        write_text(out / RECOMMENDED, recommended(made, out))
        write_text(out / PAGE, page(made))
        tick(1)
    return made


@dataclass(frozen=True)
class Runs:
    """Makes the releases of a rehearsal, or finds them among the results so far."""

    folder: Path
    """A folder for files that nobody needs afterwards."""
    results: Results
    csv: Path

    def trial(self, candidate: Candidate, splits: Sequence[Parts], current: int, draw: int) -> Trial:
        """One release of a third, with the splits in turn. Raises `DpdistError`."""

        def make() -> Trial:
            workspace = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                return trial(candidate, splits[draw % len(splits)], workspace / "run")
            finally:
                shutil.rmtree(workspace)

        return self.results.of(candidate, current, draw, make)

    def repeated(self, candidate: Candidate, splits: Sequence[Parts], current: int, draws: Sequence[int]) -> Trial:
        """A trial of several releases of a third, each under new noise. Raises `DpdistError`."""
        made = [self.trial(candidate, splits, current, draw) for draw in draws]
        return repeated(made[0], made[1:])

    def show(self, trials: Sequence[Trial]) -> None:
        """Writes the figures so far."""
        write_text(self.csv, _csv(trials))


def tried(
    job: Job, thirds: Thirds, ground: dict[str, Any], runs: Runs, listener: Listener, chains: bool = False
) -> Findings:
    """Tries all mechanisms on one third, and the best ones on another third too.

    Raises `JobError` where no mechanism could be run.
    """
    splits = splits_of(thirds, 0, runs.folder)
    wanted, refused = candidates(job, str(splits[0].earlier), ground, chains)
    trials = list[Trial]()
    with stage(listener, "rehearse", len(wanted)) as tick:
        for number, each in enumerate(wanted):
            note = f"Candidate {number + 1} of {len(wanted)}: {each.label}"
            listener(Event("note", "rehearse", number, len(wanted), note))
            try:
                trials.append(runs.trial(each, splits, 0, 0))
                runs.show(trials)
            except DpdistError as error:
                refused.append(Refused(each.label, in_one_line(error)))
            tick(1)
    if not trials:
        reasons = "; ".join(f"{each.label}: {each.reason}" for each in refused[:3])
        problem = Problem("rehearsal", "no mechanism can be run on the public file", "", f"see why: {reasons}")
        raise JobError(job.dataset, [problem])
    trials = drawn_again(trials, splits, runs, listener)
    runs.show(trials)
    others = splits_of(thirds, 1, runs.folder)

    def again(candidate: Candidate) -> Trial | None:
        with stage(listener, "confirm", 1) as tick:
            try:
                return runs.repeated(candidate, others, 1, range(DRAWS))
            except DpdistError as error:
                refused.append(Refused(f"{candidate.label}, on the other third", in_one_line(error)))
                return None
            finally:
                tick(1)

    return Findings(*confirmed(trials, again), refused)


def splits_of(thirds: Thirds, current: int, folder: Path) -> tuple[Parts, Parts]:
    """The files of a current third. The other two thirds are reference and truth, and then exchanged."""
    first, second = (thirds.written(current, swapped, folder / f"third-{current}-{swapped:d}") for swapped in (False, True))
    return first, second


def drawn_again(trials: list[Trial], splits: Sequence[Parts], runs: Runs, listener: Listener) -> list[Trial]:
    """Repeats, under new noise, the trials that may turn out best; a single draw would let chance choose."""
    best = min(each.score for each in trials if each.candidate.strict or not any(one.candidate.strict for one in trials))
    near = [each.score <= OUT_OF_REACH * best or each.score == best for each in trials]
    with stage(listener, "draw again", sum(near)) as tick:
        found = []
        for each, again in zip(trials, near, strict=True):
            try:
                more = [runs.repeated(each.candidate, splits, 0, range(1, DRAWS))] if again else []
            except DpdistError:  # The mechanism refuses this draw, so the first draw stays the only one.
                more = []
            found.append(repeated(each, more))
            tick(int(again))
    return found


def small(best: Candidate, thirds: Thirds) -> str:
    """The warning that `validate` would give on small sample counts in the public file; a rehearsal runs in any case."""
    whole = job_of(best.recommended).by_record
    frame = take_census(whole, TableSource(thirds.table, text_only=thirds.text_only)).frame
    return small_counts.caution(whole, small_counts.counted(whole, frame))


def recommended(made: Rehearsal, out: Path) -> str:
    """Writes the job with the recommended mechanism to a file in `out`. The job keeps its input and its reference."""
    best, job = made.best, made.job
    terms: dict[str, Any] = {"dataset": job.dataset, "period": job.period}
    terms |= {"input": _named(job.input.model_dump(mode="json", exclude_unset=True), out)}
    terms |= best.candidate.recommended
    if "path" in terms.get("reference", {}):
        terms["reference"] = _named(terms["reference"], out)
    score = f"score {best.score:.2f} over {best.draws} draws"
    head = [f"{made.verdict}: {best.candidate.label}, {best.candidate.guarantee}; {score}."]
    head += [f"Median error of the worst statistic: {best.error:.2f} direct standard errors on a third of {made.source}."]
    if made.confirmed is not None:
        held = f"intervals hold {made.confirmed.coverage:.2f} of the truth"
        head += [f"On the other third: {made.confirmed.error:.2f}; {held}."]
    head += [f"Caution: in the public file {made.caution}"] if made.caution else []
    head += [f"Not judged: {made.unjudged}."] if made.unjudged else []
    head += ["Changed from the job:" if best.candidate.changed else "Nothing is changed from the job."]
    head += [f"  {each}" for each in best.candidate.changed]
    return "".join(f"# {line}\n" for line in head) + written({key: each for key, each in terms.items() if each})


def _named(given: dict[str, Any], out: Path) -> dict[str, Any]:
    """The settings with their path relative to the folder, as a job file there must state it."""
    return given | ({"path": os.path.relpath(given["path"], out)} if given.get("path") else {})


def _csv(trials: Sequence[Trial]) -> str:
    if not trials:
        return ",".join(COLUMNS) + "\n"
    rows = pd.concat([each.cells for each in trials])[list(COLUMNS)]
    rows = rows.assign(covered=rows["covered"].map({1.0: "true", 0.0: "false"}))
    return str(rows.to_csv(index=False, float_format="%.6g"))
