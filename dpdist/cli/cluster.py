"""The command `dpdist cluster`: certificates, scheduler, workers, and Kubernetes manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpdist.cli.console import InputFile, Settings, errors_reported, out
from dpdist.core.errors import JobError, Problem

if TYPE_CHECKING:
    from dpdist.job import Job

PORT, HTTP = 8786, "127.0.0.1:0"
PATIENCE = 300.0
"""Seconds that a worker searches for its scheduler."""

app = typer.Typer(
    help="Run a cluster: certificates, scheduler, workers, manifests. Whoever holds a certificate of the cluster can run "
    "code on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", envvar="DPDIST_SCHEDULER", help="tls://host:port."),
]
Tls = Annotated[
    Path | None,
    typer.Option("--tls", envvar="DPDIST_TLS", help="Folder of certificates."),
]
RoleFolder = Annotated[Path, typer.Option("--tls", envvar="DPDIST_TLS", help="Certificates of this role.")]
Http = Annotated[str, typer.Option("--http", help="host:port for /health and /metrics.")]
NamedJob = Annotated[str, typer.Argument(metavar="JOB", help="A YAML job file, or the name of a shipped job.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Largest number of workers; tasks may need fewer.")]
JsonLogs = Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")]


def placed(job: Job, scheduler: str | None, tls: Path | None) -> Job:
    """Returns the job with runtime settings that send its tasks to the given scheduler.

    Raises `JobError` for an address or an unencrypted link that is not allowed.
    """
    from dpdist.job.checks import scheduler_contradictions

    if scheduler is None and (tls is None or job.runtime.scheduler is None):
        return job
    settings = {
        "executor": "dask",
        "scheduler": scheduler or job.runtime.scheduler,
        "tls": str(tls) if tls else job.runtime.tls,
    }
    runtime = job.runtime.model_copy(update=settings)
    problems = [
        Problem(
            ".".join(map(str, against.where)), against.fault, "an encrypted link to a running scheduler", against.remedy
        )
        for against in scheduler_contradictions(runtime)
    ]
    if problems:
        raise JobError("--scheduler", problems)
    return job.model_copy(update={"runtime": runtime})


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the authority and a folder for each role.")],
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="Validity of the roles' certificates, in days.")
    ] = 365,
    new_authority: Annotated[
        bool,
        typer.Option("--new-authority", help="Also replace the authority; both are trusted until the old one expires."),
    ] = False,
) -> None:
    """Make or renew the certificates of a cluster: DIR/scheduler, DIR/worker, DIR/driver."""
    from dpdist.runtime.tls import AUTHORITY, make_certificates

    with errors_reported():
        for certificate in make_certificates(folder, days, new_authority):
            out.print(str(certificate), markup=False)
        out.print(f"Keep {folder / AUTHORITY} where no machine of the cluster can read it.", markup=False)


@app.command()
def scheduler(
    tls: RoleFolder,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = PORT,
    http: Http = HTTP,
    as_json: JsonLogs = False,
) -> None:
    """Run the scheduler until SIGTERM. It stores nothing: after a restart, drivers submit their tasks again."""
    from dpdist.runtime import services

    with errors_reported():
        services.serve_scheduler(host, port, tls, http, as_json)


@app.command()
def worker(
    scheduler: Annotated[str, typer.Argument(envvar="DPDIST_SCHEDULER", help="tls://host:port of the scheduler.")],
    tls: RoleFolder,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; unset: chosen automatically.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65534, help="First of two consecutive ports; 0: any.")] = 0,
    name: Annotated[
        str | None, typer.Option("--name", envvar="DASK_WORKER_NAME", help="Name of the worker; unset: its address.")
    ] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory, as in 2GiB; unset: the container's.")] = None,
    http: Http = HTTP,
    patience: Annotated[float, typer.Option("--patience", min=0, help="Seconds to wait for a scheduler.")] = PATIENCE,
    as_json: JsonLogs = False,
) -> None:
    """Run one worker (one process, one thread) until SIGTERM. A worker that loses the scheduler looks for it again."""
    from dpdist.runtime import services

    with errors_reported():
        services.serve_worker(scheduler, tls, host, port, name, _bytes(memory), as_json, http=http, patience=patience)


@app.command()
def size(
    job: NamedJob,
    input: InputFile = None,
    workers: Workers = 32,
    settings: Settings = None,
) -> None:
    """Print requests and limits of a job's workers, computed from its plan, as a patch for deploy/base (JSON is YAML)."""
    from dpdist.cli.manifests import worker_patch
    from dpdist.job.loading import load_job
    from dpdist.release import validate

    with errors_reported():
        print(json.dumps(worker_patch(validate(load_job(job, settings), input), workers), indent=2))


@app.command()
def manifests(
    job: NamedJob,
    namespace: Annotated[str, typer.Option("--namespace", help="Namespace that only this release uses.")],
    image: Annotated[str, typer.Option("--image", help="Image, with a digest or a unique tag.")],
    input: Annotated[Path | None, typer.Option("--input", help="File to plan for instead of the job's input.")] = None,
    workers: Workers = 32,
    workspace: Annotated[
        str, typer.Option("--workspace", help="A folder below /workspace, or s3://BUCKET/PREFIX.")
    ] = "/workspace/release",
    storage_class: Annotated[str | None, typer.Option("--storage-class", help="Storage class with ReadWriteMany.")] = None,
    store: Annotated[list[str] | None, typer.Option("--store", help="Addresses of the bucket's store (CIDR).")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Region of the bucket.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="URL of a store that is not Amazon's.")] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="CIDR:port of the ledger in secret dpdist-ledger."),
    ] = None,
    job_file: Annotated[
        Path | None,
        typer.Option("--job-file", help="File for a job above 1 MiB; copy it to dpdist-input."),
    ] = None,
    settings: Settings = None,
) -> None:
    """Print everything that Kubernetes needs for one job, sized by its plan: for `kubectl apply -f`."""
    from dpdist.cli.manifests import ManifestPlace, head, objects_of, text
    from dpdist.core.errors import WorkspaceError
    from dpdist.core.files import write_text
    from dpdist.job.loading import freeze, resolve
    from dpdist.job.yaml_lines import flow
    from dpdist.release import validate

    place = ManifestPlace(namespace, image, workers, workspace, storage_class, tuple(store or ()), region, endpoint, ledger)

    with errors_reported():
        resolved = resolve(job, settings).of_period()
        plan = validate(freeze(resolved), input)
        if input is not None:
            resolved = resolved.with_settings([f"input.path={flow(str(input))}", "input.simulate=null"])
        objects, content = objects_of(plan, resolved, place, job_in_claim=job_file is not None)
        if job_file is not None and content is not None:
            if Path(job).resolve() == job_file.resolve():
                raise WorkspaceError(str(job_file), "the job is read from it", "name another file")
            write_text(job_file, content)
        print(text(objects, head(plan.job, resolved, place, job_file)), end="")


def _bytes(size: str | None) -> int | None:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if size is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise JobError.of(
            "cluster worker", "--memory", f"'{size}'", "a size as 2GiB or 1500MiB", "write one of these"
        ) from None
