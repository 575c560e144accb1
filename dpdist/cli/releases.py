"""The commands on a release: `validate`, `plan`, `run`, `publish`, `report`, `status`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpdist.cli import cluster, scheduled as schedule
from dpdist.cli.console import (
    ANEW,
    RESUMES,
    InputFile,
    JobFile,
    Json,
    JsonAnswer,
    Log,
    Metrics,
    Quiet,
    QuietButLedger,
    Replay,
    Settings,
    ShowValues,
    Traces,
    WithEvaluation,
    WorkspaceFolder,
    answer,
    best_effort,
    errors_reported,
    out,
)
from dpdist.cli.listening import listening
from dpdist.core.cautions import described
from dpdist.core.errors import JobError, Problem, ProblemsError
from dpdist.core.progress import Event

if TYPE_CHECKING:
    from dpdist.job import Job
    from dpdist.publish.opened import Release

REFUSED = 4
"""Exit code of a run whose release is held, because its confidential verdict says "do not publish"."""
NO_PAGE = "confidential/report.html was not written"


def _read_job(job: str | Path, settings: Sequence[str] | None, input: Path | None = None) -> Job:
    """Reads and checks the job. Raises `JobError`.

    If the job is refused for a column, the names of the file's columns are read. The problem then states that the file has
    no such column, if that is the cause.
    """
    from dpdist.job.loading import freeze, resolve

    resolved = resolve(job, settings)
    try:
        return freeze(resolved)
    except JobError as error:
        of_columns = any(problem.where.startswith("columns.") for problem in error.problems)
        absent = _absent(resolved.keys, input) if of_columns else {}
        problems = [absent.get(problem.where, problem) for problem in error.problems]
        raise JobError(error.source, problems) from None


def _absent(keys: Mapping[str, Any], input: Path | None) -> dict[str, Problem]:
    """Returns problems by key of the job: a weight or an outcome that is not a column of the file."""
    from pydantic import ValidationError

    from dpdist.job.data import Input
    from dpdist.job.yaml_lines import keys_of
    from dpdist.survey.schema import missing_column
    from dpdist.survey.source import open_file

    try:
        settings = Input.model_validate(keys.get("input") or {})
        path = input or settings.path
        names = list(open_file(Path(path), settings).columns) if path else []
    except (ProblemsError, ValidationError):
        return {}
    weight, outcome, columns = keys_of(keys.get("survey")).get("weight"), keys.get("outcome"), keys.get("columns")
    numbers = [name for name in (weight, *(outcome if isinstance(outcome, list) else [outcome])) if isinstance(name, str)]
    if {*keys_of(columns), *numbers}.isdisjoint(names):
        return {}  # the first line may be a record, which is never shown
    return {f"columns.{name}": missing_column(name, names) for name in numbers if name not in names}


def validate(
    job: JobFile,
    input: InputFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: JsonAnswer = False,
    show_values: ShowValues = False,
) -> None:
    """Check a job against its data. Checks schema, design, public domains and sizes; nothing is spent or written."""

    with errors_reported(show_values, as_json, ANEW):
        with listening(quiet, as_json, answers=True) as listener:
            from dpdist.cli.caution_lines import caution_lines
            from dpdist.cli.plan_text import clipped, for_custodian, valid_text
            from dpdist.ledger.runs import terms
            from dpdist.release import cautions, validate as validate_job

            plan = validate_job(_read_job(job, settings, input), input, listener)
            account = terms(plan.job, plan.promise.total)
            cautions_found = cautions(plan)
        if as_json:
            shares = {"clipped": clipped(plan)} if clipped(plan) else {}
            answer({"valid": True, **account, **shares, **described(cautions_found)})
        elif not quiet:
            out.print(valid_text(plan))
            for name, line in {**for_custodian(plan), **account}.items():
                out.print(f"{name}: {line}", markup=False)
            for line in caution_lines(cautions_found, out.width - len("caution: ")):
                out.print(f"caution: {line}", markup=False)


def plan(
    job: JobFile,
    input: InputFile = None,
    settings: Settings = None,
    error: Annotated[
        float | None,
        typer.Option("--for-error", help="Find the smallest ε with median errors of at most this."),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="With --for-error: for this table only.")] = None,
    public: Annotated[
        Path | None, typer.Option("--public", help="Public file to predict from, if there is no reference.")
    ] = None,
    alternative_changes: Annotated[
        bool,
        typer.Option("--alternatives", help="Show errors under other objectives and tables."),
    ] = False,
    opened: Annotated[bool, typer.Option("--open", help="Write JOB.plan.html with all errors, and open it.")] = False,
    as_json: JsonAnswer = False,
    show_values: ShowValues = False,
) -> None:
    """Predict errors; show guarantee and cost. Nothing is spent."""
    from dpdist.cli.plan_text import needed_text, plan_json, plan_text
    from dpdist.core.files import write_text
    from dpdist.quality.predicted.alternatives import alternatives
    from dpdist.quality.predicted.page import page
    from dpdist.quality.predicted.prediction import predicted
    from dpdist.release import validate as validate_job

    with errors_reported(show_values, as_json, afterwards=ANEW):
        if error is not None and not 0.0 < error < float("inf"):
            raise JobError.of(job, "--for-error", f"{error:g}", "direct standard errors, a number above 0", "give .5, say")
        if error is not None and opened:
            remedy = "leave one of them out"
            raise JobError.of(
                job, "--open", "--for-error prints a single figure, and writes no page", "one of both", remedy
            )
        with listening(quiet=False, as_json=as_json, answers=True) as listener:
            checked = validate_job(_read_job(job, settings, input), input, listener)
            if error is not None:
                needed = needed_text(checked, error, table, listener, public)
            else:
                prediction = predicted(checked, listener, public)
                changes = alternatives(checked, listener) if alternative_changes else []
        if error is not None:
            answer(needed) if as_json else out.print(needed["in_words"], markup=False)
            return
        written = Path(f"{Path(job).stem}.plan.html").absolute()
        if opened:
            write_text(written, page(checked, prediction, public, changes))
        if as_json:
            page_entry = {"page": str(written)} if opened else {}
            answer({**plan_json(checked, prediction, changes), **page_entry})
        else:
            out.print(plan_text(checked, prediction, changes), markup=False)
            if opened:
                out.print(str(written), markup=False)
        if opened:
            typer.launch(written.as_uri())


def run(
    job: JobFile,
    workspace: Annotated[
        str,
        typer.Option(
            "--workspace",
            "-w",
            help="Folder, or s3://bucket/prefix, for the run.",
        ),
    ],
    input: InputFile = None,
    settings: Settings = None,
    replay: Replay = None,
    scheduler: cluster.Scheduler = None,
    tls: cluster.Tls = None,
    log: Log = None,
    metrics: Metrics = None,
    traces: Traces = None,
    period: schedule.Period = None,
    scheduled: schedule.Scheduled = None,
    quiet: QuietButLedger = False,
    as_json: Json = False,
    show_values: ShowValues = False,
) -> None:
    """Run a job: spend its budget, write a public folder. Repeat it to resume a run."""
    from dpdist.cli import report as reporting
    from dpdist.cli.observing import observed
    from dpdist.job.loading import in_path
    from dpdist.release import run as run_job

    with errors_reported(show_values, as_json, RESUMES):
        folder = workspace
        with listening(quiet, as_json) as progress, observed(lambda: folder, log, metrics, progress, traces) as listener:
            of_period = schedule.settings_of(job, settings, period, scheduled, workspace, input)
            placed: Job = cluster.placed(_read_job(job, of_period, input), scheduler, tls)
            folder = in_path(workspace, placed.period, "--workspace", job)
            file = input and Path(in_path(str(input), placed.period, "--input", job))
            heard = schedule.Heard(listener)
            public = run_job(placed, folder, file, replay, heard.hear)
            heard.refuse(scheduled, folder)
            if public.held:
                listener(Event("held", "release"))
        custodian_reads = out.file.isatty() and not quiet and not as_json  # others may read a file or a pipe
        if not quiet and not as_json:
            with best_effort("the release could not be shown", ""):
                out.print(reporting.released_line(folder, again=bool(heard.date)), markup=False)
        _for_custodian(folder, announced=True, verdict=custodian_reads)
        if as_json:
            print(json.dumps(_ended(public)))
        elif not quiet:
            hint = f"`dpdist report {folder}` shows it"
            with best_effort("the release could not be shown", hint):
                out.print(reporting.run_text(folder, heard.notes))
        waits = placed.held_on_a_verdict and public.held
        if not quiet and not as_json:
            _last_line(folder, waits, custodian_reads)
    if waits:  # after the block, which would say that the run failed
        raise typer.Exit(REFUSED)


def publish(
    workspace: WorkspaceFolder,
    job: Annotated[str | None, typer.Option("--job", help="Job file whose labels and tables replace the old ones.")] = None,
    settings: Settings = None,
    quiet: QuietButLedger = False,
    as_json: Json = False,
) -> None:
    """Rebuild the public folder from the released objects. Spends no budget and reads no record."""
    from dpdist.job.loading import load_job
    from dpdist.release import publish as publish_workspace

    with errors_reported(as_json=as_json, afterwards=RESUMES):
        if job is None and settings:
            raise JobError.of("of publish", "--set", "--set without a job", "--set beside --job", "name the job by --job")
        with listening(quiet, as_json) as listener:
            restated = load_job(job, settings) if job is not None else None
            public = publish_workspace(workspace, listener, restated, page=False)
        _for_custodian(workspace)
        if as_json:
            print(json.dumps(_ended(public)))
        elif not quiet:
            out.print(f"{'Held' if public.held else 'Published again'}: {public}", markup=False)


def _last_line(workspace: str, is_held: bool, custodian_reads: bool) -> None:
    """Prints what to do next. The custodian sees the line of the verdict before, unless it holds the release.

    The verdict is confidential, so it is printed for the custodian alone; others see where to find it.
    """
    from dpdist.cli import custodian

    verdict_hint = f"`dpdist report {workspace} --confidential` shows the verdict"

    if is_held:
        approve = f"read it with `dpdist report {workspace} --confidential`, and publish with"
        command = f"`dpdist approve {workspace} --reason '…'`"
        out.print(f"Held, because the confidential verdict says 'do not publish': {approve} {command}", markup=False)
        return
    if custodian_reads:
        with best_effort("no verdict could be reached", verdict_hint), custodian.evaluated(workspace) as evaluation:
            out.print(evaluation.verdict_line(), markup=False)
    out.print(f"Next: {verdict_hint} on its accuracy, which is confidential; then publish {workspace}/public", markup=False)


def _for_custodian(workspace: str, announced: bool = False, verdict: bool = False) -> None:
    """Writes the page for the custodian, if an evaluation was made, and shows the verdict on request.

    A failure here does not affect the release.
    """
    from dpdist.cli import custodian
    from dpdist.core.this_process import return_memory

    page = f"`dpdist report {workspace} --open` writes it again"

    with best_effort(NO_PAGE, page):
        return_memory()  # of the run, which the page does not need
        with custodian.evaluated(workspace) as evaluation:
            if announced or evaluation.exists:
                with best_effort(NO_PAGE, page):
                    evaluation.write_page()
            if verdict:
                hint = f"`dpdist report {workspace} --confidential` shows it"
                with best_effort("no verdict could be reached", hint):
                    out.print(evaluation.verdict())


def _ended(release: Release) -> dict[str, str]:
    return {"event": "held" if release.held else "done", "held" if release.held else "public": str(release)}


def report(
    workspace: WorkspaceFolder,
    confidential: WithEvaluation = False,
    page: Annotated[
        bool,
        typer.Option("--open", help="Write confidential/report.html again, and open it, for the custodian's eyes only."),
    ] = False,
) -> None:
    """Show a release's guarantee, tables and evaluation.

    The evaluation is confidential: --confidential shows it as text, --open as a web page.
    """

    with errors_reported():
        if not page:
            from dpdist.cli.report import report_text

            out.print(report_text(workspace, confidential))
            return
        from dpdist.cli import custodian

        path = custodian.page_to_open(workspace)
        out.print(f"{path} (confidential)", markup=False)
        typer.launch(path.as_uri())


def status(workspace: WorkspaceFolder, as_json: JsonAnswer = False) -> None:
    """Show how far a run has got, or how it ended. Works from another machine, too; shows nothing confidential."""
    from dpdist.cli.observing import read_status, status_lines
    from dpdist.cli.table_text import facts_text

    with errors_reported(as_json=as_json):
        facts = read_status(workspace)
        answer(facts) if as_json else out.print(facts_text(status_lines(facts)))
