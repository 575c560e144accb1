"""The type `Records` of confidential survey records. Publication never sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Codes, Floats, Ints


@dataclass(frozen=True)
class Records:
    """Confidential records in the order of the crosstab. All arrays but `outcomes` are (record,)."""

    record: Ints
    """Row number in the file that was read."""
    row: Codes
    """The record's row of the crosstab, which gives its predictors, cells, stratum and design stratum."""
    outcomes: Floats
    """Outcomes, (record, outcome); (record,) is accepted for a single one. An outcome's values are contiguous in memory."""
    weight: Floats
    psu: Codes

    def __post_init__(self) -> None:
        outcomes = self.outcomes if self.outcomes.ndim == 2 else self.outcomes[:, None]
        if outcomes.strides[0] != outcomes.itemsize:
            outcomes = np.asfortranarray(outcomes)
        object.__setattr__(self, "outcomes", outcomes)

    @classmethod
    def of_outcomes(cls, outcomes: Floats, weight: Floats | None = None, row: Codes | None = None) -> Self:
        """A file without PSUs with these outcomes, (record,) or (record, outcome): by default, of one crosstab row with
        weights 1.
        """
        n = len(outcomes)
        weight, row = np.ones(n) if weight is None else weight, np.zeros(n, np.int32) if row is None else row
        return cls(np.arange(n), row, outcomes, weight, np.full(n, -1, np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Self:
        """The records of all parts in order, copied to memory."""
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def __len__(self) -> int:
        return len(self.record)

    def take(self, which: slice | Ints | NDArray[np.bool_]) -> Records:
        """Selects records by a slice, positions or a mask."""
        return Records(self.record[which], self.row[which], self.outcomes[which], self.weight[which], self.psu[which])

    @property
    def outcome(self) -> Floats:
        """The outcome, (record,), of records that have a single one."""
        assert self.outcomes.shape[1] == 1, "records with several outcomes do not have a single outcome: use `about`"
        return self.outcomes[:, 0]

    def about(self, outcome: int) -> Records:
        """The same records with only one of their outcomes."""
        return replace(self, outcomes=self.outcomes[:, outcome])

    def part(self, start: int, stop: int) -> Records:
        return self.take(slice(start, stop))

    def blocks(self, size: int) -> list[Records]:
        """The records in order, in parts of this size; the last part may be smaller."""
        return [self.part(start, start + size) for start in range(0, len(self), size)]
