"""Round values that many records share, such as 24,000, in synthetic records and quantiles.

Moving a reference's shape to released means would move its round values too. But people round to the same values each year.
So ties are first spread evenly, which removes them. A quantile of the spread shape is then replaced by the value
of equal rank in all of the reference's records. Quantiles and monotone maps commute. Limits of intervals are mapped in
the same way, in discrete steps. All of this is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from dpdist.core.records import Floats

SPREAD = 0.15
"""Standard deviation of the logarithms over which a tie is spread."""
COPIES, MOST_COPIES = 15, 300_000
"""Number of values for one point, and approximate largest number of values in all."""
TIES, TIED = 0.002, 5
"""Smallest share and smallest number of records for a value to count as a heap."""
HEAPED = 0.3
"""An outcome counts as heaped if this share of records is on round values other than 0 and the ends."""
ROUNDING = 1e-9
"""Relative rounding error of a rank."""


def is_heaped(values: Floats) -> bool:
    """Whether an outcome's answers, (record,), are heaped. A two-valued outcome is not."""
    distinct, number = np.unique(values, return_counts=True)
    inner = np.isin(distinct, (0.0, values.min(), values.max()), invert=True)
    rounded_values = inner & (number >= max(TIED, TIES * len(values)))
    return bool(number[rounded_values].sum() >= HEAPED * len(values))


def spread(weight: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Weights and values, (copy,), of points whose ties are spread evenly; a value of 0 stays."""
    copies = int(np.clip(MOST_COPIES // max(len(values), 1), 3, COPIES))
    steps = np.exp(SPREAD * scipy.special.ndtri((np.arange(copies) + 0.5) / copies))
    return np.repeat(weight / copies, copies), (values[:, None] * steps).ravel()


@dataclass(frozen=True)
class RoundedValues:
    """The ranks of spread values, and of answers as they are: values in rising order, and shares of weight up to each."""

    smooth: Floats
    smooth_rank: Floats
    answer: Floats
    rank: Floats

    @classmethod
    def of(cls, weight: Floats, values: Floats) -> Self | None:
        """The round values of a reference's records, (record,); None if answers are not heaped."""
        if not len(values) or not is_heaped(values):
            return None
        answer, place = np.unique(values, return_inverse=True)
        rank = np.cumsum(np.bincount(place, weights=weight))
        copied, smooth = spread(weight, values)
        order = np.argsort(smooth, kind="stable")
        ranks = np.cumsum(copied[order])
        return cls(smooth[order], ranks / ranks[-1], answer, rank / rank[-1])

    def answers(self, value: Floats) -> Floats:
        """The answers with the ranks of these spread values, of any shape; NaN stays."""
        rank = np.interp(value, self.smooth, self.smooth_rank)
        place = np.searchsorted(self.rank, np.nan_to_num(rank) * (1.0 - ROUNDING))
        return np.where(np.isnan(value), np.nan, self.answer[np.minimum(place, len(self.answer) - 1)])
