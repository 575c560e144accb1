"""For `publish.folder`: `codebook.json`, CSV on the Web metadata of every CSV file, with labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.files import write_json
from dpdist.core.records import TOTAL
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import Job
from dpdist.job.presentation import FLAGS
from dpdist.publish.printed_tables import FLAG, NO_ESTIMATE, PrintedTable, wide_heads
from dpdist.publish.writers.csv_tables import plain
from dpdist.publish.writers.microdata import level_codes, variable_names

LONG = {
    "statistic": "count, mean or total, as the job asks for them",
    "variable": "the outcome of a mean or a total",
    "estimator": "what the estimate is made of: released parameters, or synthetic records",
    "estimate": "the estimate",
    "standard_error": "its standard error",
    "df": "degrees of freedom of the interval; inf stands for the normal law",
    "lower": "lower limit of the 90 % interval",
    "upper": "upper limit of the 90 % interval",
    "suppressed": "true where there is no estimate",
    "withheld_because": "why there is no estimate, where the job's limit of the error withholds it",
}
"""Descriptions of the columns in a table's long file, apart from the columns that name its cells."""
FURTHER = {
    "statistic": "what the figure is, with its constants, as the job asks for it",
    "variable": "the outcome that it is of; of a ratio, both",
}
"""Descriptions for tables with statistics other than counts, means and totals."""


def write_codebook(path: Path, job: Job, tables: Sequence[tuple[PrintedTable, pa.Table]]) -> None:
    text = job.presentation
    written = [described for table, printed in tables for described in (_long(job, table, printed), _wide(table))]
    if "csv" in text.formats:
        written += [_records(job, path.parent, number) for number in range(1, _sets(job) + 1)]
    facts = {"dc:title": text.title or f"{job.dataset}, {job.period}", "dc:source": text.source}
    facts |= {"dc:rights": text.licence, "dc:publisher": text.responsible}
    stated = {name: value for name, value in facts.items() if value is not None}
    context = ["http://www.w3.org/ns/csvw", {"@language": text.language}]
    write_json(path, {"@context": context, **stated, "tables": written, "notes": [*_columns(job)]})


def _sets(job: Job) -> int:
    return 0 if job.mechanism.whole_tables else job.synthetic_sets


def _columns(job: Job) -> list[dict[str, Any]]:
    text, variables = job.presentation, [*job.modelled_columns, *job.components, *job.microdata.columns]
    names, entries = variable_names(variables), []
    for name in dict.fromkeys([*variables, *job.cell_columns]):
        column: dict[str, Any] = {"column": name, "label": text.label(name)}
        column |= {"unit": text.column(name).unit} if text.column(name).unit else {}
        column |= {"variable": names[name]} if name in names else {}
        if name in job.columns and (levels := job.columns[name].levels):
            codes = level_codes(levels)
            column["levels"] = [
                {"level": str(level), "label": text.level(name, level), "code": codes[level]} for level in levels
            ]
        if merges := job.recode.get(name):
            column["recode"] = [{"level": level, "becomes": becomes} for level, becomes in merges.items()]
        entries.append(column)
    return entries


def _named(header: str, number: int, datatype: Any, description: str = "") -> dict[str, Any]:
    """A column's description; `titles` is its header in the file."""
    name = re.sub(r"[^A-Za-z0-9_.]", "_", header).lstrip("_") or "column"
    return {"name": f"{name}_{number}", "titles": header, "datatype": datatype} | (
        {"dc:description": description} if description else {}
    )


def _one_of(texts: Sequence[str]) -> dict[str, str]:
    return {"base": "string", "format": "|".join(re.sub(r"([\\^$.|?*+(){}\[\]])", r"\\\1", plain(text)) for text in texts)}


def _category(job: Job, name: str, number: int, *more: str) -> dict[str, Any]:
    levels = [str(level) for level in job.columns[name].levels or ()]
    return _named(plain(name), number, _one_of([*levels, *more]), job.presentation.label(name))


def _schema(url: str, title: str, columns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"url": url, "dc:title": title, "tableSchema": {"columns": columns}}


def _long(job: Job, printed: PrintedTable, table: pa.Table) -> dict[str, Any]:
    plain_alone = set(table["statistic"].to_pylist()) <= set(STATISTICS)
    columns, texts = [], LONG if plain_alone else LONG | FURTHER
    for number, field in enumerate(table.schema, start=1):
        if field.name in LONG:
            kind = {pa.string(): "string", pa.bool_(): "boolean"}.get(field.type, "double")
            column = _named(field.name, number, kind, texts[field.name])
            columns.append(column | ({"null": ["", "inf"]} if field.name == "df" else {}))
        else:
            columns.append(_category(job, field.name, number, TOTAL))
    return _schema(f"tables/{printed.name}.csv", printed.caption, columns)


def _wide(printed: PrintedTable) -> dict[str, Any]:
    columns = [_named(plain(name), number, "string") for number, name in enumerate(printed.stub, start=1)]
    for number, head in enumerate(wide_heads(printed), start=len(columns) + 1):
        if head.endswith(f", {FLAG}"):
            columns.append(_named(plain(head), number, _one_of(FLAGS)))
        else:
            columns.append(_named(plain(head), number, "double") | {"null": ["", NO_ESTIMATE]})
    return _schema(f"tables/{printed.name}.wide.csv", f"{printed.caption}, as printed", columns)


def _records(job: Job, public: Path, number: int) -> dict[str, Any]:
    columns = [_category(job, name, place) for place, name in enumerate(job.modelled_columns, start=1)]
    for place, name in enumerate(job.components, start=len(columns) + 1):
        columns.append(_named(plain(name), place, "double", job.presentation.with_unit(name)))
    if job.microdata.columns:
        schema = pq.read_schema(public / "synthetic" / f"set-{number}.parquet")
        for place, name in enumerate(job.microdata.columns, start=len(columns) + 1):
            kind = _datatype(schema.field(name).type)
            columns.append(_named(plain(name), place, kind, job.presentation.with_unit(name)) | {"null": ""})
    return _schema(f"synthetic/set-{number}.csv", f"Synthetic records, set {number}", columns)


def _datatype(kind: pa.DataType) -> str:
    kind = getattr(kind, "value_type", kind)
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "double"
    return "boolean" if pa.types.is_boolean(kind) else "date" if pa.types.is_date(kind) else "string"
