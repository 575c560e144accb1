"""The rehearsal of a job: every mechanism that it allows, tried on thirds of a public file, and a recommendation.

One third serves as the current file, one as its reference, and one as the truth. The job's own input is never opened.
The recommended mechanism must also be good enough on another third, whose errors had no influence on the choice.
Results are stored at once, so that a killed rehearsal resumes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import DataError, DpdistError, FitError, JobError, Problem, WorkspaceError
from dpdist.core.files import exclusive, scratch, write_text
from dpdist.core.keys import digest
from dpdist.core.progress import Event, Listener, silent, stage
from dpdist.core.this_process import refuse_nested_start
from dpdist.job import Job
from dpdist.job.loading import job_of
from dpdist.job.yaml_lines import as_yaml
from dpdist.privacy import noisy_counts
from dpdist.quality.predicted.page import IN_ONE_FIGURE, rendered
from dpdist.quality.predicted.replicates import load_or_make
from dpdist.quality.report_parts import Grid, ReportFigure, Section, axis, cell, steps
from dpdist.runtime.executors import Executor, Serial, executor
from dpdist.studies.rehearsal_thirds import BY_CHANCE, FileThirds, Thirds, in_thirds, public_reference, public_source
from dpdist.studies.rehearsal_trials import (
    COLUMNS,
    DRAWS,
    OUT_OF_REACH,
    RULE,
    Candidate,
    RefusedCandidate,
    Rehearsal,
    Trial,
    advice,
    candidates,
    confirmed,
    trial,
    with_repetitions,
)
from dpdist.studies.run import versions
from dpdist.survey.census import take_census
from dpdist.survey.source import TableSource

STORED, LOCK = ".dpdist-rehearsal", ".dpdist-rehearsal.lock"
CSV, CONFIRMATION, RECOMMENDED, PAGE = "rehearsal.csv", "confirmation.csv", "recommended.yaml", "index.html"
NOISE = BY_CHANCE.child("noise")
"""The key of the trials' noise. Candidates have the same random numbers, as far as they draw alike."""
REFUSALS = (JobError, DataError, FitError)
"""Errors that follow from job and public file, and so recur when the rehearsal resumes."""


class PlannedTrial(NamedTuple):
    """A trial: a candidate, the third that is its current file, the number of the draw, and the files of the thirds."""

    candidate: Candidate
    current: int
    draw: int
    parts: FileThirds

    def make(self) -> Trial:
        return trial(self.candidate, self.parts, NOISE.child(str(self.current)).child(str(self.draw)))


@dataclass(frozen=True)
class TrialTask:
    """Trials, each with its stored result: a file for each release or refusal, named by all that it depends on.

    As a task, it makes one trial, and returns its number.
    """

    folder: Path
    identity: str
    """Checksum of job, public file, options and versions."""
    trials: Sequence[PlannedTrial] = ()

    def __call__(self, number: int) -> int:
        with suppress(DpdistError):  # the driver finds the stored refusal, or meets the error itself
            self.result(self.trials[number])
        return number

    def result(self, planned: PlannedTrial) -> Trial:
        """The stored result, or a new result, which is then stored. Raises `DpdistError` if it is refused."""

        def rows() -> pd.DataFrame:
            try:
                tried = planned.make()
            except REFUSALS as error:
                return pd.DataFrame({"refused": [in_one_line(error)]})
            return tried.cells.assign(suppressed=tried.suppressed, seconds=tried.seconds)

        of_trial = [self.identity, planned.candidate.label, planned.current, planned.draw]
        stored = load_or_make(digest(of_trial), rows, self.folder)
        if "refused" in stored:
            raise DpdistError(str(stored["refused"].iloc[0]))
        cells = stored.drop(columns=["suppressed", "seconds"])
        return Trial(planned.candidate, cells, int(stored["suppressed"].iloc[0]), float(stored["seconds"].iloc[0]))


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
        runs = Runs(thirds, folder, TrialTask(stored, digest(identity)), out / CSV, workers)
        trials, refused = run_trials(job, public_reference(job, public), runs, listener, chains)
        ordered, good, confirmations = confirmed(trials, lambda candidate: confirm(candidate, runs, refused, listener))
        caution = small(ordered[0].candidate, thirds)
        of_file = source.name, thirds.table.num_rows
        rehearsal = Rehearsal(job, *of_file, ordered, good, confirmations, refused, caution, thirds.caution)
        with stage(listener, "page", 1) as tick:
            write_text(out / CSV, _csv(ordered))
            write_text(out / CONFIRMATION, _csv([second for second in confirmations.values() if second is not None]))
            write_text(out / RECOMMENDED, write_recommended(rehearsal, out))
            write_text(out / PAGE, page(rehearsal))
            tick(1)
        return rehearsal


@dataclass(frozen=True)
class Runs:
    """The trials of a rehearsal: on which files, where results are stored, and who makes them."""

    thirds: Thirds
    folder: Path
    """A folder for files of the thirds."""
    results: TrialTask
    csv: Path
    workers: Executor

    @cached_property
    def parts(self) -> list[list[FileThirds]]:
        """The files for each choice of the current third; for odd draws reference and truth are exchanged."""
        places = [[(current, swapped) for swapped in (False, True)] for current in (0, 1)]
        return [
            [self.thirds.written(*which, self.folder / "third-{}-{:d}".format(*which)) for which in row] for row in places
        ]

    def planned(self, candidate: Candidate, current: int, draws: Iterable[int]) -> list[PlannedTrial]:
        return [PlannedTrial(candidate, current, draw, self.parts[current][draw % 2]) for draw in draws]

    def each(self, trials: Sequence[PlannedTrial]) -> Iterator[int]:
        """Numbers of trials, each when its result is stored; in this process, before the result is asked for."""
        numbers, task = range(len(trials)), replace(self.results, trials=trials)
        return iter(numbers) if isinstance(self.workers, Serial) else self.workers.map(task, numbers)

    def repeated(self, candidate: Candidate, current: int, draws: Iterable[int]) -> Trial:
        """Several releases, each under new noise; raises `DpdistError`."""
        wanted = self.planned(candidate, current, draws)
        trials = [self.results.result(wanted[number]) for number in sorted(self.each(wanted))]
        return with_repetitions(trials[0], trials[1:])

    def show(self, trials: Sequence[Trial]) -> None:
        write_text(self.csv, _csv(trials))


def run_trials(
    job: Job, ground: dict[str, Any], runs: Runs, listener: Listener, chains: bool = False
) -> tuple[list[Trial], list[RefusedCandidate]]:
    """Tries all mechanisms on one third, and those that may be best again. Raises `JobError` if none could be run."""
    allowed, refused = candidates(job, str(runs.parts[0][0].earlier), ground, chains)
    wanted = [planned for candidate in allowed for planned in runs.planned(candidate, 0, [0])]
    by_number, not_run = dict[int, Trial](), dict[int, RefusedCandidate]()
    with stage(listener, "rehearse", len(allowed)) as tick:
        for number in runs.each(wanted):
            label = allowed[number].label
            note = f"Candidate {number + 1} of {len(allowed)}: {label}"
            listener(Event("note", "rehearse", number, len(allowed), note))
            try:
                by_number[number] = runs.results.result(wanted[number])
                runs.show([by_number[k] for k in sorted(by_number)])
            except DpdistError as error:
                not_run[number] = RefusedCandidate(label, in_one_line(error))
            tick(1)
    refused += [not_run[number] for number in sorted(not_run)]
    if not by_number:
        reasons = "; ".join(f"{refusal.label}: {refusal.reason}" for refusal in refused[:3])
        problem = Problem("rehearsal", "no mechanism can be run on the public file", "", f"see why: {reasons}")
        raise JobError(job.dataset, [problem])
    trials = drawn_again([by_number[number] for number in sorted(by_number)], runs, listener)
    runs.show(trials)
    return trials, refused


def confirm(candidate: Candidate, runs: Runs, refused: list[RefusedCandidate], listener: Listener) -> Trial | None:
    """The candidate's draws on another third; None if it is refused there, which is added to the refused ones."""
    with stage(listener, "confirm", 1) as tick:
        try:
            return runs.repeated(candidate, 1, range(DRAWS))
        except DpdistError as error:
            refused.append(RefusedCandidate(f"{candidate.label}, on another third of the file", in_one_line(error)))
            return None
        finally:
            tick(1)


def drawn_again(trials: list[Trial], runs: Runs, listener: Listener) -> list[Trial]:
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
            again = range(1, DRAWS)
            for _ in runs.each([one for k in contenders for one in runs.planned(results[k].candidate, 0, again)]):
                pass
            for k in contenders:
                # Where the mechanism refuses a draw, the first one stays the only one.
                with suppress(DpdistError):
                    results[k] = with_repetitions(results[k], [runs.repeated(results[k].candidate, 0, again)])
                done.add(k)
                tick(1)


def small(best: Candidate, thirds: Thirds) -> str:
    """The warning of `validate` on small sample counts, for the public file."""
    by_record = job_of(best.recommended).by_record
    crosstab = take_census(by_record, TableSource(thirds.table, text_only=thirds.text_only)).crosstab
    return "; ".join(map(str, noisy_counts.cautions(by_record, crosstab, noisy_counts.count_small(by_record, crosstab))))


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
    rows = pd.concat([trial.cells for trial in trials])
    rows = pd.DataFrame({name: rows[source or name] for name, source in COLUMNS.items()})
    rows = rows.assign(covered=rows["covered"].map({1.0: "true", 0.0: "false"}))
    return str(rows.to_csv(index=False, float_format="%.6g"))


LEAST_DRAWN = 0.01
"""Smallest error drawn on the logarithmic scale; smaller errors are drawn at this value."""
READ = (
    "Errors and bias are in standard errors of a third's direct estimates. Coverage is the share of the true figures that "
    "the published 90 % intervals cover, and direct coverage that of the intervals of direct estimates. Both take the "
    "cells' numbers of records as given, and allow for the truth's own error. A figure that is not published counts as "
    "infinitely far off (inf), and as not covered. A whole file has three times the records of a third, so noise matters "
    "less there."
)
HEADINGS = {
    **{name: name for name in ("mechanism", "guarantee", "table", "statistic")},
    **{"median": "median error", "largest": "largest", "bias": "bias", "coverage": "coverage", "direct": "direct coverage"},
    **{"score": "score", "draws": "draws", "suppressed": "suppressed", "seconds": "seconds per draw"},
}


def page(rehearsal: Rehearsal) -> str:
    """One HTML document that loads nothing."""
    best, second = rehearsal.best, rehearsal.confirmed
    changed = [f"Changed: {change}" for change in best.candidate.changed] or ["Nothing is changed in the job."]
    first = Section("recommendation", "Recommendation", ["Its job is in recommended.yaml.", *changed])
    first.sentences += [f"Caution. In the public file {rehearsal.caution}"] if rehearsal.caution else []
    first.sentences += [f"Not judged. {rehearsal.unjudged}."] if rehearsal.unjudged else []
    chosen = "The mechanism was chosen by its errors on one third. On another, errors are not affected by that choice."
    every = Section("mechanisms", "All mechanisms", [READ, RULE], [_grid("Errors by mechanism", rehearsal.trials)])
    every.figures += _figures(rehearsal.trials)
    refused = [f"{labels}: {reason}" for reason, labels in by_reason(rehearsal.refused).items()]
    sections = [
        first,
        Section("advice", "What to change", [f"{line}." for line in advice(rehearsal)]),
        *([] if second is None else [Section("confirmation", "On another third", [chosen], [_grid("Errors", [second])])]),
        every,
        Section("refused", "Not run", refused),
    ]
    how = "one third was released, another was the reference, and the last one the truth; the job's input was not opened"
    facts = [("Public records", f"{rehearsal.source}, {rehearsal.records:,} records"), ("Trials", how)]
    title, score = f"Rehearsal of {rehearsal.job.dataset}", f"score {best.score:.2f} over {best.draws} draws"
    headline = f"{rehearsal.verdict}: {best.candidate.label} ({best.candidate.guarantee}), {score}"
    return rendered(title, facts, headline, [section for section in sections if section.sentences])


def _grid(caption: str, trials: Sequence[Trial]) -> Grid:
    rows = []
    for tried in trials:
        of_trial = {"mechanism": tried.candidate.label, "guarantee": tried.candidate.guarantee}
        of_trial |= {name: getattr(tried, name) for name in ("draws", "suppressed", "seconds")}
        rows.append(tried.by_statistic.assign(**of_trial))
    table = pd.concat(rows)[list(HEADINGS)].round(2)
    of_table = [[cell(value) for value in row] for row in table.itertuples(index=False)]
    return Grid(caption, list(HEADINGS.values()), of_table, stub=4)


def _figures(trials: Sequence[Trial]) -> Iterator[ReportFigure]:
    """Distributions of |error| over cells, a few mechanisms in a figure."""
    errors = {tried.candidate.label: tried.cells["error"].to_numpy(dtype=float) for tried in trials}
    finite = {label: size[np.isfinite(size)].clip(min=LEAST_DRAWN) for label, size in errors.items()}
    drawn = [(label, (size, None)) for label, size in finite.items() if len(size)]
    x = axis("|error| in direct standard errors, all cells and statistics", *(size for _, (size, _) in drawn))
    for start in range(0, len(drawn), IN_ONE_FIGURE):
        group = dict(drawn[start : start + IN_ONE_FIGURE])
        yield ReportFigure(f"Sizes of errors: {', '.join(group)}", steps("errors", x, group, "share of errors"))


def by_reason(refused: Sequence[RefusedCandidate]) -> dict[str, str]:
    """Labels of mechanisms that were not run, by reason."""
    reasons = dict[str, list[str]]()
    for refusal in refused:
        reasons.setdefault(refusal.reason.replace(f"'{refusal.label.partition(' ')[0]}'", "the mechanism"), []).append(
            refusal.label
        )
    return {reason: ", ".join(labels) for reason, labels in reasons.items()}
