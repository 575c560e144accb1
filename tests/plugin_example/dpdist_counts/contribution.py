"""Statistic `contribution`: the part of a cell in an outcome's total over all levels of some columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Contribution(Kind):
    """A job writes {contribution: pay, across: [region]}."""

    CONTRACT: ClassVar[int] = 2
    name, written, needs = "contribution", "{contribution: outcome, across: [column]}", frozenset({"across"})

    def text(self, one: Constants) -> Any:
        return {self.name: one.variable, "across": list(one.across)}

    def label(self, one: Constants) -> str:
        return f"contribution across {', '.join(one.across)}"

    def sums(self, one: Constants, cells: Sums) -> tuple[Any, Any]:
        outcome = str(one.variable)
        return cells.product(outcome), cells.across(one.across, outcome)

    def faults(self, one: Constants, job: Any, table: Any) -> Iterator[Fault]:
        for column in set(one.across) - set(table.by):
            yield Fault(f"'{column}' is not a column of table '{table.name}'", "use one of its columns", table.by)
