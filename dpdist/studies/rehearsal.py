"""Runs a rehearsal: tries every mechanism that a job allows on halves of a public file, and recommends one.

The public file is the job's reference, a named file, or a simulated survey. One half plays the current file, and the other
half its reference. The job's own input is never opened. The recommended mechanism is then run with the halves exchanged, on
data that did not influence the choice. It must be good enough there too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpdist.core.errors import DpdistError, JobError, Problem
from dpdist.core.files import write_text
from dpdist.core.progress import Listener, silent, stage
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.job.yaml_lines import written
from dpdist.privacy import small_counts
from dpdist.studies.rehearsal_candidates import Candidate, Refused, candidates
from dpdist.studies.rehearsal_halves import Halves, halved, public_reference, public_source
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

    `public` is a file to use in place of the job's reference. Of a file with more than `records` records, a random part is
    used. Mechanisms with Markov chains are tried only if `chains` is true. Raises `JobError` if there is no public file, or
    if no mechanism can be run on it.
    """
    from dpdist.studies.rehearsal_page import page  # Modules that draw are imported only here.

    source = public_source(job, public)
    halves = halved(job, source, records)
    with tempfile.TemporaryDirectory(prefix="dpdist-") as name:
        findings = tried(job, halves, public_reference(job, public), Path(name), listener, chains)
    made = Rehearsal(job, source.name, halves.table.num_rows, findings, small(findings.trials[0].candidate, halves))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "rehearsal.csv", _csv(made.trials))
    write_text(out / "confirmation.csv", _csv([each for each in findings.confirmed.values() if each is not None]))
    write_text(out / "recommended.yaml", recommended(made, out))
    write_text(out / "index.html", page(made))
    return made


def tried(
    job: Job, halves: Halves, ground: dict[str, Any], folder: Path, listener: Listener, chains: bool = False
) -> Findings:
    """Tries all mechanisms on one half, and the best ones on the other half too.

    Raises `JobError` where no mechanism could be run.
    """
    current, earlier = halves.written(0, folder)
    wanted, refused = candidates(job, str(earlier), ground, chains)
    trials = list[Trial]()
    with stage(listener, "rehearse", len(wanted)) as tick:
        for number, each in enumerate(wanted):
            try:
                trials.append(trial(each, current, folder / f"run-{number}"))
                shutil.rmtree(folder / f"run-{number}")
            except DpdistError as error:
                refused.append(Refused(each.label, _first(error)))
            tick(1)
    if not trials:
        reasons = "; ".join(f"{each.label}: {each.reason}" for each in refused[:3])
        problem = Problem("rehearsal", "no mechanism can be run on the public file", "", f"see why: {reasons}")
        raise JobError(job.dataset, [problem])
    trials = drawn_again(trials, current, folder, listener)
    current, _ = halves.written(1, folder)

    def again(candidate: Candidate) -> Trial | None:
        with stage(listener, "confirm", 1) as tick:
            try:
                return repeated_trial(candidate, current, folder, DRAWS)
            except DpdistError as error:
                refused.append(Refused(f"{candidate.label}, on the other half", _first(error)))
                return None
            finally:
                tick(1)

    return Findings(*confirmed(trials, again), refused)


def drawn_again(trials: list[Trial], current: Path, folder: Path, listener: Listener) -> list[Trial]:
    """Repeats, under new noise, the trials that may turn out best; a single draw would let chance choose."""
    best = min(each.score for each in trials if each.candidate.strict or not any(one.candidate.strict for one in trials))
    near = [each.score <= OUT_OF_REACH * best or each.score == best for each in trials]
    with stage(listener, "draw again", sum(near)) as tick:
        found = []
        for each, again in zip(trials, near, strict=True):
            try:
                more = [repeated_trial(each.candidate, current, folder, DRAWS - 1)] if again else []
            except DpdistError:  # The mechanism refuses this draw, so the first draw stays the only one.
                more = []
            found.append(repeated(each, more))
            tick(int(again))
    return found


def repeated_trial(candidate: Candidate, current: Path, folder: Path, draws: int) -> Trial:
    """A trial that combines several releases of a half, each under new noise. Raises `DpdistError`."""
    made = list[Trial]()
    for _ in range(draws):
        workspace = Path(tempfile.mkdtemp(dir=folder))
        made.append(trial(candidate, current, workspace / "run"))
        shutil.rmtree(workspace)
    return repeated(made[0], made[1:])


def small(best: Candidate, halves: Halves) -> str:
    """The warning that `validate` would give on small sample counts in the public file; a rehearsal runs in any case."""
    whole = job_of(best.recommended).by_record
    frame = take_census(whole, TableSource(halves.table, text_only=halves.text_only)).frame
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
    head += [f"Median error of the worst statistic: {best.error:.2f} direct standard errors on a half of {made.source}."]
    if made.confirmed is not None:
        head += [f"On the other half: {made.confirmed.error:.2f}, and intervals hold {made.confirmed.coverage:.2f}."]
    head += [f"Caution: in the public file {made.caution}"] if made.caution else []
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


def _first(error: DpdistError) -> str:
    """An error in one line. It may be shown, because the file is public."""
    problems = getattr(error, "problems", ())
    return f"{problems[0].where}: {problems[0].found}" if problems else str(error).splitlines()[0]
