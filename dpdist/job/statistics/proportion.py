"""The share of units with an outcome of 1, or above a limit, which is one for all cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Proportion(Kind):
    name, written = "proportion", "{proportion: outcome}, or {proportion: outcome, above: 10}"
    takes, limits = frozenset({"above"}), (0.0, 1.0)

    def label(self, one: Constants) -> str:
        return self.name if one.above is None else f"{self.name} above {one.above:.10g}"

    def of_shape(self, one: Constants) -> bool:
        return one.above is not None

    def complement(self, one: Constants) -> bool:
        return one.above is not None

    def sums(self, one: Constants, cells: Sums) -> tuple[Any, Any]:
        outcome = str(one.variable)
        return (cells.product(outcome) if one.above is None else cells.below(outcome)), cells.weight

    def faults(self, one: Constants, job: Any, table: Any) -> Iterator[Fault]:
        column = job.outcome_columns.get(one.variable)
        if one.above is None and column is not None and not (column.bounds == (0.0, 1.0) and column.two_valued):
            remedy = f"write {{proportion: {one.variable}, above: …}}, or code it 0 and 1"
            yield Fault(f"'{one.variable}' is not coded 0 and 1", remedy)
