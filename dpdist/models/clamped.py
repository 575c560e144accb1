"""A clamped posterior as `engine` passes it to `sampling`: it has no sufficient statistics, so it holds records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Floats


class Spurious(Exception):
    """Raised if the clamped posterior on the reference's records has its mass at a spurious mode."""


@dataclass(frozen=True, eq=False)
class Clamped:
    """The posterior π(θ) ∏ exp(clamp(α(f − offset), ±clamp)), with f a record's log likelihood and α its privacy weight.

    It has no sufficient statistics, so it holds records. `rows` (record, 5) are frame row, outcome, weight, α and offset
    ([G] eq. 3.5–3.6; METHODS §4b).
    """

    rows: Floats
    clamp: float

    @property
    def records(self) -> Records:
        row, n = self.rows[:, 0].astype(np.int32), len(self.rows)
        return Records(np.arange(n), row, self.rows[:, 1], self.rows[:, 2], np.full(n, -1, dtype=np.int32))

    @property
    def alpha(self) -> Floats:
        return self.rows[:, 3]

    @property
    def offset(self) -> Floats:
        return self.rows[:, 4]

    def distinct(self) -> tuple[Clamped, Floats]:
        """The distinct rows with α > 0, and the number of records that each represents."""
        rows, count = np.unique(self.rows[self.alpha > 0], axis=0, return_counts=True)
        return Clamped(rows, self.clamp), count.astype(float)
