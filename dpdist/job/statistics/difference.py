"""A cell's figure less that of the cell with another level of one column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.core.errors import suggestion
from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class CellDifference(Kind):
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
