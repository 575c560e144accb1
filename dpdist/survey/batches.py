"""A file in batches of checked, typed records, with numbered categories and at most the stated number of records a unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from unicodedata import category, normalize

import numpy as np
import pandas as pd
import pyarrow as pa

from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Codes, Ints, Level, SmallCounts
from dpdist.job import Job
from dpdist.survey.checks import Checked, check
from dpdist.survey.csv_text import no_header
from dpdist.survey.findings import Findings, Mask, recoded
from dpdist.survey.schema import check_replicates, check_schema, needed_columns
from dpdist.survey.source import Source
from dpdist.survey.spelling import causes

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?")
INVISIBLE = ("Cc", "Cf")
"""Unicode categories of invisible characters: control and format."""


def folded(name: str) -> str:
    """The common form of all names that differ in spelling alone; empty for a name without visible characters.

    The form ignores blanks at the ends, repeated blanks, case, Unicode form, invisible characters, and how a number is
    written.
    """
    if name.isascii() and name.isdigit():
        return name.lstrip("0") or "0"
    text = normalize("NFKC", normalize("NFKC", name).casefold())
    text = " ".join("".join(c for c in text if c.isspace() or category(c) not in INVISIBLE).split())
    return str(Fraction(text)) if NUMBER.fullmatch(text) else text


class Bounded:
    """Drops the records of a unit beyond its maximum, over the batches of one pass; it keeps every unit's name and number.

    Whether a record is dropped depends only on records of its own unit.
    """

    def __init__(self, job: Job, findings: Findings):
        self.declared, self.findings = job.privacy_unit, findings
        self.seen = Counter[str]()
        self.spelled = dict[str, str]()

    def __call__(self, checked: Checked) -> Checked:
        """Returns the batch without records beyond the maximum.

        They count as problems, or as left out if the job says so.
        """
        if self.declared is None or checked.unit is None or not len(checked.row):
            return checked
        code, names = pd.factorize(np.array(checked.unit.to_pylist(), dtype=object))
        folds = [folded(name) for name in names]
        checked, code = self._without(checked, code, np.array([not fold for fold in folds]), MISSING)
        again = [self.spelled.setdefault(fold, name) != name for fold, name in zip(folds, names, strict=True)]
        checked, code = self._without(checked, code, np.array(again), AMBIGUOUS)
        before = np.array([self.seen[name] for name in names], dtype=np.int64)
        beyond = pd.Series(code).groupby(code).cumcount().to_numpy() + before[code] >= self.declared.most
        self.seen.update(dict(zip(names, np.bincount(code, minlength=len(names)).tolist(), strict=True)))
        if not beyond.any():
            return checked
        column, most = self.declared.column, self.declared.most
        if self.declared.beyond == "truncate":
            self.findings.rule(f"{column}: beyond {most} records of one, left out", int(beyond.sum()))
        else:
            remedy = "raise privacy_unit.most to a number that is public, or state privacy_unit.beyond: truncate"
            fault, allowed = f"more than {most} records of one {column}", f"at most {most} records of each"
            self.findings.add(column, fault, allowed, remedy, checked.row[beyond], [])
        return checked.take(~beyond)

    def _without(self, checked: Checked, code: Ints, wrong: Mask, problem: tuple[str, str, str]) -> tuple[Checked, Ints]:
        """The batch without records whose names are wrong.

        `code` numbers each record's name, and `wrong` has the shape (name,).
        """
        bad = wrong[code]
        if not bad.any():
            return checked, code
        assert self.declared is not None
        self.findings.add(self.declared.column, *problem, checked.row[bad], [])
        return checked.take(~bad), code[~bad]


MISSING = ("missing values", "a unit for every record", "complete the column")
AMBIGUOUS = (
    "names of units that differ in spelling alone",
    "one spelling of every name: blanks, case, leading zeros and Unicode form tell no units apart",
    "write a unit's name in one way; give units that are different names that differ in more",
)


class UnitsMet:
    """Counts distinct units in every published sample count, up to the job's minimum, so that few names are stored."""

    def __init__(self, job: Job):
        self.least = job.least_count
        self.names = dict[int, set[str]]()
        self.full = set[int]()

    def __call__(self, key: Ints, names: list[str]) -> None:
        """Adds the records of a batch: `key` (record,) is the number of the sample count, `names` has the units' names."""
        met = pd.DataFrame({"key": key, "name": names}).drop_duplicates()
        met = met[~met["key"].isin(self.full)]
        for number, name in zip(met["key"].tolist(), met["name"].tolist(), strict=True):
            names_met = self.names.setdefault(number, set())
            if number not in self.full:
                names_met.add(name)
            if len(names_met) >= self.least:
                self.full.add(number)

    @property
    def small(self) -> SmallCounts:
        sizes = np.array([len(names) for names in self.names.values()], dtype=np.int64)
        return SmallCounts(int((sizes < self.least).sum()), int((sizes == 1).sum()), len(sizes))


Tick = Callable[[int], None]


def changed_while_read(source: Source) -> DataError:
    return DataError(source.name, [Problem("file", "it changed while it was read", "a file at rest", "run again")])


def checked_batches(
    job: Job, source: Source, findings: Findings | None = None, tick: Tick = lambda rows: None
) -> Iterator[Checked]:
    """Yields the records that belong to the release as typed batches; problems of the file are added to `findings`."""
    findings = Findings() if findings is None else findings
    first = 0
    columns = list(source.columns)
    if problems := check_replicates(job, columns):
        raise DataError(source.name, problems)
    needed = needed_columns(job, columns)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        remedy = "rename or delete one"
        raise DataError(source.name, [Problem(n, "stands twice in the file", "each column once", remedy) for n in twice])
    missing = [name for name in needed if name not in columns]
    if source.text_only and len(missing) == len(needed) and not causes(columns, needed):
        fault, remedy = "its first line names none of the job's columns", "give a header line, names separated by commas"
        if remark := no_header(columns[0]) if columns else None:
            fault, remedy = f"its first line is {remark}", "delete this line, so that the line of names is the first"
        raise DataError(source.name, [Problem("file", fault, ", ".join(needed), remedy)])
    if missing:
        empty = pa.schema([(name, pa.string()) for name in source.columns])
        raise DataError(source.name, check_schema(job, empty, text_only=True))
    bounded = Bounded(job, findings)
    for stored in source.batches(needed):
        batch = recoded(stored, job.recode, source.text_only)
        if first == 0 and (problems := check_schema(job, batch.schema, source.text_only)):
            raise DataError(source.name, problems)
        checked = bounded(check(job, batch, first, findings, source.text_only))
        first += batch.num_rows
        tick(batch.num_rows)
        if len(checked.row):
            yield checked


def strides(levels: Mapping[str, tuple[Level, ...]]) -> dict[str, int]:
    strides: dict[str, int] = {}
    stride = 1
    for name in reversed(list(levels)):
        strides[name] = stride
        stride *= len(levels[name])
    return strides


def crosstab_key(codes: Mapping[str, Codes], levels: Mapping[str, tuple[Level, ...]], size: int) -> Ints:
    """One number per record or row for its combination of categories, sorted as the crosstab; 0 without categories."""
    key = np.zeros(size, dtype=np.int64)
    for name, stride in strides(levels).items():
        key += codes[name].astype(np.int64) * stride
    return key
