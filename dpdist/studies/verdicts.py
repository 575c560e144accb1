"""Decides whether a figure reproduces and a limit holds, from a run's own replicates and their interval."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dpdist.core.records import Floats

CONFIDENCE = 0.95
MARGIN_IN_SD = 0.5
"""Distance, in standard deviations between replicates, within which two figures are the same for a reader."""
ROUNDING = 1e-9
"""Relative difference of two figures that are computed exactly."""


class Verdict(Enum):
    """Verdict of a run on a claim."""

    YES = "yes"
    NO = "no"
    TOO_FEW = "too few replicates to tell"


class Interval(NamedTuple):
    """A mean over replicates with the ends of its interval, which are infinite if one replicate gives no spread."""

    lower: float
    mean: float
    upper: float

    def within(self, low: float, high: float) -> Verdict:
        """States whether the mean lies between two limits, as far as the interval shows."""
        if low <= self.lower and self.upper <= high:
            return Verdict.YES
        return Verdict.NO if self.upper < low or high < self.lower else Verdict.TOO_FEW


def mean_interval(values: Floats) -> Interval:
    """Student's interval of the mean over replicates, (replicate,)."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(-np.inf, mean, np.inf)
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2.0) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean - half, mean, mean + half)


class Estimate(NamedTuple):
    """An estimate that is a mean over replicates: the mean, the standard deviation between replicates, their number."""

    mean: float
    sd: float
    replicates: int

    @property
    def variance(self) -> float:
        """Variance of the mean."""
        return self.sd**2 / self.replicates


def estimate_of(values: Floats) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else np.nan, len(values))


def reproduces(ours: Estimate, theirs: Estimate) -> Verdict:
    """States whether two means are the same figure: within half a standard deviation between replicates.

    The answer is yes where the whole interval of their difference lies within that margin, and no where it lies outside.
    The interval is Welch's: both means have a Monte Carlo error.
    """
    if ours.replicates < 2:
        return Verdict.TOO_FEW
    variance, difference = ours.variance + theirs.variance, ours.mean - theirs.mean
    if variance <= (ROUNDING * theirs.mean) ** 2:
        return Verdict.YES if abs(difference) <= ROUNDING * abs(theirs.mean) else Verdict.NO
    parts = [each.variance**2 / (each.replicates - 1) for each in (ours, theirs) if each.replicates > 1]
    half = float(stdtrit(variance**2 / sum(parts), 0.5 + CONFIDENCE / 2.0) * np.sqrt(variance))
    margin = MARGIN_IN_SD * float(np.sqrt((ours.sd**2 + theirs.sd**2) / 2.0))
    return Interval(difference - half, difference, difference + half).within(-margin, margin)
