"""For `quality.calibrate` and `studies`: distances between an outcome's distributions; mean and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats

LEVEL = 0.95
QUANTILES = {"q15": 0.15, "median": 0.5, "q90": 0.9}


# The empirical distribution function at t is the share of records that are at most t. Distances are taken at the pooled
# values of both data sets. A value counts as often as it occurs in both ([G] §4.3, after Woo et al. 2009). A quantile is
# interpolated between order statistics (type 7, the default of NumPy and R). Intervals are nominal 95 %. For the mean it is
# mean ± 1.96 s/√n. For a quantile it is the pair of order statistics whose ranks are the 2.5 % and 97.5 % points of
# Binomial(n, p). This needs no density estimate, and covers at least the nominal share. [V] does not say how the intervals
# of its table were made.
class Distances(NamedTuple):
    """Largest absolute difference, and mean squared difference, of two empirical distribution functions."""

    max_ecdf: float
    avg_ecdf: float


class UtilityInterval(NamedTuple):
    estimate: float
    lower: float
    upper: float


def ecdf(sample: Floats, points: Floats) -> Floats:
    """The share of the sample at or below each value in `points`."""
    return np.asarray(np.searchsorted(np.sort(sample), points, side="right") / len(sample))


def distances(confidential: Floats, synthetic: Floats) -> Distances:
    """Distances at the pooled values of both data sets."""
    pooled = np.concatenate([confidential, synthetic])
    difference = ecdf(confidential, pooled) - ecdf(synthetic, pooled)
    return Distances(float(np.abs(difference).max()), float((difference**2).mean()))


def mean_interval(sample: Floats) -> UtilityInterval:
    """The interval mean ± z s/√n, with z the normal quantile."""
    mean = float(sample.mean())
    half = (
        float(scipy.stats.norm.ppf((1.0 + LEVEL) / 2.0) * sample.std(ddof=1) / np.sqrt(len(sample)))
        if len(sample) > 1
        else np.inf
    )
    return UtilityInterval(mean, mean - half, mean + half)


def quantile_interval(sample: Floats, share: float) -> UtilityInterval:
    """A quantile with the two order statistics that bound it; an end is infinite if the sample has none for it."""
    # With B ~ Binomial(n, p), the order statistic y_(l) is at most the quantile if B ≥ l, and y_(u) is above it if B ≤ u −
    # 1. So l and u − 1 are the (1 ∓ level)/2 points of B.
    ordered, n = np.sort(sample), len(sample)
    low, high = (int(scipy.stats.binom.ppf(tail, n, share)) for tail in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    lower = ordered[low - 1] if low >= 1 else -np.inf
    upper = ordered[high] if high < n else np.inf
    return UtilityInterval(float(np.quantile(sample, share)), float(lower), float(upper))


def location(sample: Floats) -> dict[str, UtilityInterval]:
    """Mean, 15th, 50th and 90th percentile with their intervals ([G] figures 5 and 11–15, [V] table 1)."""
    return {"mean": mean_interval(sample)} | {name: quantile_interval(sample, p) for name, p in QUANTILES.items()}
