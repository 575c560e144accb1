"""Writes example programs (R, Stata, SAS, Python) that read a release's synthetic records and reproduce one figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from dpdist.core.records import TOTAL
from dpdist.job import Job
from dpdist.publish.printed import Printed
from dpdist.publish.writers.cells import plain
from dpdist.publish.writers.microdata import variable_names


class Example(NamedTuple):
    program: str
    code: str


class Check(NamedTuple):
    """A published figure that equals the mean over sets."""

    table: str
    statistic: str
    value: float


class Names(NamedTuple):
    """Names in examples: files, columns in these files, and their names in Stata and SAS."""

    sets: int
    extension: str
    outcome: str
    weight: str | None
    group: str | None
    short: dict[str, str]


def names_of(job: Job) -> Names:
    extension = "csv" if "csv" in job.presentation.formats else "parquet"
    group = next(iter(job.modelled_columns), None)
    short = variable_names([*job.modelled_columns, *job.components])
    return Names(job.synthetic_sets, extension, job.outcomes[0], job.survey.weight, group, short)


def check_of(tables: Sequence[tuple[Printed, pa.Table]], outcome: str) -> Check | None:
    """The published mean of the outcome over all records, where a table has it."""
    for printed, table in tables:
        for row in table.to_pylist():
            everybody = all(row[name] == TOTAL for name in table.column_names[: table.column_names.index("statistic")])
            wanted = (row["statistic"], row["variable"], row["estimator"]) == ("mean", outcome, "records")
            if everybody and wanted and row["estimate"] is not None:
                return Check(printed.name, "mean", row["estimate"])
    return None


def examples(job: Job, check: Check | None) -> Iterator[Example]:
    """Programs that read all sets and take the mean of the first outcome over them, for all records and by one column."""
    names = names_of(job)
    told = f"  # {check.value!r} in tables/{check.table}.csv, estimator records" if check else ""
    yield Example("R", _r(names, told))
    if stata := _stata(names, "dta" in job.presentation.formats):
        yield Example("Stata", stata)
    if names.extension == "csv":
        yield Example("SAS", _sas(names))
    yield Example("Python", _python(names, told))


def _text(name: str) -> str:
    return json.dumps(plain(name), ensure_ascii=False)


def _r(names: Names, advice: str) -> str:
    reads = 'read.csv(file, check.names = FALSE, fileEncoding = "UTF-8")'
    reads = reads if names.extension == "csv" else "arrow::read_parquet(file)"
    y, w = f"d[[{_text(names.outcome)}]]", f"d[[{_text(names.weight)}]]" if names.weight else "rep(1, nrow(d))"
    lines = [
        f'files <- sprintf("synthetic/set-%d.{names.extension}", 1:{names.sets})',
        f"sets <- lapply(files, function(file) {reads})",
        f"average <- function(d) sum({y} * {w}) / sum({w})",
        "q <- sapply(sets, average)",
        f"mean(q){advice}",
    ]
    if names.group:
        group = f"d[[{_text(names.group)}]]"
        lines.append(f"rowMeans(sapply(sets, function(d) sapply(split(d, {group}), average)))")
    return "\n".join(lines)


def _python(names: Names, advice: str) -> str:
    y, w = f"d[{_text(names.outcome)}]", f"d[{_text(names.weight)}]" if names.weight else "1.0"
    reads = "read_csv" if names.extension == "csv" else "read_parquet"
    over = f"(({y} * {w}).sum() / {w}.sum())" if names.weight else f"{y}.mean()"
    lines = [
        "import pandas as pd",
        f'sets = [pd.{reads}(f"synthetic/set-{{k}}.{names.extension}") for k in range(1, {names.sets + 1})]',
        f"average = lambda d: {over}",
        f"print(sum(map(average, sets)) / {names.sets}){advice}",
    ]
    if names.group:
        grouped = f"pd.Series({{level: average(own) for level, own in d.groupby({_text(names.group)}, observed=True)}})"
        lines.append(f"print(sum({grouped} for d in sets) / {names.sets})")
    return "\n".join(lines)


def _stata(names: Names, labelled: bool) -> str:
    if not labelled and names.extension != "csv":
        return ""
    y, w = names.short[names.outcome], f" [aweight={names.short[names.weight]}]" if names.weight else ""
    read = 'use "synthetic/set-`k\'.dta", clear'
    read = read if labelled else 'import delimited "synthetic/set-`k\'.csv", clear case(preserve) encoding(UTF-8)'
    means = [f"  summarize {y}{w}, meanonly", "  scalar q = q + r(mean)"]
    lines = ["scalar q = 0", f"forvalues k = 1/{names.sets} {{", f"  {read}", *means, "}", f"display q / {names.sets}"]
    if names.group:
        lines.append(f"mean {y}{w.replace('aweight', 'pweight')}, over({names.short[names.group]})  // of the last set")
    return "\n".join(lines)


def _sas(names: Names) -> str:
    weight = [f"  weight {names.short[names.weight]};"] if names.weight else []
    group = [f"  class {names.short[names.group]};"] if names.group else []
    return "\n".join(
        [
            "%macro sets;",
            f"%do k = 1 %to {names.sets};",
            '  proc import datafile="synthetic/set-&k..csv" out=set&k dbms=csv replace; guessingrows=max; run;',
            "%end;",
            "%mend;",
            "%sets",
            f"data all; set set1-set{names.sets} indsname=source; k = source; run;",
            "proc means data=all mean;",
            *group,
            *weight,
            f"  var {names.short[names.outcome]};",
            "run;",
        ]
    )
