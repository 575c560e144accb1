"""Checks a job's labels and rules of print: they must name columns, levels and tables of the job, each once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from dpdist.core.records import TOTAL
from dpdist.job import Column, Job
from dpdist.job.contradiction import Contradiction, Path, listed
from dpdist.job.presentation import ColumnText

WIDE = ".wide"
"""Ending that the printed form adds to a table's name."""


def presentation(job: Job) -> Iterator[Contradiction]:
    said, columns = job.presentation, tuple(dict.fromkeys([*job.columns, *job.components, *job.microdata.columns]))
    for name, column in said.columns.items():
        path = ("presentation", "columns", name)
        if name not in columns:
            yield _unknown(path, f"'{name}' is no column of this job", name, columns)
        else:
            yield from _levels(path, name, column, job.columns.get(name))
    yield from _twice(("presentation", "columns"), {name: said.label(name) for name in columns}, "label")
    tables = {table.name: table for table in job.tables}
    for name, table in said.tables.items():
        path = ("presentation", "tables", name)
        if name not in tables:
            yield _unknown(path, f"'{name}' is no table of this job", name, tuple(tables))
        elif table.across is not None and table.across not in tables[name].by:
            found = f"'{table.across}' is no column of table '{name}'"
            yield _unknown((*path, "across"), found, table.across, tables[name].by)
    yield from _files(job)
    yield from _estimator(job)
    yield from _quality(job)
    yield from _registry(job)


def _unknown(path: Path, what: str, name: str, known: Collection[str]) -> Contradiction:
    near = get_close_matches(name, list(known), n=1)
    return Contradiction(path, what, f"did you mean '{near[0]}'?" if near else "leave it out", listed(list(known)))


def _levels(path: Path, name: str, text: ColumnText, column: Column | None) -> Iterator[Contradiction]:
    """Labels of levels must name declared levels, be all different, and not be the name of the margins."""
    if not text.levels:
        return
    if column is None or column.levels is None:
        yield Contradiction((*path, "levels"), f"'{name}' has no levels", "leave levels out, or label another column")
        return
    known = tuple(map(str, column.levels))
    for level in text.levels:
        if level not in known:
            yield _unknown((*path, "levels", level), f"'{level}' is no level of '{name}'", level, known)
    shown = {level: text.levels.get(level, level) for level in known}
    yield from _twice((*path, "levels"), shown, "label")
    for level, label in shown.items():
        if label == TOTAL:
            yield Contradiction((*path, "levels", level), f"'{TOTAL}' names the margins of tables", "take another label")


def _twice(path: Path, labels: dict[str, str], what: str) -> Iterator[Contradiction]:
    first: dict[str, str] = {}
    for name, label in labels.items():
        if label in first:
            found = f"'{name}' and '{first[label]}' have one {what}, '{label}': readers could not tell them apart"
            yield Contradiction((*path, name), found, "take another label")
        first.setdefault(label, name)


def _files(job: Job) -> Iterator[Contradiction]:
    """No table may have the name under which another table's printed form is written."""
    names = {table.name for table in job.tables}
    for i, table in enumerate(job.tables):
        if table.name.removesuffix(WIDE) in names - {table.name}:
            found = f"'{table.name}.csv' is the printed form of table '{table.name.removesuffix(WIDE)}'"
            yield Contradiction(("tables", i, "name"), found, "rename one")


def _estimator(job: Job) -> Iterator[Contradiction]:
    """The estimator to print must be one that the release has."""
    wanted, path = job.presentation.estimator, ("presentation", "estimator")
    if wanted == "records" and job.mechanism.whole_tables:
        found = f"'{job.mechanism.name}' makes no synthetic records"
        yield Contradiction(path, found, "leave it out", "parameters")
    if wanted == "parameters" and job.family == "user":
        yield Contradiction(path, "a user's program has estimates from records alone", "leave it out", "records")


def _quality(job: Job) -> Iterator[Contradiction]:
    """A smallest count needs a table with counts; hiding unreliable figures needs a threshold for them."""
    said, path = job.presentation.quality, ("presentation", "quality")
    for table in job.tables if said.minimum is not None else ():
        if all(statistic.name != "count" for statistic in table.statistics):
            found = f"table '{table.name}' has no counts to compare with it"
            yield Contradiction((*path, "minimum"), found, "add count to its statistics, or leave minimum out")
    if said.hide_unreliable and not said.flags:
        found = "no threshold says what is unreliable"
        yield Contradiction((*path, "hide_unreliable"), found, "add cv or margin, or leave it out")


def _registry(job: Job) -> Iterator[Contradiction]:
    """A registry entry needs a guarantee that holds for every file, and an organisation that is responsible."""
    if job.presentation.registry is None:
        return
    path = ("presentation", "registry")
    if not job.strict:
        found = f"'{job.mechanism.name}' as this job has it promises no differential privacy that could be registered"
        yield Contradiction(path, found, "leave registry out, or take a strict mechanism")
    if job.presentation.responsible is None:
        yield Contradiction(path, "an entry names who is responsible", "add presentation.responsible")
    if job.presentation.registry.tuning is None and job.presentation.choices is None:
        yield Contradiction(path, "an entry says how constants and the budget were chosen", "add presentation.choices")
