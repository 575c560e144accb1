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

    def text(self, constants: Constants) -> Any:
        return {self.name: [constants.variable, constants.over]}

    def about(self, constants: Constants) -> str | None:
        return f"{constants.variable} / {constants.over}"

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.product(str(constants.variable)), cells.product(str(constants.over))

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if constants.variable == constants.over:
            yield Fault(f"the ratio of '{constants.over}' to itself is 1", "name two outcomes", tuple(job.outcomes))
