"""The weighted mean of an outcome."""

from __future__ import annotations

from typing import Any

from dpdist.job.statistics.kind import Bounds, Constants, Kind, Sums


class Mean(Kind):
    name, written, plain = "mean", "{mean: outcome}", True

    def possible(self, constants: Constants, bounds: Bounds) -> tuple[float, float]:
        return bounds(str(constants.variable))

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.product(str(constants.variable)), cells.weight
