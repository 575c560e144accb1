"""The commands that test mechanisms: `audit`, `calibrate`, `study`, `rehearse`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from dpdist.cli.console import (
    ANEW,
    RESUMES,
    JobFile,
    Json,
    Quiet,
    Replicates,
    Settings,
    StudyFile,
    errors_reported,
    out,
)
from dpdist.cli.listening import listening
from dpdist.core.errors import JobError, WorkspaceError


def audit(
    workspace: Annotated[str | None, typer.Argument(help="Folder or URL of a run; unset with --black-box.")] = None,
    records: Annotated[int, typer.Option("--records", min=1, help="Records per stratum.")] = 8,
    all_rules: Annotated[bool, typer.Option("--all-rules", help="Audit under every weight rule.")] = False,
    draws: Annotated[
        int | None,
        typer.Option("--draws", min=100, help="Bound ε from this many new releases."),
    ] = None,
    holdout: Annotated[
        Path | None,
        typer.Option("--holdout", help="File of people outside the survey, for attacks."),
    ] = None,
    black_box: Annotated[
        str | None,
        typer.Option("--black-box", metavar="JOB", help="Job to run on both files of --neighbours."),
    ] = None,
    neighbours: Annotated[
        tuple[Path, Path] | None, typer.Option("--neighbours", help="Two files that differ in one record.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=20, help="Releases of each file.")] = 400,
    confidential: Annotated[bool, typer.Option("--confidential", help="Show results, for the custodian only.")] = False,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare exact privacy losses of a release with its bound. Spends nothing.

    Losses are exact for posteriors of the lognormal model. For any mechanism, --draws and --black-box bound ε from below;
    --holdout attacks synthetic records. Exit code 1: a loss exceeds the claim, or nothing was audited.
    """

    def from_releases(job: str, files: tuple[Path, Path]) -> None:
        from dpdist.cli import custodian
        from dpdist.job.loading import load_job
        from dpdist.studies.black_box import loss_between, refuse_shown

        with listening(quiet, as_json) as listener:
            audited = loss_between(load_job(job, settings), *files, runs, listener)
        if as_json:
            print(json.dumps({"event": "done"}))
        elif confidential:
            out.print(custodian.audited_text("Two files", audited))
        elif not quiet:
            out.print("Audited: add --confidential to see the figures.")
        refuse_shown(audited)

    def of_run(workspace: str) -> None:
        with listening(quiet, as_json) as listener:
            from dpdist.audit.attacking import attack, refuse_shown
            from dpdist.audit.auditing import audit as audit_workspace, bound_from_outside, refuse_losses
            from dpdist.cli import custodian

            if holdout is not None:
                audited, title, refuse = attack(workspace, holdout, listener), "Attacks", refuse_shown
            elif draws is not None:
                audited, title, refuse = bound_from_outside(workspace, draws, listener), "Lower bounds", refuse_losses
            else:
                audited, title = audit_workspace(workspace, records, all_rules, listener), "Leave-one-out audit"
                refuse = refuse_losses
        if as_json:
            print(json.dumps({"event": "done", "tables": "confidential/evaluation/audit-*.parquet"}))
        elif confidential:
            out.print(custodian.audited_text(title, audited))
        elif not quiet:
            out.print("Audited: see confidential/evaluation/audit-*.parquet, or add --confidential.")
        refuse(workspace, audited)

    with errors_reported(as_json=as_json, afterwards=ANEW):
        options = {"--holdout": holdout is not None, "--draws": draws is not None, "--all-rules": all_rules}
        chosen = [
            *(["--black-box"] if black_box is not None else []),
            *(name for name, present in options.items() if present),
        ]
        if len(chosen) > 1:
            fault = f"{' and '.join(chosen)} are different audits"
            raise JobError.of("audit", chosen[-1], fault, "", "give one of them, and audit again for the other")
        if black_box is not None and neighbours is not None and workspace is None:
            from_releases(black_box, neighbours)
        elif workspace is not None and black_box is None and neighbours is None:
            of_run(workspace)
        else:
            fault = "audit a run's folder, or a job with two files"
            remedy = "write dpdist audit WORKSPACE, or dpdist audit --black-box JOB --neighbours FILE FILE"
            raise JobError.of("audit", "WORKSPACE", fault, "", remedy)


def calibrate(
    job: JobFile,
    out_file: Annotated[Path, typer.Option("--out", "-o", help="Calibration file for later jobs.")],
    reference: Annotated[Path | None, typer.Option("--reference", help="Public file; unset: the job's reference.")] = None,
    period: Annotated[str | None, typer.Option("--period", help="Period of the file; unset: as the job says.")] = None,
    measure: Annotated[str, typer.Option("--measure", help="max_ecdf, avg_ecdf, mean or median.")] = "max_ecdf",
    replicates: Annotated[int, typer.Option("--replicates", min=1, help="Draws per try.")] = 4,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune a mechanism's constants on a public reference period. Spends nothing, and never opens the job's input.

    It writes one file, at the end. If it is killed, it starts over."""
    from dpdist.job import Measure

    with errors_reported(show_values=True, as_json=as_json, afterwards=ANEW):
        if measure not in get_args(Measure):
            allowed = ", ".join(get_args(Measure))
            raise JobError.of(job, "--measure", f"'{measure}' is not a measure", allowed, "use one of these")
        with listening(quiet, as_json) as listener:
            from dpdist.job.loading import load_job
            from dpdist.quality.calibrate import calibrate as calibrate_job

            calibration = calibrate_job(
                load_job(job, settings), out_file, reference, cast(Measure, measure), replicates, listener, period
            )
        if as_json:
            print(
                json.dumps({"event": "done", "file": str(out_file), "tried": calibration.tried, "loss": calibration.loss})
            )
        elif not quiet:
            out.print(
                f"Calibrated in {calibration.tried} trials, {calibration.measure} {calibration.loss:g}: {out_file}",
                markup=False,
            )


def study(
    file: StudyFile,
    out_folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for results and page.")],
    replicates: Replicates = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder of the public files that the study reads.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study of mechanisms on simulated data or public files.

    Writes summary.csv, replicates.parquet, index.html. The study `papers` runs the studies of
    all five papers and writes one page. If it is killed, the same command resumes it."""

    with errors_reported(show_values=True, as_json=as_json, afterwards=RESUMES):
        with listening(quiet, as_json) as listener:
            from dpdist.studies.run import Overview, load, run as run_study, run_overview

            content = load(file)
            if isinstance(content, Overview):
                folder = run_overview(content, out_folder, replicates, listener, data)
            else:
                folder = run_study(content, out_folder, replicates, listener, data)
        if as_json:
            print(json.dumps({"event": "done", "page": str(folder / "index.html")}))
        elif not quiet:
            out.print(f"Summary, replicates and page: {folder / 'index.html'}", markup=False)


def rehearse(
    job: JobFile,
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, the CSV files and the recommended job.")],
    public: Annotated[Path | None, typer.Option("--public", help="Public file; unset: the job's reference.")] = None,
    records: Annotated[
        int | None, typer.Option("--records", min=6, help="Use at most this many records of the public file.")
    ] = None,
    chains: Annotated[bool, typer.Option("--chains", help="Also try mechanisms that run Markov chains (slow).")] = False,
    settings: Settings = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Try mechanisms on thirds of a public file, and recommend one. Spends nothing.

    The job's input is never opened. Writes rehearsal.csv (which grows with every mechanism tried), confirmation.csv,
    index.html, recommended.yaml. If it is killed, the same command resumes it."""

    with errors_reported(show_values=True, as_json=as_json, afterwards=RESUMES):
        with listening(quiet, as_json) as listener:
            from dpdist.job.loading import load_job
            from dpdist.studies.rehearsal import RECOMMENDED, rehearse as rehearse_job
            from dpdist.studies.rehearsal_trials import advice

            if Path(job).resolve() == (to / RECOMMENDED).resolve():
                remedy = "choose another folder, or rename the job file"
                raise WorkspaceError(str(to), f"the rehearsal would overwrite its own job file, {RECOMMENDED}", remedy, 2)
            rehearsal = rehearse_job(load_job(job, settings), to, public, records, listener, chains=chains)
        if as_json:
            best = {"good": rehearsal.good, "mechanism": rehearsal.best.candidate.label}
            print(json.dumps({"event": "done", "page": str(to / "index.html"), **best}))
        if quiet or as_json:
            return
        for trial in rehearsal.trials:
            draws = f"{trial.draws} draw{'s' if trial.draws > 1 else ''}"
            errors = f"score {trial.score:.2f} ({draws}), median error {trial.error:.2f} direct SE, "
            covered = f"coverage of the truth {trial.coverage:.2f} (of the worst statistic), {trial.seconds:.0f} s a draw"
            out.print(f"{trial.candidate.label} ({trial.candidate.guarantee}): {errors}{covered}", markup=False)
        out.print("A score of at most 1 is good enough; the page states the rule.", markup=False)
        out.print(f"{rehearsal.verdict}: {rehearsal.best.candidate.label}", markup=False)
        if (second := rehearsal.confirmed) is not None:
            errors = f"score {second.score:.2f}, median error {second.error:.2f} direct SE, coverage {second.coverage:.2f}"
            out.print(f"On another third of the file: {errors}", markup=False)
        for line in advice(rehearsal):
            out.print(f"What to change: {line}", markup=False)
        for line in rehearsal.best.candidate.changed:
            out.print(f"Changed: {line}", markup=False)
        if rehearsal.caution:
            out.print(f"caution: in the public file {rehearsal.caution}", markup=False)
        if rehearsal.unjudged:
            out.print(f"not judged: {rehearsal.unjudged}", markup=False)
        out.print(f"{to / 'index.html'}, {to / RECOMMENDED}", markup=False)
