"""A cell's figure less that of the cell with another level of one column."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from dpdist.job.statistics.kind import Constants, Fault, Kind, Sums


class CellDifference(Kind):
    name, written = "difference", "{difference: {mean: outcome}, from: {column: level}}"
    needs, of_outcome = frozenset({"of", "column", "level"}), False

    def operands(self, operand: Any) -> dict[str, Any]:
        return {"of": operand}

    def text(self, one: Constants) -> Any:
        return {self.name: one.of.written, "from": {one.column: one.level}}

    def label(self, one: Constants) -> str:
        return f"difference of {one.of.label} from {one.column} {one.level}"

    def about(self, one: Constants) -> str | None:
        about: str | None = one.of.about
        return about

    def of_shape(self, one: Constants) -> bool:
        return bool(one.of.of_shape)

    def sums(self, one: Constants, cells: Sums) -> tuple[Any, Any | None]:
        sums: tuple[Any, Any | None] = one.of.kind.sums(one.of, cells)
        return sums

    def faults(self, one: Constants, job: Any, table: Any) -> Iterator[Fault]:
        if one.column not in table.by:
            fault = f"'{one.column}' is no column of table '{table.name}'"
            yield Fault(fault, "compare levels of one of its columns", table.by or ("no column",))
            return
        levels = job.columns[one.column].levels or () if one.column in job.columns else ()
        if one.level not in levels:
            texts = tuple(map(str, levels))
            near = get_close_matches(str(one.level), texts, n=1)
            hint = f"did you mean '{near[0]}'?" if near else "name one of its levels"
            yield Fault(f"'{one.level}' is no level of '{one.column}'", hint, texts)
