"""Decides, from a run's replicates, whether a published figure reproduces and whether a limit is met."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats

CONFIDENCE = 0.95
MARGIN_IN_SD = 0.5
"""Distance, in standard deviations between replicates, within which two figures count as the same."""
ROUNDING = 1e-9
"""Relative difference within which two figures without Monte Carlo error count as the same."""


class Verdict(Enum):
    """What a run shows about a claim: yes, no, or too few replicates to tell."""

    YES = "yes"
    NO = "no"
    TOO_FEW = "too few replicates to tell"


class Interval(NamedTuple):
    """A mean over replicates, and its interval; the ends are infinite with a single replicate."""

    lower: float
    mean: float
    upper: float

    def within(self, low: float, high: float) -> Verdict:
        """Decides whether the mean lies between two limits, as far as the interval can show."""
        if low <= self.lower and self.upper <= high:
            return Verdict.YES
        return Verdict.NO if self.upper < low or high < self.lower else Verdict.TOO_FEW


def mean_interval(values: Floats) -> Interval:
    """Student's 95 % interval of a mean over replicates, (replicate,)."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(-np.inf, mean, np.inf)
    half = float(scipy.special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2.0) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean - half, mean, mean + half)


class Estimate(NamedTuple):
    """A figure that is a mean over replicates: the mean, the standard deviation between replicates, and their number."""

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
    """Decides whether two means agree within half a standard deviation between replicates.

    The answer is yes if the whole interval of their difference lies within that margin, and no if it lies outside. The
    interval is Welch's, because both means have a Monte Carlo error.
    """
    if ours.replicates < 2:
        return Verdict.TOO_FEW
    variance, difference = ours.variance + theirs.variance, ours.mean - theirs.mean
    if variance <= (ROUNDING * theirs.mean) ** 2:
        return Verdict.YES if abs(difference) <= ROUNDING * abs(theirs.mean) else Verdict.NO
    parts = [each.variance**2 / (each.replicates - 1) for each in (ours, theirs) if each.replicates > 1]
    half = float(scipy.special.stdtrit(variance**2 / sum(parts), 0.5 + CONFIDENCE / 2.0) * np.sqrt(variance))
    margin = MARGIN_IN_SD * float(np.sqrt((ours.sd**2 + theirs.sd**2) / 2.0))
    return Interval(difference - half, difference, difference + half).within(-margin, margin)
