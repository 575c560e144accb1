"""Loads a job for a command; if the job is refused, columns that the file does not have are named instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpdist.core.errors import JobError, Problem, ProblemsError
from dpdist.job import Job
from dpdist.job.data import Input
from dpdist.job.loading import job_layers, load_job
from dpdist.survey.schema import missing_column
from dpdist.survey.source import open_file


def loaded(job: str | Path, settings: Sequence[str] | None, input: Path | None = None) -> Job:
    """Loads and checks the job. Raises `JobError`.

    If the job is refused for a column, the names of the file's columns are read. The problem then says that the file has no
    such column, where that is the cause.
    """
    try:
        return load_job(job, settings)
    except JobError as error:
        absent = _absent(job, settings, input) if any(each.where.startswith("columns.") for each in error.problems) else {}
        problems = [absent.get(problem.where, problem) for problem in error.problems]
        raise JobError(error.source, problems) from None


def _absent(job: str | Path, settings: Sequence[str] | None, input: Path | None) -> dict[str, Problem]:
    """Returns problems by key of the job: a weight or an outcome that is not a column of the file."""
    try:
        said = job_layers(job, settings)[0].said
        named = Input.model_validate(said.get("input") or {})
        path = input or named.path
        names = list(open_file(Path(path), named).columns) if path else []
    except (ProblemsError, ValidationError):
        return {}
    if not names_columns(said, names):
        return {}
    return {f"columns.{each}": missing_column(each, names) for each in _numbers(said) if names and each not in names}


def names_columns(keys: Mapping[str, Any], names: Sequence[str]) -> bool:
    """True if a file's first line has a column that the job names. Otherwise it may be a record, which is never shown."""
    columns = keys.get("columns")
    return not {*(columns if isinstance(columns, dict) else ()), *_numbers(keys)}.isdisjoint(names)


def _numbers(keys: Mapping[str, Any]) -> list[str]:
    """Returns the columns of the weight and the outcomes that a job names."""
    survey, outcome = keys.get("survey"), keys.get("outcome")
    weight = survey.get("weight") if isinstance(survey, dict) else None
    return [each for each in (weight, *(outcome if isinstance(outcome, list) else [outcome])) if isinstance(each, str)]
