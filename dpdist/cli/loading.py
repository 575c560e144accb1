"""A command's job file, read and checked; if columns are missing, the file's own are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpdist.core.errors import JobError, Problem, ProblemsError
from dpdist.job import Job
from dpdist.job.data import Input
from dpdist.job.loading import freeze, resolve
from dpdist.survey.schema import missing_column
from dpdist.survey.source import open_file


def read_job(job: str | Path, settings: Sequence[str] | None, input: Path | None = None) -> Job:
    """Reads and checks the job. Raises `JobError`.

    If the job is refused for a column, the names of the file's columns are read. The problem then states that the file has
    no such column, if that is the cause.
    """
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
    try:
        settings = Input.model_validate(keys.get("input") or {})
        path = input or settings.path
        names = list(open_file(Path(path), settings).columns) if path else []
    except (ProblemsError, ValidationError):
        return {}
    survey, outcome, columns = keys.get("survey"), keys.get("outcome"), keys.get("columns")
    weight = survey.get("weight") if isinstance(survey, dict) else None
    numbers = [name for name in (weight, *(outcome if isinstance(outcome, list) else [outcome])) if isinstance(name, str)]
    if {*(columns if isinstance(columns, dict) else ()), *numbers}.isdisjoint(names):
        return {}  # the first line may be a record, which is never shown
    return {f"columns.{name}": missing_column(name, names) for name in numbers if name not in names}
