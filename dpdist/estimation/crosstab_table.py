"""The public crosstab as an Arrow table; and the job of a release, read back from its folder.

A row is a combination of public columns with its number of sample records. Levels are text; their order is in the schema's
metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from dpdist.core.public_files import DamagedFile, first_problem, read_columns, read_json, read_object
from dpdist.core.records import Crosstab, Level
from dpdist.job import Job
from dpdist.job.validation import of_earlier_form

MOST = 2**53
"""The largest number of records of a file; float64 holds all whole numbers up to it exactly."""


def crosstab_table(crosstab: Crosstab) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for name, codes in crosstab.codes.items():
        levels = crosstab.levels[name]
        columns[name] = pa.array([levels[code] for code in codes], type=pa.infer_type(list(levels)))
    columns["count"] = pa.array(crosstab.count)
    layout: dict[str, Any] = {
        "levels": {name: list(levels) for name, levels in crosstab.levels.items()},
        "strata": crosstab.strata,
        "design_strata": crosstab.design_strata,
    }
    if crosstab.sampled is not None:
        layout["sampled"] = [[*label, number] for label, number in crosstab.sampled.items()]
    return pa.table(columns).replace_schema_metadata({"dpdist.frame": json.dumps(layout)})


def crosstab_from_table(table: pa.Table) -> Crosstab:
    """The inverse of `crosstab_table`."""
    layout = json.loads(table.schema.metadata[b"dpdist.frame"])
    levels: dict[str, tuple[Level, ...]] = {name: tuple(values) for name, values in layout["levels"].items()}
    codes = {name: _codes(table.column(name).to_pylist(), column_levels) for name, column_levels in levels.items()}
    count = table.column("count").to_numpy().astype(np.int64)
    sampled = {tuple(label): int(number) for *label, number in layout["sampled"]} if "sampled" in layout else None
    return Crosstab(codes, levels, count, tuple(layout["strata"]), tuple(layout["design_strata"]), sampled)


EARLIER_FORM = (
    "read it with the version of dpdist that made it, which is stated in manifest.json; or write its job in the present "
    "form and run it in a new workspace, which spends its budget again"
)
"""The remedy for a release whose job has keys that this version does not know."""


def read_job(folder: Path, name: str) -> Job:
    """Reads the job of a release. Raises `DamagedFile`."""
    text = read_json(folder, name)
    try:
        return Job.stored(text)
    except ValidationError as error:
        if of_earlier_form(read_object(folder, name)):
            raise DamagedFile(
                name, "a job of an earlier form", "a job in the form that this version of dpdist publishes", EARLIER_FORM
            ) from None
        raise DamagedFile(name, first_problem(error), "a job as it was published") from None


def read_crosstab(folder: Path, name: str, job: Job) -> Crosstab:
    """Reads the crosstab of a release of this job; raises `DamagedFile`.

    Each combination occurs once, and rows are ordered by stratum.
    """
    levels = {column: tuple(job.columns[column].levels or ()) for column in job.categories}
    types = {column: pa.infer_type(list(column_levels)) for column, column_levels in levels.items()} | {"count": pa.int64()}
    table = read_columns(folder, name, types, prod(map(len, levels.values())))
    try:
        crosstab = crosstab_from_table(table)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise DamagedFile(name, "other levels, or no list of them", "the levels that job.json declares") from None
    _check_crosstab(name, crosstab, levels, job)
    return crosstab


def _check_crosstab(name: str, crosstab: Crosstab, levels: dict[str, tuple[Level, ...]], job: Job) -> None:
    if (
        crosstab.levels != levels
        or crosstab.strata not in (job.strata, ())
        or crosstab.design_strata != job.survey.design_strata
    ):
        raise DamagedFile(name, "other levels or strata than the job's", "the levels and strata that job.json declares")
    if not len(crosstab):
        raise DamagedFile(name, "no combination", "at least one combination")
    if wrong := int((crosstab.count < 0).sum()):
        raise DamagedFile(name, f"{wrong} negative numbers of records", "0 or more records in a combination")
    if sum(crosstab.count.tolist()) > MOST:
        raise DamagedFile(name, f"more than {MOST} records", f"at most {MOST} records")
    if crosstab.sampled is not None and not _fits(crosstab):
        allowed = "the records of each design stratum, and those that the universe leaves out"
        raise DamagedFile(name, "numbers of sampled records that do not fit the crosstab's strata", allowed)
    if crosstab.codes and len(np.unique(np.column_stack(list(crosstab.codes.values())), axis=0)) < len(crosstab):
        raise DamagedFile(name, "a combination appears twice", "every combination once")
    if (np.diff(crosstab.stratum) < 0).any():
        raise DamagedFile(name, "rows in a different order", "rows by stratum")


def _fits(crosstab: Crosstab) -> bool:
    """True if numbers of drawn records are of declared design strata, and at least those of the crosstab's records."""
    assert crosstab.sampled is not None
    levels = [crosstab.levels[name] for name in crosstab.design_strata]
    for label, number in crosstab.sampled.items():
        if len(label) != len(levels) or not all(level in of for level, of in zip(label, levels, strict=True)) or number < 0:
            return False
    inside = np.bincount(crosstab.design_stratum, weights=crosstab.count)
    return sum(crosstab.sampled.values()) <= MOST and bool((crosstab.sampled_records >= inside).all())


def _codes(values: Sequence[Level], levels: Sequence[Level]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    position = {level: code for code, level in enumerate(levels)}
    return np.array([position[value] for value in values], dtype=np.int32)
