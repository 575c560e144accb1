"""The weighted sum of an outcome."""

from __future__ import annotations

from typing import Any

from dpdist.job.statistics.kind import Constants, Kind, Sums


class Total(Kind):
    name, written, plain = "total", "{total: outcome}", True

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, None]:
        return cells.product(str(constants.variable)), None
