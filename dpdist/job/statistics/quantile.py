"""The smallest value that a share of the weight does not exceed; the median is that of one half."""

from __future__ import annotations

from typing import Any

from dpdist.job.statistics.kind import Bounds, Constants, Kind, Sums


class Quantile(Kind):
    name, written, needs = "quantile", "{quantile: outcome, at: 0.9}", frozenset({"at"})

    def label(self, constants: Constants) -> str:
        return f"{self.name} {constants.at:.10g}"

    def possible(self, constants: Constants, bounds: Bounds) -> tuple[float, float]:
        return bounds(str(constants.variable))

    def of_shape(self, constants: Constants) -> bool:
        return True

    def quantile(self, constants: Constants) -> float | None:
        return constants.at

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.below(str(constants.variable)), cells.weight


class Median(Quantile):
    name, written, needs = "median", "{median: outcome}", frozenset()

    def label(self, constants: Constants) -> str:
        return self.name

    def quantile(self, constants: Constants) -> float | None:
        return 0.5
