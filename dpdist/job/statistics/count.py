"""The weighted number of units in a cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class Count(Kind):
    name, written, plain, of_outcome = "count", "count", True, False

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, None]:
        return cells.weight, None

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if constants.variable is not None:
            yield Fault("a count has no variable", "write count")
