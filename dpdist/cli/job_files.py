"""Commands that print a shipped job file, or the schema of job files."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.text import Text

from dpdist.cli.console import guarded, out
from dpdist.core.errors import JobError


def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of a shipped job, or a YAML job file.")],
) -> None:
    """Print the text of a shipped job or of a job file, unchanged."""
    from dpdist.job.loading import find_job
    from dpdist.job.yaml_lines import read_yaml

    guarded(lambda: out.print(Text(read_yaml(find_job(job), JobError)), end=""))


def schema() -> None:
    """Print the JSON schema of a job file, for editors, with the plug-ins that are installed."""
    from dpdist.job import Job
    from dpdist.job.specs import SPECS

    def act() -> None:
        for refusal in SPECS.usable()[1]:
            print(refusal, file=sys.stderr)
        print(json.dumps(Job.model_json_schema(), indent=2))

    guarded(act)
