"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option(
        "--log", envvar="DPDIST_LOG", help="Log file: one line of JSON for each event or task; - is standard error."
    ),
]
Metrics = Annotated[
    str | None, typer.Option("--metrics", envvar="DPDIST_METRICS", help="host:port to serve Prometheus figures on.")
]
Traces = Annotated[
    str | None,
    typer.Option("--traces", envvar="DPDIST_TRACES", help="URL of an OpenTelemetry collector (OTLP over HTTP) for spans."),
]
WithEvaluation = Annotated[bool, typer.Option("--confidential", help="Add the evaluation, for the custodian's eyes only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
QuietButLedger = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors, and what a ledger failed to record.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON event a line on standard output.")]
ShowValues = Annotated[
    bool, typer.Option("--show-values", help="Show confidential values in error messages, on this screen only.")
]
