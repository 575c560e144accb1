"""The command `dpdist rehearse`: tries the mechanisms that a job allows on public data, and recommends one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.console import RESUMES, guarded, out
from dpdist.cli.listening import listening
from dpdist.cli.options import Json, Quiet
from dpdist.core.errors import WorkspaceError


def rehearse(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A YAML job file, or the name of a shipped job (doctorates).")],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, the CSV files and the recommended job.")],
    public: Annotated[
        Path | None, typer.Option("--public", help="A public file with the job's columns; unset: the job's reference.")
    ] = None,
    records: Annotated[
        int | None, typer.Option("--records", min=6, help="Use at most this many of its records, chosen at random.")
    ] = None,
    chains: Annotated[
        bool, typer.Option("--chains", help="Also try mechanisms that draw by Markov chains; needs a compiler, takes long.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A key of the job, dotted, and its value as YAML; may be repeated."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the mechanisms that a job allows on thirds of a public file, and recommend one. Spends nothing.

    The job's input is never opened. Writes rehearsal.csv, confirmation.csv, index.html, recommended.yaml. The first of them
    grows with every mechanism. If it is killed, the same command resumes it."""

    def act() -> None:
        with listening(quiet, as_json) as listener:
            from dpdist.job.loading import load_job
            from dpdist.studies.rehearsal import RECOMMENDED
            from dpdist.studies.rehearsal import rehearse as rehearse_job
            from dpdist.studies.rehearsal_trials import advice

            if Path(job).resolve() == (to / RECOMMENDED).resolve():
                remedy = "choose another folder, or rename the job file"
                raise WorkspaceError(str(to), f"the rehearsal would replace its own job file, {RECOMMENDED}", remedy, 2)
            made = rehearse_job(load_job(job, settings), to, public, records, listener, chains=chains)
        if as_json:
            best = {"good": made.good, "mechanism": made.best.candidate.label}
            print(json.dumps({"event": "done", "page": str(to / "index.html"), **best}))
        if quiet or as_json:
            return
        for trial in made.trials:
            drawn = f"{trial.draws} draw{'s' if trial.draws > 1 else ''}"
            errors = f"score {trial.score:.2f} ({drawn}), median error {trial.error:.2f} direct SE, "
            covered = f"coverage of the truth {trial.coverage:.2f} (of the worst statistic), {trial.seconds:.0f} s a draw"
            out.print(f"{trial.candidate.label} ({trial.candidate.guarantee}): {errors}{covered}", markup=False)
        out.print("A score of at most 1 is good enough (rule: on the page).", markup=False)
        out.print(f"{made.verdict}: {made.best.candidate.label}", markup=False)
        if (again := made.confirmed) is not None:
            errors = f"score {again.score:.2f}, median error {again.error:.2f} direct SE, coverage {again.coverage:.2f}"
            out.print(f"On the other third: {errors}", markup=False)
        for line in advice(made):
            out.print(f"What to change: {line}", markup=False)
        for line in made.best.candidate.changed:
            out.print(f"Changed: {line}", markup=False)
        if made.caution:
            out.print(f"caution: in the public file {made.caution}", markup=False)
        if made.unjudged:
            out.print(f"not judged: {made.unjudged}", markup=False)
        out.print(f"{to / 'index.html'}, {to / 'recommended.yaml'}", markup=False)

    guarded(act, show_values=True, as_json=as_json, afterwards=RESUMES)
