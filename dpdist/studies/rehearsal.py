"""The rehearsal of a job: every mechanism that it allows, tried on thirds of a public file, and a recommendation.

One third serves as the current file, one as its reference, and one as the truth. The job's own input is never opened.
The recommended mechanism must also be good enough on another third, whose errors had no influence on the choice.
Results are stored at once, so that a killed rehearsal resumes.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from dpdist.core.errors import DataError, DpdistError, FitError, JobError, Problem, WorkspaceError, require
from dpdist.core.files import exclusive, scratch, write_text
from dpdist.core.keys import digest
from dpdist.core.progress import Event, Listener, silent, stage
from dpdist.core.this_process import refuse_nested_start
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.job.yaml_lines import as_yaml
from dpdist.privacy import noisy_counts
from dpdist.publish.writers.page import environment
from dpdist.quality.predicted.replicates import load_or_make
from dpdist.runtime.executors import Executor, Serial, executor
from dpdist.studies.rehearsal_thirds import FileThirds, Thirds, in_thirds, public_reference, public_source
from dpdist.studies.rehearsal_trials import (
    COLUMNS,
    DRAWS,
    OUT_OF_REACH,
    RULE,
    Candidate,
    RefusedCandidate,
    Rehearsal,
    Trial,
    TrialFindings,
    advice,
    candidates,
    confirmed,
    trial,
    with_repetitions,
)
from dpdist.studies.results import versions
from dpdist.survey.census import take_census
from dpdist.survey.source import TableSource

STORED, LOCK = ".dpdist-rehearsal", ".dpdist-rehearsal.lock"
CSV, CONFIRMATION, RECOMMENDED, PAGE = "rehearsal.csv", "confirmation.csv", "recommended.yaml", "index.html"
REFUSALS = (JobError, DataError, FitError)
"""Errors that follow from job and public file, and so recur when the rehearsal resumes."""


@dataclass(frozen=True)
class Results:
    """The stored results of a rehearsal: a file for each release or refusal, named by all that it depends on."""

    folder: Path
    identity: str
    """Checksum of job, public file, options and versions."""

    def of(self, candidate: Candidate, current: int, draw: int, make: Callable[[], Trial]) -> Trial:
        """The stored result, or a new result, which is then stored. Raises `DpdistError` if it is refused."""

        def rows() -> pd.DataFrame:
            try:
                tried = make()
            except REFUSALS as error:
                return pd.DataFrame({"refused": [in_one_line(error)]})
            return tried.cells.assign(suppressed=tried.suppressed, seconds=tried.seconds)

        stored = load_or_make(digest([self.identity, candidate.label, current, draw]), rows, self.folder)
        if "refused" in stored:
            raise DpdistError(str(stored["refused"].iloc[0]))
        cells = stored.drop(columns=["suppressed", "seconds"])
        return Trial(candidate, cells, int(stored["suppressed"].iloc[0]), float(stored["seconds"].iloc[0]))


def in_one_line(error: DpdistError) -> str:
    """The error as text, which may be shown because the file is public."""
    problems = getattr(error, "problems", ())
    return f"{problems[0].where}: {problems[0].fault}" if problems else str(error).splitlines()[0]


@contextmanager
def claimed(out: Path, listener: Listener) -> Iterator[Path]:
    """Claims the folder for one rehearsal, and yields that of its stored results, which go when it ends.

    Those of a killed rehearsal of the same job and file are used again. Raises `WorkspaceError` if another process uses
    the folder.
    """
    stored = out / STORED
    try:
        stored.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise WorkspaceError(str(out), f"{STORED} in it is a file", "remove it, or choose another folder", 2) from None
    with exclusive(out / LOCK, out, "another rehearsal runs in it", "wait for it, or choose another folder"):
        for name in (RECOMMENDED, PAGE, CONFIRMATION, CSV):
            (out / name).unlink(missing_ok=True)
        if number := len(list(stored.glob("*.parquet"))):
            what = "1 result" if number == 1 else f"{number} results"
            note = (
                f"The folder has {what} of an interrupted rehearsal: those for this job, file and version are used again."
            )
            listener(Event("note", "rehearse", note=note))
        yield stored
        for path in [*stored.glob("*.parquet"), *stored.glob(".*.parquet.*.part")]:
            path.unlink()
        with suppress(OSError):  # It holds files of others.
            stored.rmdir()


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

    A killed rehearsal of the same job and file resumes; any other begins anew, and all replace these files. `public`
    replaces the job's reference. Of a larger file, a random part of `records` records is used. `chains` allows Markov
    chains. Raises `JobError` if there is no public file, or no mechanism can be run on it.
    """
    require("matplotlib", "a rehearsal")
    refuse_nested_start()
    source = public_source(job, public)
    with stage(listener, "read public file", source.rows) as tick:
        thirds = in_thirds(job, source, records, tick)
    options = {"public": source.fingerprint(), "records": records, "chains": chains}
    identity = {"job": job.model_dump(mode="json")} | options | {"versions": dict(versions())}
    with (
        scratch() as folder,
        claimed(out, listener) as stored,
        # Trials read files of this machine, which a cluster's workers need not see.
        executor(job.runtime.model_copy(update={"scheduler": None}), chains, folder, listener) as workers,
    ):
        runs = Runs(folder, Results(stored, digest(identity)), out / CSV, workers)
        findings = run_trials(job, thirds, public_reference(job, public), runs, listener, chains)
        return _write(job, source.name, thirds, findings, out, listener)


def _write(job: Job, name: str, thirds: Thirds, findings: TrialFindings, out: Path, listener: Listener) -> Rehearsal:

    caution = small(findings.trials[0].candidate, thirds)
    rehearsal = Rehearsal(job, name, thirds.table.num_rows, findings, caution, thirds.caution)
    with stage(listener, "page", 1) as tick:
        write_text(out / CSV, _csv(rehearsal.trials))
        write_text(out / CONFIRMATION, _csv([trial for trial in findings.confirmed.values() if trial is not None]))
        write_text(out / RECOMMENDED, write_recommended(rehearsal, out))
        write_text(out / PAGE, page(rehearsal))
        tick(1)
    return rehearsal


class PlannedTrial(NamedTuple):
    """A trial: a candidate, the third that is its current file, the number of the draw, and the files of the thirds."""

    candidate: Candidate
    current: int
    draw: int
    parts: FileThirds

    def result(self, results: Results, folder: Path) -> Trial:
        """The stored result, or that of a release in a temporary folder; raises `DpdistError`."""

        def make() -> Trial:
            workspace = Path(tempfile.mkdtemp(dir=folder))
            try:
                return trial(self.candidate, self.parts, workspace / "run")
            finally:
                shutil.rmtree(workspace)

        return results.of(self.candidate, self.current, self.draw, make)


@dataclass(frozen=True)
class TrialTask:
    """Task that makes one trial and stores its result or refusal. Returns the trial's number."""

    results: Results
    folder: Path
    trials: Sequence[PlannedTrial]

    def __call__(self, number: int) -> int:
        with suppress(DpdistError):  # the driver finds the stored refusal, or meets the error itself
            self.trials[number].result(self.results, self.folder)
        return number


@dataclass(frozen=True)
class Runs:
    folder: Path
    """A folder for temporary files."""
    results: Results
    csv: Path
    workers: Executor

    def each(self, trials: Sequence[PlannedTrial]) -> Iterator[int]:
        """Numbers of trials, each when its result is stored; in this process, before the result is asked for."""
        numbers = range(len(trials))
        return iter(numbers) if isinstance(self.workers, Serial) else self.workers.map(self.task(trials), numbers)

    def task(self, trials: Sequence[PlannedTrial]) -> TrialTask:
        return TrialTask(self.results, self.folder, trials)

    def trial(self, candidate: Candidate, splits: Sequence[FileThirds], current: int, draw: int) -> Trial:
        return _wanted(candidate, splits, current, draw).result(self.results, self.folder)

    def repeated(self, candidate: Candidate, splits: Sequence[FileThirds], current: int, draws: Sequence[int]) -> Trial:
        """Several releases, each under new noise; raises `DpdistError`."""
        for _ in self.each([_wanted(candidate, splits, current, draw) for draw in draws]):
            pass
        trials = [self.trial(candidate, splits, current, draw) for draw in draws]
        return with_repetitions(trials[0], trials[1:])

    def show(self, trials: Sequence[Trial]) -> None:
        write_text(self.csv, _csv(trials))


def run_trials(
    job: Job, thirds: Thirds, ground: dict[str, Any], runs: Runs, listener: Listener, chains: bool = False
) -> TrialFindings:
    """Tries all mechanisms on one third, and the best on another. Raises `JobError` if none could be run."""
    splits = splits_of(thirds, 0, runs.folder)
    allowed, refused = candidates(job, str(splits[0].earlier), ground, chains)
    by_number, not_run = dict[int, Trial](), dict[int, RefusedCandidate]()
    with stage(listener, "rehearse", len(allowed)) as tick:
        for number in runs.each([_wanted(trying, splits, 0, 0) for trying in allowed]):
            trying = allowed[number]
            note = f"Candidate {number + 1} of {len(allowed)}: {trying.label}"
            listener(Event("note", "rehearse", number, len(allowed), note))
            try:
                by_number[number] = runs.trial(trying, splits, 0, 0)
                runs.show([by_number[k] for k in sorted(by_number)])
            except DpdistError as error:
                not_run[number] = RefusedCandidate(trying.label, in_one_line(error))
            tick(1)
    refused += [not_run[number] for number in sorted(not_run)]
    trials = [by_number[number] for number in sorted(by_number)]
    if not trials:
        reasons = "; ".join(f"{refusal.label}: {refusal.reason}" for refusal in refused[:3])
        problem = Problem("rehearsal", "no mechanism can be run on the public file", "", f"see why: {reasons}")
        raise JobError(job.dataset, [problem])
    trials = drawn_again(trials, splits, runs, listener)
    runs.show(trials)
    other_splits = splits_of(thirds, 1, runs.folder)

    def again(candidate: Candidate) -> Trial | None:
        with stage(listener, "confirm", 1) as tick:
            try:
                return runs.repeated(candidate, other_splits, 1, range(DRAWS))
            except DpdistError as error:
                refused.append(RefusedCandidate(f"{candidate.label}, on another third of the file", in_one_line(error)))
                return None
            finally:
                tick(1)

    return TrialFindings(*confirmed(trials, again), refused)


def _wanted(candidate: Candidate, splits: Sequence[FileThirds], current: int, draw: int) -> PlannedTrial:
    return PlannedTrial(candidate, current, draw, splits[draw % len(splits)])


def splits_of(thirds: Thirds, current: int, folder: Path) -> tuple[FileThirds, FileThirds]:
    """The files for each choice of the current third; reference and truth are also exchanged."""
    first, second = (thirds.written(current, swapped, folder / f"third-{current}-{swapped:d}") for swapped in (False, True))
    return first, second


def drawn_again(trials: list[Trial], splits: Sequence[FileThirds], runs: Runs, listener: Listener) -> list[Trial]:
    """Repeats trials that may turn out best, because a single draw would let chance choose.

    Further draws may raise the best score, and bring others within its reach, which are then repeated, too.
    """
    results, done = list(trials), set[int]()
    while True:
        strict = any(trial.candidate.strict for trial in results)
        best = min(trial.score for trial in results if trial.candidate.strict or not strict)
        near = [k for k, trial in enumerate(results) if trial.score <= OUT_OF_REACH * best or trial.score == best]
        if not (contenders := [k for k in near if k not in done]):
            return results
        with stage(listener, "draw again", len(contenders)) as tick:
            for _ in runs.each(
                [_wanted(results[k].candidate, splits, 0, draw) for k in contenders for draw in range(1, DRAWS)]
            ):
                pass
            for k in contenders:
                # Where the mechanism refuses a draw, the first one stays the only one.
                with suppress(DpdistError):
                    more = runs.repeated(results[k].candidate, splits, 0, range(1, DRAWS))
                    results[k] = with_repetitions(results[k], [more])
                done.add(k)
                tick(1)


def small(best: Candidate, thirds: Thirds) -> str:
    """The warning of `validate` on small sample counts, for the public file."""
    by_record = job_of(best.recommended).by_record
    crosstab = take_census(by_record, TableSource(thirds.table, text_only=thirds.text_only)).crosstab
    return "; ".join(map(str, noisy_counts.cautions(by_record, noisy_counts.count_small(by_record, crosstab))))


def write_recommended(rehearsal: Rehearsal, out: Path) -> str:
    """The job with the recommended mechanism, as a file in `out`, with its own input and reference."""
    best, job = rehearsal.best, rehearsal.job
    terms: dict[str, Any] = {"dataset": job.dataset, "period": job.period}
    terms |= {"input": _named(job.input.model_dump(mode="json", exclude_unset=True), out)}
    terms |= best.candidate.recommended
    if "path" in terms.get("reference", {}):
        terms["reference"] = _named(terms["reference"], out)
    score = f"score {best.score:.2f} over {best.draws} draws"
    head = [f"{rehearsal.verdict}: {best.candidate.label}, {best.candidate.guarantee}; {score}."]
    head += [
        f"Median error of the worst statistic: {best.error:.2f} direct standard errors on a third of {rehearsal.source}."
    ]
    if rehearsal.confirmed is not None:
        coverage = f"intervals cover {rehearsal.confirmed.coverage:.2f} of the truth"
        head += [f"On another third of the file: {rehearsal.confirmed.error:.2f}; {coverage}."]
    head += [f"Caution: in the public file {rehearsal.caution}"] if rehearsal.caution else []
    head += [f"Not judged: {rehearsal.unjudged}."] if rehearsal.unjudged else []
    head += ["Changed from the job:" if best.candidate.changed else "Nothing is changed in the job."]
    head += [f"  {change}" for change in best.candidate.changed]
    return "".join(f"# {line}\n" for line in head) + as_yaml({key: value for key, value in terms.items() if value})


def _named(settings: dict[str, Any], out: Path) -> dict[str, Any]:
    return settings | ({"path": os.path.relpath(settings["path"], out)} if settings.get("path") else {})


def _csv(trials: Sequence[Trial]) -> str:
    if not trials:
        return ",".join(COLUMNS) + "\n"
    rows = pd.concat([trial.cells for trial in trials])[list(COLUMNS)]
    rows = rows.assign(covered=rows["covered"].map({1.0: "true", 0.0: "false"}))
    return str(rows.to_csv(index=False, float_format="%.6g"))


LEAST_DRAWN = 0.01
"""Smallest error drawn on the logarithmic scale; smaller errors are drawn at this value."""


def page(rehearsal: Rehearsal) -> str:
    """One HTML document that loads nothing."""
    template = environment("dpdist.studies").get_template("rehearsal.html")
    rows = [(trial, row) for trial in rehearsal.trials for row in trial.by_statistic.to_dict("records")]
    confirmed = [] if rehearsal.confirmed is None else rehearsal.confirmed.by_statistic.to_dict("records")
    from dpdist.studies.figures import inline

    chart = Markup(inline(figure(rehearsal.trials), "errors", "Errors by mechanism"))
    return template.render(
        rehearsal=rehearsal,
        best=rehearsal.best,
        rows=rows,
        confirmed=confirmed,
        rule=RULE,
        figure=chart,
        refused=by_reason(rehearsal.refused),
        advice=advice(rehearsal),
        shown=shown,
    )


def shown(coverage: float) -> str:
    return "–" if np.isnan(coverage) else f"{coverage:.2f}"


def by_reason(refused: Sequence[RefusedCandidate]) -> dict[str, str]:
    """Labels of mechanisms that were not run, by reason."""
    reasons = dict[str, list[str]]()
    for refusal in refused:
        reasons.setdefault(refusal.reason.replace(f"'{refusal.label.partition(' ')[0]}'", "the mechanism"), []).append(
            refusal.label
        )
    return {reason: ", ".join(labels) for reason, labels in reasons.items()}


def figure(trials: list[Trial]) -> str:
    """Boxes of |error| over cells, in direct standard errors, by mechanism."""
    from matplotlib.figure import Figure

    sizes = [trial.cells["error_in_direct_se"] for trial in trials]
    boxes = [errors[np.isfinite(errors)].clip(lower=LEAST_DRAWN) for errors in sizes]
    figure = Figure(figsize=(7.5, 0.8 + 0.4 * len(trials)), layout="constrained")
    axes = figure.subplots()
    axes.boxplot(boxes, orientation="horizontal", tick_labels=[trial.candidate.label for trial in trials], whis=(0, 100))
    axes.axvline(1.0, color="#0b5394", linewidth=1.0)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("|error| in direct standard errors, all cells and statistics")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
