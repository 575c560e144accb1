"""For `survey.source`: readers of files by suffix; those of plug-ins are held to what they state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpdist.core.errors import DataError
from dpdist.core.plugins import READERS as GROUP
from dpdist.core.plugins import Members, Plugin, Refused
from dpdist.job import TextFile
from dpdist.survey.typed_file import STATISTICAL, OneFile, unreadable

PLACES = {
    "parquet": "dpdist.survey.source:ParquetSource",
    "pq": "dpdist.survey.source:ParquetSource",
    "": "dpdist.survey.source:ParquetSource",
    "csv": "dpdist.survey.csv_file:CsvSource",
    "gz": "dpdist.survey.csv_file:CsvSource",
    **{suffix.removeprefix("."): "dpdist.survey.statistical_file:StatisticalSource" for suffix in STATISTICAL},
}
"""Places of dpdist's readers by a file's suffix, in small letters without its dot. Those of plug-ins are entry points."""
NO_READER = "mend the plug-in, or store the file as Parquet or CSV"
BY_PLUGIN = (
    "The {which} is read by '{name}', third-party: {distribution} {version}. Its authors state that each row of the file "
    "gives one record, whatever the other rows are. Neighbouring files differ in what it reads."
)
"""What a promise takes from the authors of a plug-in's reader."""


def _fault(name: str, member: Any) -> str:
    if name in PLACES:
        return ""
    if not (isinstance(member, type) and issubclass(member, OneFile)):
        return "is no class derived from OneFile of dpdist.survey.typed_file"
    if lacking := sorted(getattr(member, "__abstractmethods__", ())):
        return f"has no {', '.join(lacking)}: write what is missing in {member.__name__}"
    if name != name.lower() or "." in name:
        return "is named by no suffix: take the file's suffix in small letters, without a dot"
    return ""


READERS: Members[Any] = Members(GROUP, PLACES, _fault)
"""Classes of readers by a file's suffix."""


def reader(path: Path, written: TextFile) -> Any:
    """The source of a file by its suffix; a file of unknown suffix is read as Parquet. Raises `DataError`."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in READERS:
        return READERS[suffix].opened(path, written)
    try:
        plugin, kind = READERS.plugged_in(suffix)
    except KeyError:
        return READERS["parquet"].opened(path, written)
    except Refused as refusal:
        raise unreadable(str(path), str(refusal), NO_READER) from None
    with _guarded(str(path), plugin):
        opened: OneFile = kind.opened(path, written)
    return ThirdParty(path, opened, plugin)


@contextmanager
def _guarded(name: str, plugin: Plugin) -> Iterator[None]:
    """Replaces errors of a plug-in by one without their texts, which may quote a value. Its own `DataError` passes."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # code of others may fail in any way
        raise unreadable(name, f"plug-in {plugin} cannot read it ({type(error).__name__})", NO_READER) from None


@dataclass(frozen=True)
class ThirdParty(OneFile):
    """A file read by a plug-in's class. Its output must have the columns and types that it states.

    dpdist determines the file's name and checksum.
    """

    reader: OneFile
    plugin: Plugin

    def described(self) -> pa.Schema:
        with _guarded(self.name, self.plugin):
            schema = self.reader.described()
        if not isinstance(schema, pa.Schema):
            raise self._unlike("no Arrow schema")
        return schema

    @cached_property
    def rows(self) -> int | None:
        with _guarded(self.name, self.plugin):
            return self.reader.rows

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted, read = pa.schema([self.schema.field(name) for name in columns]), 0
        with _guarded(self.name, self.plugin):
            parts = iter(self.reader.batches(list(columns)))
        while True:
            with _guarded(self.name, self.plugin):
                batch = next(parts, None)
            if batch is None:
                break
            if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(wanted):
                raise self._unlike("a batch with other columns or types than it states")
            read += batch.num_rows
            yield batch
        if self.rows is not None and read != self.rows:
            raise self._unlike("another number of rows than it states")

    def _unlike(self, what: str) -> DataError:
        return unreadable(self.name, f"plug-in {self.plugin} gives {what}", NO_READER)


def reader_of(source: object) -> dict[str, str]:
    """The reader of a source, with distribution and version, for plug-ins; else empty."""
    if not isinstance(source, ThirdParty):
        return {}
    return {"name": source.plugin.name, **source.plugin.origin}
