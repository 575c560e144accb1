"""The command line: parses and prints; every verb is a function of the package."""

from __future__ import annotations

import json
import resource
import signal
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, cast, get_args

import typer
from rich.text import Text

from dpdist.cli import approve, cluster, diff, init, ledger, rehearse, stan, verify
from dpdist.cli import report as reporting
from dpdist.cli.cautions import cautions
from dpdist.cli.console import guarded, out
from dpdist.cli.listening import listening
from dpdist.cli.observing import observed, read_status, status_lines
from dpdist.cli.table_text import facts_text
from dpdist.core.errors import JobError, Problem
from dpdist.evaluation.auditing import audit as audit_workspace
from dpdist.evaluation.auditing import bound_from_outside, refuse_losses
from dpdist.evaluation.calibrate import calibrate as calibrate_job
from dpdist.job import Job, Measure
from dpdist.job.loading import find_job, load_job
from dpdist.job.yaml_lines import read_yaml
from dpdist.ledger.charging import terms
from dpdist.publish.opened import Release
from dpdist.release import publish as publish_workspace
from dpdist.release import run as run_job
from dpdist.release import validate as validate_job
from dpdist.runtime.expected_noise import needed, warned
from dpdist.studies.file import load_study
from dpdist.studies.run import run as run_study

app = typer.Typer(
    help="Publish survey tables and synthetic records from confidential microdata, with the privacy spent stated.\n\n"
    "A job file names the data, the survey design, the model, the tables and the budget. [bold]validate[/] and "
    "[bold]plan[/] spend nothing. [bold]run[/] spends the job's budget once. It leaves WORKSPACE/public (to publish) and "
    "WORKSPACE/confidential (to guard). [bold]publish[/] makes the public folder again at no cost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"dpdist {version('dpdist')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print dpdist's version, and end.")
    ] = False,
) -> None:
    pass


app.add_typer(cluster.app, name="cluster")
app.add_typer(ledger.app, name="ledger")
app.add_typer(stan.app, name="stan")
for verb in (
    *(init.init, rehearse.rehearse, verify.verify, verify.sign, verify.keygen),
    *(diff.diff, approve.approve),
):
    app.command()(verb)

JobFile = Annotated[str, typer.Argument(metavar="JOB", help="A YAML job file, or the name of a shipped job (doctorates).")]
StudyFile = Annotated[
    str, typer.Argument(metavar="STUDY", help="A YAML study file, or the name of a shipped study (global_dp_beta).")
]
WorkspaceFolder = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="The folder of a run, or its URL (s3://bucket/prefix).")
]
InputFile = Annotated[Path | None, typer.Option("--input", help="Parquet or CSV file to read instead of the job's input.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the job, dotted, and its value as YAML; may be repeated."),
]
Replay = Annotated[
    str | None, typer.Option("--replay", help="WORKSPACE/confidential of a run to reproduce, byte for byte.")
]
Replicates = Annotated[int | None, typer.Option("--replicates", min=1, help="Number of replicates; unset: the study's.")]
Log = Annotated[
    str | None,
    typer.Option("--log", envvar="DPDIST_LOG", help="File for one JSON line an event and task; - for standard error."),
]
Metrics = Annotated[
    str | None, typer.Option("--metrics", envvar="DPDIST_METRICS", help="host:port to serve Prometheus figures on.")
]
WithEvaluation = Annotated[bool, typer.Option("--confidential", help="Add the evaluation, for the custodian's eyes only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON event a line on standard output.")]
ShowValues = Annotated[
    bool, typer.Option("--show-values", help="Show confidential values in error messages, on this screen only.")
]


@app.command()
def validate(
    job: JobFile,
    input: InputFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
    show_values: ShowValues = False,
) -> None:
    """Check a job against its data: schema, design, public domains, sizes. Nothing is spent or written."""

    def act() -> None:
        with listening(quiet, as_json=False) as listener:
            plan = validate_job(load_job(job, settings), input, listener)
        if not quiet:
            out.print(reporting.valid_text(plan))
            for name, said in terms(plan.job, plan.promise.total).items():
                out.print(f"{name}: {said}", markup=False)
            for caution in [*cautions(plan), *warned(plan)]:
                out.print(f"caution: {caution}", markup=False)

    guarded(act, show_values)


@app.command()
def plan(
    job: JobFile,
    input: InputFile = None,
    settings: Settings = None,
    error: Annotated[
        float | None,
        typer.Option("--for-error", help="Tell the ε at which the median cell has this noise, in direct standard errors."),
    ] = None,
    show_values: ShowValues = False,
) -> None:
    """Show strata, memory, guarantee, cost and expected noise of a run, before it."""

    def act() -> None:
        if error is not None and not 0.0 < error < float("inf"):
            problem = Problem("--for-error", f"{error:g}", "direct standard errors, a number above 0", "give .5, say")
            raise JobError(job, [problem])
        with listening(quiet=False, as_json=False) as listener:
            found = validate_job(load_job(job, settings), input, listener)
        out.print(reporting.plan_text(found) if error is None else needed(found, error), markup=False)

    guarded(act, show_values)


@app.command()
def run(
    job: JobFile,
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", help="Folder, or s3://bucket/prefix, for everything the run leaves.")
    ],
    input: InputFile = None,
    settings: Settings = None,
    replay: Replay = None,
    scheduler: cluster.Scheduler = None,
    tls: cluster.Tls = None,
    log: Log = None,
    metrics: Metrics = None,
    quiet: Quiet = False,
    as_json: Json = False,
    show_values: ShowValues = False,
) -> None:
    """Protect, then publish. Spends the job's budget; killed, the same command resumes."""

    def act() -> None:
        with listening(quiet, as_json) as shown, observed(workspace, log, metrics, shown) as listener:
            said: Job = cluster.placed(load_job(job, settings), scheduler, tls)
            public = run_job(said, workspace, input, replay, listener)
        reporting.write_page(workspace)
        if as_json:
            print(json.dumps(_ended(public)))
        elif not quiet:
            out.print(reporting.run_text(workspace))
            if out.file.isatty():  # a file or a pipe may be read by others than the custodian
                out.print(reporting.verdict(workspace))

    guarded(act, show_values, as_json)


@app.command()
def publish(
    workspace: WorkspaceFolder,
    job: Annotated[str | None, typer.Option("--job", help="A job file whose labels and tables are taken.")] = None,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make tables, microdata and statement again from what was released. Spends nothing, reads no record."""

    def act() -> None:
        if job is None and settings:
            problem = Problem("--set", "keys of a job, and no job", "--set beside --job", "name the job by --job")
            raise JobError("of publish", [problem])
        with listening(quiet, as_json) as listener:
            said = load_job(job, settings) if job is not None else None
            public = publish_workspace(workspace, listener, said)
        if as_json:
            print(json.dumps(_ended(public)))
        elif not quiet:
            out.print(f"{'Held' if public.held else 'Published again'}: {public}", markup=False)

    guarded(act, as_json=as_json)


def _ended(made: Release) -> dict[str, str]:
    """The last event of a verb that publishes, or holds."""
    return {"event": "held" if made.held else "done", "held" if made.held else "public": str(made)}


@app.command()
def report(
    workspace: WorkspaceFolder,
    confidential: WithEvaluation = False,
    page: Annotated[
        bool,
        typer.Option("--open", help="Write confidential/report.html again, and open it, for the custodian's eyes only."),
    ] = False,
) -> None:
    """Show a release as text: guarantee, tables, and on request the confidential evaluation, also as a page."""

    def act() -> None:
        if not page:
            out.print(reporting.report_text(workspace, confidential))
            return
        path = reporting.page_to_open(workspace)
        out.print(f"{path} (confidential)", markup=False)
        typer.launch(path.as_uri())

    guarded(act)


@app.command()
def status(workspace: WorkspaceFolder, as_json: Json = False) -> None:
    """Show how far a run is, or how it ended; may be asked from another machine. Tells nothing confidential."""

    def act() -> None:
        said = read_status(workspace)
        out.print_json(data=said) if as_json else out.print(facts_text(status_lines(said)))

    guarded(act)


@app.command()
def audit(
    workspace: WorkspaceFolder,
    records: Annotated[int, typer.Option("--records", min=1, help="Records of each stratum to leave out.")] = 8,
    all_rules: Annotated[bool, typer.Option("--all-rules", help="Every weight rule, not only the release's own.")] = False,
    draws: Annotated[
        int | None,
        typer.Option("--draws", min=100, help="Draw so many releases with and without a record; tell them apart."),
    ] = None,
    confidential: Annotated[
        bool, typer.Option("--confidential", help="Show the result, for the custodian's eyes only.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Leave records of a finished release out, one at a time, and compare what that changes with the bound. Spends nothing.

    Exact, for tilted posteriors of the lognormal model. With --draws: a lower bound on ε from outside, for any mechanism.
    Results go to the confidential folder. Exit code 1 where a loss is over what is claimed, or nothing was audited.
    """

    def act() -> None:
        with listening(quiet, as_json=False) as listener:
            if draws is None:
                audited = audit_workspace(workspace, records, all_rules, listener)
            else:
                audited = bound_from_outside(workspace, draws, listener)
        if confidential:
            out.print(reporting.audit_text(audited) if draws is None else reporting.lower_bounds_text(audited))
        elif not quiet:
            out.print("Audited: see confidential/evaluation/audit-*.parquet, or add --confidential.")
        refuse_losses(workspace, audited)

    guarded(act)


@app.command()
def calibrate(
    job: JobFile,
    out_file: Annotated[Path, typer.Option("--out", "-o", help="The calibration file, for later periods' jobs.")],
    reference: Annotated[
        Path | None, typer.Option("--reference", help="Public file to tune on; unset: the job's reference.")
    ] = None,
    period: Annotated[
        str | None, typer.Option("--period", help="Period of that file; unset: the job's reference.period.")
    ] = None,
    measure: Annotated[str, typer.Option("--measure", help="max_ecdf, avg_ecdf, mean or median.")] = "max_ecdf",
    replicates: Annotated[int, typer.Option("--replicates", min=1, help="Draws of the mechanism per try and stratum.")] = 4,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Tune a mechanism's constants on a public reference period. Spends nothing, never opens the job's input."""

    def act() -> None:
        if measure not in get_args(Measure):
            near = ", ".join(get_args(Measure))
            raise JobError(job, [Problem("--measure", f"'{measure}' is not known", near, "take one of these")])
        with listening(quiet, as_json=False) as listener:
            made = calibrate_job(
                load_job(job, settings), out_file, reference, cast(Measure, measure), replicates, listener, period
            )
        if not quiet:
            out.print(f"Calibrated in {made.tried} tries, {made.measure} {made.loss:g}: {out_file}", markup=False)

    guarded(act, show_values=True)


@app.command()
def study(
    file: StudyFile,
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for results and page.")],
    replicates: Replicates = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the public files that a study of files reads.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run mechanisms on simulated data, or releases of public files.

    Writes summary.csv, replicates.parquet, index.html. Killed, the same command resumes."""

    def act() -> None:
        with listening(quiet, as_json) as listener:
            folder = run_study(load_study(file), out_folder, replicates, listener, data)
        if as_json:
            print(json.dumps({"event": "done", "page": str(folder / "index.html")}))
        elif not quiet:
            out.print(f"Summary, replicates and page: {folder / 'index.html'}", markup=False)

    guarded(act, show_values=True, as_json=as_json)


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of a shipped job, or a YAML job file.")],
) -> None:
    """Print the text of a shipped job, or of a file, as it stands."""
    guarded(lambda: out.print(Text(read_yaml(find_job(job), JobError)), end=""))


@app.command()
def schema() -> None:
    """Print the JSON schema of a job file, for editors."""
    print(json.dumps(Job.model_json_schema(), indent=2))


def main() -> None:
    """SIGTERM ends a command as Ctrl-C does, also the first process of a container, which would not hear it otherwise.

    No process of a command leaves its memory, records and keys in it, on a disk as a core file.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, _as_interrupt)
    app()


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
