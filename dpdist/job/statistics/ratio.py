"""The total of an outcome over that of another."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from dpdist.job.statistics.kind import Bounds, Constants, Fault, Kind, Sums


class Ratio(Kind):
    name, written, needs = "ratio", "{ratio: [outcome, outcome]}", frozenset({"over"})

    def operands(self, operand: Any) -> dict[str, Any]:
        if not (isinstance(operand, list | tuple) and len(operand) == 2):
            raise ValueError("a ratio needs two outcomes: write {ratio: [numerator, denominator]}")
        return {"variable": operand[0], "over": operand[1]}

    def text(self, constants: Constants) -> Any:
        return {self.name: [constants.variable, constants.over]}

    def about(self, constants: Constants) -> str | None:
        return f"{constants.variable} / {constants.over}"

    def possible(self, constants: Constants, bounds: Bounds) -> tuple[float, float]:
        """Quotients of the bounds, if no outcome below is negative. Nothing keeps the total above within the one below."""
        (low, high), (least, most) = bounds(str(constants.variable)), bounds(str(constants.over))
        if least < 0.0 or most <= 0.0:
            return -inf, inf
        lower = low / (most if low >= 0.0 else least) if low >= 0.0 or least > 0.0 else -inf
        upper = high / (most if high <= 0.0 else least) if high <= 0.0 or least > 0.0 else inf
        return lower, upper

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.product(str(constants.variable)), cells.product(str(constants.over))

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if constants.variable == constants.over:
            yield Fault(f"the ratio of '{constants.over}' to itself is 1", "name two outcomes", tuple(job.outcomes))
