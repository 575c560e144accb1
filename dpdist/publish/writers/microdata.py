"""Synthetic records as CSV, and as Stata and SPSS files with labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dpdist.core.parquet import batches
from dpdist.core.records import Level
from dpdist.job import Job, Presentation
from dpdist.publish.writers.csv_tables import plain

CREATED = datetime(2000, 1, 1)
"""Fixed value for the time of writing, so that the same release gives the same bytes."""
LONGEST_NAME, LONGEST_LABEL = 32, 80
"""Largest length of Stata's variable names and labels, in characters."""


def write_microdata(folder: Path, job: Job) -> None:
    """Writes every set-<k>.parquet once more in each format that the job names."""
    for number in range(1, job.synthetic_sets + 1):
        path = folder / f"set-{number}.parquet"
        if "csv" in job.presentation.formats:
            _write_csv(path, path.with_suffix(".csv"))
        if {"dta", "sav"} & set(job.presentation.formats):
            crosstab = _encode(pq.read_table(path), job)
            if "dta" in job.presentation.formats:
                _write_stata(crosstab, path.with_suffix(".dta"), job)
            if "sav" in job.presentation.formats:
                _write_spss(crosstab, path.with_suffix(".sav"), job)


def write_measurements_stata(path: Path, job: Job) -> None:
    """Writes measurements.dta beside the Parquet file of noisy measurements, where the job asks for Stata.

    Levels stay texts, without codes.
    """
    if "dta" not in job.presentation.formats or not path.is_file():
        return
    table = pq.read_table(path)
    frame = table.to_pandas()
    for field in table.schema:
        if pa.types.is_string(field.type):
            frame[field.name] = frame[field.name].fillna("").astype(object)
        elif pa.types.is_int64(field.type):  # which Stata has not
            frame[field.name] = frame[field.name].astype("float64")
    names = variable_names(list(frame.columns))
    frame.rename(columns=names).to_stata(
        path.with_suffix(".dta"), write_index=False, version=118, byteorder="<", time_stamp=CREATED, convert_strl=[]
    )


def _write_csv(path: Path, to: Path) -> None:
    """Writes levels as texts. Reads and writes part by part, so that memory does not grow with the file."""
    with pq.ParquetFile(path) as file:
        schema = pa.schema(
            [(plain(field.name), getattr(field.type, "value_type", field.type)) for field in file.schema_arrow]
        )
        with pa_csv.CSVWriter(to, schema) as writer:
            for batch in batches(file):
                writer.write_batch(pa.record_batch([_texts(column) for column in batch.columns], schema=schema))


def _texts(column: pa.Array) -> pa.Array:
    """Replaces codes of levels by their texts, with an apostrophe where a spreadsheet would run one as a formula."""
    if not pa.types.is_dictionary(column.type):
        return column
    levels = column.dictionary
    if pa.types.is_string(levels.type):
        levels = pa.array([plain(text) for text in levels.to_pylist()], pa.string())
    return levels.take(column.indices)


def variable_names(names: Sequence[str]) -> dict[str, str]:
    """Returns names that Stata and SPSS accept: ASCII letters, digits and _, at most 32 characters, all different."""
    assigned: dict[str, str] = {}
    for name in names:
        base = re.sub(r"[^A-Za-z0-9_]", "_", name)[:LONGEST_NAME]
        base = base if re.match(r"[A-Za-z]", base) else f"v_{base}"[:LONGEST_NAME]
        in_use, tried, number = {taken_name.lower() for taken_name in assigned.values()}, base, 2
        while tried.lower() in in_use or tried.lower() in RESERVED:
            tried, number = f"{base[: LONGEST_NAME - len(str(number)) - 1]}_{number}", number + 1
        assigned[name] = tried
    return assigned


RESERVED = frozenset(
    (
        *("byte", "double", "float", "if", "in", "int", "long", "using", "with", "strl", "_all", "_b", "_coef", "_cons"),
        *("_n", "_pi", "_pred", "_rc", "_se", "_skip", "all", "and", "by", "eq", "ge", "gt", "le", "lt", "ne", "not", "or"),
        "to",
    )
)
"""Words of Stata and SPSS that no variable may have as its name."""


def level_codes(levels: Sequence[Level]) -> dict[Level, int]:
    """Returns every level's code in Stata and SPSS: the level itself if all are whole numbers, else its position from 1."""
    numbered = all(isinstance(level, int) and not isinstance(level, bool) and abs(level) < 2**31 for level in levels)
    return {level: int(level) if numbered else place for place, level in enumerate(levels, start=1)}


def _levels(job: Job) -> dict[str, dict[Level, int]]:
    return {name: level_codes(job.columns[name].levels or ()) for name in job.modelled_columns}


def _encode(table: pa.Table, job: Job) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in job.modelled_columns:
            codes = level_codes(job.columns[name].levels or ())
            column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            values = pd.Series([codes[level] for level in column.dictionary.to_pylist()], dtype="int32")
            columns[name] = values.to_numpy()[column.indices.to_numpy()]
        else:
            columns[name] = _kept(column)
    return pd.DataFrame(columns).rename(columns=variable_names(list(columns)))


def _kept(column: pa.Array) -> Any:
    """Returns values in types that the packages accept: texts, numbers and times. A missing text becomes an empty one."""
    column = _texts(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.fill_null("").to_pandas().astype(object)
    if pa.types.is_temporal(column.type):
        return column.to_pandas(date_as_object=False)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return (column.cast(pa.float64()) if column.null_count else column).to_numpy(zero_copy_only=False)


def _variable_labels(job: Job, names: Mapping[str, str]) -> dict[str, Any]:
    return {short: job.presentation.with_unit(name)[:LONGEST_LABEL] for name, short in names.items()}


def _value_labels(job: Job, names: Mapping[str, str]) -> Any:
    text: Presentation = job.presentation
    return {
        names[name]: {code: text.level(name, level) for level, code in codes.items()}
        for name, codes in _levels(job).items()
    }


def _names(job: Job) -> dict[str, str]:
    return variable_names([*job.modelled_columns, *job.components, *job.microdata.columns])


def _write_stata(frame: pd.DataFrame, path: Path, job: Job) -> None:
    names = _names(job)
    frame.to_stata(
        path,
        write_index=False,
        version=118,
        byteorder="<",
        time_stamp=CREATED,
        data_label=(job.presentation.title or f"{job.dataset} {job.period}")[:LONGEST_LABEL],
        variable_labels=_variable_labels(job, names),
        value_labels=_value_labels(job, names),
    )


def _write_spss(frame: pd.DataFrame, path: Path, job: Job) -> None:
    import pyreadstat

    names = _names(job)
    pyreadstat.write_sav(
        frame,
        str(path),
        file_label=(job.presentation.title or f"{job.dataset} {job.period}")[:64],
        column_labels=_variable_labels(job, names),
        variable_value_labels=_value_labels(job, names),
    )
    with path.open("r+b") as file:  # replaces the time of writing: creation_date and creation_time of the header
        file.seek(92)
        file.write(b"01 Jan 0000:00:00")
