"""The statistics of dpdist."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from dpdist.core.errors import suggestion
from dpdist.job.statistics.kind import Bounds, Constants, Fault, Kind, Sums


class Count(Kind):
    """The weighted number of units in a cell."""

    name, written, plain, of_outcome = "count", "count", True, False

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, None]:
        return cells.weight, None

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if constants.variable is not None:
            yield Fault("a count has no variable", "write count")


class Mean(Kind):
    """The weighted mean of an outcome."""

    name, written, plain = "mean", "{mean: outcome}", True

    def possible(self, constants: Constants, bounds: Bounds) -> tuple[float, float]:
        return bounds(str(constants.variable))

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any]:
        return cells.product(str(constants.variable)), cells.weight


class Total(Kind):
    """The weighted sum of an outcome."""

    name, written, plain = "total", "{total: outcome}", True

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, None]:
        return cells.product(str(constants.variable)), None


class Proportion(Kind):
    """The share of units with an outcome of 1, or above a limit, which is one for all cells."""

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


class Quantile(Kind):
    """The smallest value that a share of the weight does not exceed; the median is that of one half."""

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


class Ratio(Kind):
    """The total of an outcome over that of another."""

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


class Share(Kind):
    """The part of a cell in the larger cell over all levels of some of its columns."""

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


class CellDifference(Kind):
    """A cell's figure less that of the cell with another level of one column."""

    name, written = "difference", "{difference: {mean: outcome}, from: {column: level}}"
    needs, of_outcome = frozenset({"of", "column", "level"}), False

    def operands(self, operand: Any) -> dict[str, Any]:
        return {"of": operand}

    def text(self, constants: Constants) -> Any:
        return {self.name: constants.of.written, "from": {constants.column: constants.level}}

    def label(self, constants: Constants) -> str:
        return f"difference of {constants.of.label} from {constants.column} {constants.level}"

    def about(self, constants: Constants) -> str | None:
        about: str | None = constants.of.about
        return about

    def of_shape(self, constants: Constants) -> bool:
        return bool(constants.of.of_shape)

    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any | None]:
        sums: tuple[Any, Any | None] = constants.of.kind.sums(constants.of, cells)
        return sums

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if constants.column not in table.by:
            fault = f"'{constants.column}' is not a column of table '{table.name}'"
            yield Fault(fault, "compare levels of one of its columns", table.by or ("no column",))
            return
        levels = job.columns[constants.column].levels or () if constants.column in job.columns else ()
        if constants.level not in levels:
            texts = tuple(map(str, levels))
            hint = suggestion(constants.level, texts, "name one of its levels")
            yield Fault(f"'{constants.level}' is not a level of '{constants.column}'", hint, texts)
