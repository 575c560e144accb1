"""Decides whether a figure reproduces and a limit holds, from a run's own replicates and their interval."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from dpdist.core.records import Floats

CONFIDENCE = 0.95
MARGIN_IN_SD = 0.5
"""Figures that lie this near, in standard deviations between replicates, are the same figure for a reader."""
ROUNDING = 1e-9
"""Relative difference of two figures that are computed exactly."""


class Verdict(Enum):
    """What a run says of a claim."""

    YES = "yes"
    NO = "no"
    TOO_FEW = "too few replicates to tell"


class Interval(NamedTuple):
    """A mean over replicates between the ends of its interval; infinite where one replicate has no spread to go by."""

    lower: float
    mean: float
    upper: float

    def within(self, low: float, high: float) -> Verdict:
        """Whether the mean lies between two limits, as far as the interval tells."""
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
    """A figure that is a mean over replicates: the mean, the standard deviation between replicates, their number."""

    mean: float
    sd: float
    replicates: int

    @property
    def variance(self) -> float:
        """Of the mean."""
        return self.sd**2 / self.replicates


def estimate_of(values: Floats) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else np.nan, len(values))


def reproduces(ours: Estimate, theirs: Estimate) -> Verdict:
    """Whether two means are one figure: whether they lie within half a standard deviation between replicates.

    Yes where the whole interval of their difference lies within that margin; no where all of it lies beyond. The
    interval is Welch's: both means have a Monte Carlo error.
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
