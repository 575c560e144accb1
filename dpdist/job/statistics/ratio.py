"""The total of an outcome over that of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Ratio(Kind):
    name, written, needs = "ratio", "{ratio: [outcome, outcome]}", frozenset({"over"})

    def operands(self, operand: Any) -> dict[str, Any]:
        if not (isinstance(operand, list | tuple) and len(operand) == 2):
            raise ValueError("a ratio is of two outcomes: write {ratio: [above, below]}")
        return {"variable": operand[0], "over": operand[1]}

    def text(self, one: Constants) -> Any:
        return {self.name: [one.variable, one.over]}

    def about(self, one: Constants) -> str | None:
        return f"{one.variable} / {one.over}"

    def sums(self, one: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.product(str(one.variable)), cells.product(str(one.over))

    def faults(self, one: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if one.variable == one.over:
            yield Fault(f"the ratio of '{one.over}' to itself is 1", "name two outcomes", tuple(job.outcomes))
