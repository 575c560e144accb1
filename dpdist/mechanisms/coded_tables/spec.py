"""Base specification of `privbayes` and `weighted_marginals`: levels of coded columns, and what columns must state."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor
from typing import ClassVar

from dpdist.job.contradiction import Contradiction, JobView, declared
from dpdist.job.data import Column
from dpdist.job.mechanism import Noisy
from dpdist.job.names import Guarantee

MOST_LEVELS = 10_000


class CodedColumns(Noisy):
    """Noisy weighted counts of tables of coded columns, and one set of records of all columns."""

    statistics: ClassVar[str | None] = "marginals"
    several_outcomes: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    def clips(self, job: JobView) -> bool:
        return True

    def sizes(self, job: JobView) -> tuple[int, ...]:
        """Number of levels of every column."""
        return tuple(len(levels_of(job.columns[name])) for name in job.outcomes)

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        if job.synthetic_sets != 1:
            fault = f"'{self.name}' releases one set of records, on which all of ε is best spent"
            yield Contradiction(("synthetic_sets",), fault, "write 1")
        for outcome in declared(job):
            yield from _of_levels(outcome, job.columns[outcome])
        if len(declared(job)) == len(job.outcomes):
            yield from self._of_tables(job)

    def _of_tables(self, job: JobView) -> Iterator[Contradiction]:
        """Lists what tables of the job's columns cannot be; all columns are declared."""
        yield from ()


def levels_of(column: Column) -> tuple[float, ...]:
    """Every value that a coded column may have: its codes, or the whole numbers within its bounds."""
    if column.codes is not None:
        return tuple(sorted(set(column.codes.values())))
    low, high = column.bounds or (0.0, 0.0)
    return tuple(float(value) for value in range(ceil(low), floor(high) + 1))


def texts_of(column: Column, levels: tuple[float, ...]) -> tuple[str, ...]:
    """Levels as they are printed: the file's texts; texts with the same code are joined."""
    texts = column.codes or {}
    named = [" or ".join(text for text, code in texts.items() if code == level) for level in levels]
    return tuple(text or f"{level:.10g}" for text, level in zip(named, levels, strict=True))


def _of_levels(name: str, column: Column) -> Iterator[Contradiction]:
    """A column needs a public list of levels, with at most `MOST_LEVELS`."""
    if column.codes is None and not column.whole:
        fault = f"'{name}' has no list of levels"
        yield Contradiction(("columns", name, "whole"), fault, "add codes for its texts, or whole: true for whole numbers")
        return
    low, high = column.bounds or (0.0, 0.0)
    several = len(set(column.codes.values())) if column.codes is not None else floor(high) - ceil(low) + 1
    if several > MOST_LEVELS:
        fault = f"{several:,} levels, each with a noisy count"
        yield Contradiction(("columns", name, "bounds"), fault, f"take at most {MOST_LEVELS:,}: group the values")
    elif several < 2:
        yield Contradiction(("columns", name, "bounds"), f"{several} levels tell nothing", "leave the column out")
