"""The share of units with an outcome of 1, or above a limit, which is one for all cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Proportion(Kind):
    name, written = "proportion", "{proportion: outcome}, or {proportion: outcome, above: 10}"
    takes, limits = frozenset({"above"}), (0.0, 1.0)

    def label(self, constants: Constants) -> str:
        return self.name if constants.above is None else f"{self.name} above {constants.above:.10g}"

    def of_shape(self, constants: Constants) -> bool:
        return constants.above is not None

    def complement(self, constants: Constants) -> bool:
        return constants.above is not None

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        outcome = str(constants.variable)
        return (cells.product(outcome) if constants.above is None else cells.below(outcome)), cells.weight

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        column = job.outcome_columns.get(constants.variable)
        if constants.above is None and column is not None and not (column.bounds == (0.0, 1.0) and column.two_valued):
            remedy = f"write {{proportion: {constants.variable}, above: …}}, or code it 0 and 1"
            yield Fault(f"'{constants.variable}' is not coded 0 and 1", remedy)
