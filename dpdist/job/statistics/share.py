"""The part of a cell in the larger cell over all levels of some of its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Share(Kind):
    name, written, needs = "share", "{share: column}, or {share: [column, column]}", frozenset({"across"})
    of_outcome, limits = False, (0.0, 1.0)

    def operands(self, operand: Any) -> dict[str, Any]:
        return {"across": [operand] if isinstance(operand, str) else operand}

    def text(self, constants: Constants) -> Any:
        return {self.name: list(constants.across)}

    def label(self, constants: Constants) -> str:
        return f"share across {', '.join(constants.across)}"

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.weight, cells.across(constants.across)

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        for name in constants.across:
            if name not in table.by:
                fault = f"'{name}' is not a column of table '{table.name}'"
                remedy = "name one of its columns"
                if name in job.columns and job.columns[name].levels is None:
                    remedy = f"write {{mean: {name}}}, which is a share if its values are 0 and 1; or {remedy}"
                yield Fault(fault, remedy, table.by or ("no column",))
