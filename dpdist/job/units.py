"""Settings of the privacy unit, whose loss the budget bounds: one record, or all records of a person or household."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dpdist.job.values import ColumnName, Frozen, at_most


class PrivacyUnit(Frozen):
    """All records with the same value of a column are one unit, whose loss the budget bounds."""

    column: ColumnName = Field(description="column of the file that names a record's unit: a person or a household")
    most: Annotated[int, at_most(10_000, "noise grows with it")] = Field(
        ge=1, description="records of one unit that may count; public, not taken from the file"
    )
    beyond: Literal["refuse", "truncate"] = Field(
        default="refuse", description="where a unit has more: refuse the file, or use its first `most` in the file's order"
    )
