"""Checks of a plug-in's reader of files: columns, types, values, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.core.errors import DataError
from dpdist.job.loading import parse_job
from dpdist.survey.census import place, take_census
from dpdist.survey.source import READERS, Source, TableSource, open_file
from dpdist.survey.typed_file import CSV_NULLS
from dpdist.testing.members import check_member

Write: TypeAlias = Callable[[pa.Table, Path], object]
"""A function that writes a table as a file for the reader."""
SECRET_TEXT, SECRET_NUMBER = "zq7391x", 739112345.25
"""Values of the made-up file that no message may quote."""
FEW, MANY = 40, 70_000
"""Numbers of records of a small file, and of one that is longer than most readers' batches."""
JOB = """
dataset: made-up
period: "1"
columns:
  region: {levels: [Öst, "with, comma", "quo\\"ted", zq7391x]}
  sex: {levels: [1, 2]}
  income: {bounds: [0, 1.0e+9], missing: drop}
survey: {weight: weight}
strata: [region, sex]
outcome: income
model: {family: lognormal}
mechanism: {name: unweighted}
budget: {epsilon: "1"}
tables: [{name: t, by: [region, sex], statistics: [count]}]
"""


def made_up(records: int) -> pa.Table:
    """A survey of texts, whole numbers and numbers, some missing. Texts have commas, quotes and letters beyond ASCII."""
    rng = np.random.default_rng(1)
    income = np.append(np.exp(rng.normal(10.3, 0.5, records - 1)).round(2), SECRET_NUMBER)
    region = np.append(rng.choice(["Öst", "with, comma", 'quo"ted'], records - 1), SECRET_TEXT)
    note = pa.array(region, mask=rng.random(records) < 0.2)
    return pa.table(
        {
            "region": pa.array(region),
            "sex": pa.array(rng.integers(1, 3, records)),
            "income": pa.array(income, mask=np.append(rng.random(records - 1) < 0.1, False)),
            "weight": pa.array(rng.uniform(5.0, 60.0, records).round(3)),
            "note": note,
        }
    )


def check_reader(suffix: str, write: Write) -> None:
    """Checks the reader of a suffix (small letters, without dot); its distribution must be installed.

    `write(table, path)` writes an Arrow table as such a file. The reader must give all columns and rows in order, one
    type for each column, and missing values as missing. A row must be read alike, whatever other rows and columns are
    read. A damaged file must be refused by name, and no message may quote a value. Raises `AssertionError` with every
    fault.
    """
    with TemporaryDirectory() as folder:
        check_member(READERS, suffix, lambda: _lines(suffix, write, Path(folder)))


def _lines(suffix: str, write: Write, folder: Path) -> Iterator[str]:
    files = 0

    def opened(table: pa.Table) -> Source:
        nonlocal files
        files += 1
        write(table, path := folder / f"{files}.{suffix}")
        return open_file(path)

    table = made_up(FEW)
    source = opened(table)
    if list(source.columns) != table.column_names:
        yield f"it has the columns {list(source.columns)}, and the file has {table.column_names}: give all, in order"
        return
    yield from _of_types(source)
    yield from _of_values(source, table, "of a small file")
    yield from _of_values(opened(made_up(MANY)), made_up(MANY), f"of a file of {MANY} rows")
    yield from _of_parts(source, table)
    yield from _of_rows(opened, table)
    yield from _of_records(source, table, folder)
    yield from _of_damage(suffix, write, folder)


def _read(source: Source, columns: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches(list(source.batches(columns)))


def _of_types(source: Source) -> Iterator[str]:
    """A source without types must give texts only, until the job states types."""
    for field in _read(source, source.columns).schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if field.name in ("region", "note") or source.text_only:
            if not text:
                yield f"the column '{field.name}' of texts is {kind}: give texts as strings"
        elif not number:
            yield f"the column '{field.name}' of numbers is {kind}: give numbers as whole or decimal numbers"


def _values(column: pa.ChunkedArray, numeric: bool) -> list[object]:
    values = pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if not numeric:
        return [None if value in CSV_NULLS else value for value in values.to_pylist()]
    return [None if value is None or value != value else float(value) for value in values.to_pylist()]


def _of_values(source: Source, table: pa.Table, which: str) -> Iterator[str]:
    if source.rows not in (None, table.num_rows):
        yield f"rows is {source.rows} {which}, not {table.num_rows}: give the number of rows, or None"
    read = _read(source, source.columns)
    if read.num_rows != table.num_rows:
        yield f"it gives {read.num_rows} rows {which}: give every row once"
        return
    for field in table.schema:
        numeric = not pa.types.is_string(field.type)
        if _values(read[field.name], numeric) != _values(table[field.name], numeric):
            yield f"the column '{field.name}' has other values {which}: keep rows in order, and missing values missing"


def _of_parts(source: Source, table: pa.Table) -> Iterator[str]:
    """Reads some columns, in another order, twice, and by two readings at once."""
    columns = ["weight", "region"]
    all_rows = _read(source, source.columns).select(columns)
    if _read(source, columns).schema.names != columns:
        yield "batches have other columns than were asked for: give these, in this order"
        return
    both = zip(source.batches(columns), source.batches(columns), strict=True)
    first, second = (pa.Table.from_batches(list(part)) for part in zip(*both, strict=True))
    if not all(part.equals(all_rows) for part in (_read(source, columns), first, second)):
        yield "a file that is read again, or in part, has other values: keep no place in the file between readings"


def _of_rows(opened: Callable[[pa.Table], Source], table: pa.Table) -> Iterator[str]:
    """Without its first row, or in reverse order, a file must give the same other rows."""
    for which, rows in {"without the first row": np.arange(1, FEW), "backwards": np.arange(FEW)[::-1]}.items():
        part = table.take(pa.array(rows))
        if problems := list(_of_values(opened(part), part, which)):
            yield f"a row depends on other rows, for {problems[0]}"


def _of_records(source: Source, table: pa.Table, folder: Path) -> Iterator[str]:
    """Records after the check of every run must equal those of the same table in memory."""
    job, placed = parse_job(JOB), []
    for name, of in {"file": source, "table": TableSource(table)}.items():
        (scratch := folder / name).mkdir()
        placed.append(place(job, of, take_census(job, of), scratch))
    fields = ("record", "row", "weight", "outcomes")
    if not all(np.array_equal(*(getattr(records, field) for records in placed)) for field in fields):
        yield "its records are not those of the same table in memory: compare levels, types and missing values"


def _of_damage(suffix: str, write: Write, folder: Path) -> Iterator[str]:
    """Files that are empty, have other content, or are cut off. Half a file may be read if its rows are whole."""
    write(made_up(FEW), path := folder / f"whole.{suffix}")
    original = path.read_bytes()
    damaged = {"an empty file": b"", "a file of other content": bytes(range(256)) * 8 + SECRET_TEXT.encode()}
    damaged |= {
        "half a file": original[: len(original) // 2],
        "a file with its middle lost": original[:200] + original[-200:],
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        try:
            source = open_file(path)
            list(source.batches(source.columns))
        except DataError as error:
            if any(secret in str(error) for secret in (SECRET_TEXT, f"{SECRET_NUMBER:g}", str(SECRET_NUMBER))):
                yield f"its message on {what} quotes a value: name the file, and say what is wrong without values"
            elif path.name not in str(error):
                yield f"its message on {what} does not name the file: raise unreadable(self.name, fault, remedy)"
        else:
            if what in ("an empty file", "a file of other content"):
                yield f"{what} is read as if it were one: raise unreadable(self.name, fault, remedy)"
