"""For `reference_tables.histograms`: public bins, groups of cells that share noisy histograms, and smoothing (METHODS §7b).

Shares p = softmax(θ) are fitted to noisy counts of n records. A count's error, of variance s² + n p_b, is modelled as
logistic, because Laplace noise has heavy tails. The prior makes third differences of log p small; its scale is the
likeliest under the counts. Beyond the last counts that noise does not explain, log p is concave: a rising tail would take
noise for the heaviest records. A bin whose noisy count is farther from the fit than noise and sampling explain keeps it. So
do its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints

A_DECADE, DECADES = 10, 4
"""Number of bins for a factor of ten, and number of factors of ten below the largest value."""
FEW_VALUES = 40
"""An outcome in whole numbers with at most this many values has a bin for each value."""


class Bins(NamedTuple):
    """Intervals (left, right] in order, (bin,) each. A bin with left = right holds a single value.

    With `atoms`, the first and the last bin hold the public bounds, and all values beyond.
    """

    left: Floats
    right: Floats

    @classmethod
    def within(
        cls, low: float, high: float, whole: bool = False, atoms: tuple[bool, bool] = (True, True), decades: float = DECADES
    ) -> Bins:
        """Bins between public bounds; `atoms` if many records may lie on the bounds."""
        if whole and high - low < FEW_VALUES:
            values = np.arange(np.ceil(low), np.floor(high) + 1.0)
            return cls(values, values)
        inner = [_scale(low, high, decades), -_scale(-high, -low, decades), np.zeros(1 if low < 0 < high else 0)]
        edges = np.unique(np.concatenate([[low, high], *inner]))
        edges = np.concatenate([np.repeat(low, int(atoms[0])), edges, np.repeat(high, int(atoms[1]))])
        return cls(edges[:-1], edges[1:])

    @property
    def ends(self) -> Bins:
        """The first and the last bin alone, which hold the public bounds."""
        return Bins(self.left[[0, -1]], self.right[[0, -1]])

    def number(self, values: Floats) -> Ints:
        """The bin of every value, from 0; values are clipped to the bounds."""
        clipped = np.clip(values, self.left[0], self.right[-1])
        if (self.left == self.right).all():
            return np.asarray(np.rint(clipped - self.left[0]), dtype=np.int64)
        inner = np.searchsorted(self.right, clipped, side="left")
        top = np.where(self.left == self.right, self.left, np.inf)
        number = np.where(clipped >= top[-1], len(self.left) - 1, inner)
        return np.asarray(np.minimum(number, len(self.left) - 1), dtype=np.int64)

    def value_at(self, number: Ints, share: Floats) -> Floats:
        """Values at positions `share`, from 0 to 1, in bins `number`.

        Positions are even in the logarithm, except in bins that hold or touch 0.
        """
        left, right = self.left[number], self.right[number]
        even = left + share * (right - left)
        same_sign = left * right > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(same_sign, left * (right / left) ** share, even)


def _scale(low: float, high: float, decades: float) -> Floats:
    """Edges above 0, A_DECADE for each factor of ten, from `low` or from `decades` factors of ten below `high`."""
    if high <= 0:
        return np.empty(0)
    lowest = max(low, high * 10.0**-decades)
    steps = max(1, round(A_DECADE * np.log10(high / lowest)))
    return np.asarray(lowest * (high / lowest) ** (np.arange(steps) / steps))


HISTOGRAM_POINTS = 1024
"""Number of points that represent a group's histograms."""
FEWEST_POOLED = 300
"""Smallest number of records of a group, in noise scales of a count; smaller cells are pooled."""
PRECISE = 0.25
"""A cell whose log typical weight has a larger standard deviation is in no histogram of weights."""
MOSTLY = 0.75
"""An outcome with this share of records on its two bounds may be a yes or no."""
ROUGHNESS = (0.002, 0.01, 0.05)
"""Prior standard deviations of a third difference of log p that are tried."""
WIDTH = 100.0
"""Prior standard deviation of log p about its mean."""
JUMP = 1.5
"""Prior standard deviation of the difference in log p between a single value's bin and its neighbour."""
BENT = 0.005
"""Prior standard deviation of a positive second difference of log p in the tail."""
ALARM = 1e-4
"""Probability that noise and sampling alone make a count of a histogram look unexplained."""
NO_START = 3.0
"""The search starts this many standard deviations of a count's noise below the noisy counts."""
SURE_SUM = 6.0
"""If a sum of counts exceeds this many standard deviations of noise, its bins surely have records."""
FALLING = 3
"""Number of bins over which the fall of a tail is measured: a factor of two."""
FIT_STEPS = 200
"""Largest number of Newton steps."""
SHORTEST = 1e-6
"""Smallest part of a step that is tried."""
EVEN = 1e-9
"""Difference of two losses that rounding can cause."""
CLOSE = 1e-6
"""Step of θ at which the fit has converged."""


def smoothed(noisy: Floats, total: float, variance: float, bins: Bins) -> tuple[Floats, Floats]:
    """Shares (bin,) and their covariance (bin, bin), from noisy counts of `total` records.

    `variance` is the variance of the noise on a count.
    """
    tail = _tail(noisy, variance, bins)
    tried = [_fit(noisy, total, variance, _prior(bins, roughness), tail) for roughness in ROUGHNESS]
    _, share, covariance = max(tried, key=lambda fit: fit[0])
    return _as_counted(noisy, total, variance, share, covariance)


def _as_counted(noisy: Floats, total: float, variance: float, share: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """The fit, except that unexplained bins and their neighbours have noisy counts and their variance."""
    missed = np.abs(noisy - total * share) > explained(share, total, variance)
    counted = missed.copy()
    counted[1:] |= missed[:-1]
    counted[:-1] |= missed[1:]
    mended = np.where(counted, np.maximum(noisy, 0.0) / total, share)
    scale, kept = mended.sum(), ~counted
    if not missed.any() or scale == 0.0:  # it is 0 where noise has taken every count to 0 or below
        return share, covariance
    covariance = np.where(np.outer(kept, kept), covariance, 0.0)
    covariance += np.diag(np.where(counted, (variance + np.maximum(noisy, 0.0)) / total**2, 0.0))
    turned = (np.eye(len(share)) - np.outer(mended / scale, np.ones(len(share)))) / scale
    return mended / scale, turned @ covariance @ turned.T


def explained(share: Floats, total: float, variance: float) -> Floats:
    """Largest distance of a count from its expected value by noise and sampling, (bin,).

    Half of ALARM is for Laplace noise and half for sampling, divided among the bins.
    """
    chance = 0.5 * ALARM / len(share)
    return np.asarray(
        -np.sqrt(variance / 2.0) * np.log(chance) - scipy.special.ndtri(0.5 * chance) * np.sqrt(total * share)
    )


def _fit(noisy: Floats, total: float, variance: float, prior: Floats, tail: Floats) -> tuple[float, Floats, Floats]:
    """Log evidence up to a constant, shares and their covariance, for one prior.

    `prior` (row, bin) is a root of its precision matrix. `tail` (difference, bin) are second differences of θ that must
    not be above 0.
    """
    # From a count that noise alone made, the search would end in a mode of records that are not there.
    theta = np.log(np.maximum(noisy - NO_START * np.sqrt(variance), 1.0 + np.sqrt(variance) / 10.0))
    theta, scale = theta - theta.mean(), _error_scale(variance, noisy)

    def loss(theta: Floats, scale: Floats) -> float:
        residual = noisy - total * scipy.special.softmax(theta)
        misfit = np.log(scale) + 2.0 * np.logaddexp(0.0, -np.abs(residual) / scale)
        misfit += np.abs(residual) / scale
        bent, rough = np.maximum(tail @ theta, 0.0) / BENT, prior @ theta
        return float(misfit.sum() + 0.5 * (rough @ rough + bent @ bent))

    for _ in range(FIT_STEPS):
        p = scipy.special.softmax(theta)
        rate, expected = np.diag(p) - np.outer(p, p), total * p
        width = np.sqrt(3.0) * scale
        slope = total * rate / width[:, None]
        pull = width * np.tanh((noisy - expected) / (2.0 * scale)) / scale
        bent = tail[tail @ theta > 0.0] / BENT
        # Least squares on roots: with normal equations, whose condition is the square, the last digits of a processor's
        # arithmetic would show in the ninth digit of the shares.
        held = np.vstack([slope, prior, bent])
        left = np.concatenate([pull, -prior @ theta, -bent @ theta])
        step, length = np.linalg.lstsq(held, left, rcond=None)[0], 1.0
        while loss(theta + length * step, scale) > loss(theta, scale) + EVEN and length > SHORTEST:
            length /= 2.0
        theta = theta + length * step
        scale = _error_scale(variance, total * scipy.special.softmax(theta))
        if np.abs(step).max() < CLOSE:
            break
    evidence = _log_size(prior) - _log_size(held) - loss(theta, scale)
    # That a tail is concave is an assumption and adds no information. So the covariance is computed without it.
    error = np.linalg.solve(_triangle(np.vstack([slope, prior])).T, rate)
    return float(evidence), scipy.special.softmax(theta), error.T @ error


def _log_size(root: Floats) -> float:
    """Half the log determinant of R'R, from R (row, bin)."""
    return float(np.log(np.abs(np.diag(_triangle(root)))).sum())


def _triangle(root: Floats) -> Floats:
    """The upper triangle U (bin, bin) with U'U = R'R, from R (row, bin)."""
    return np.asarray(np.linalg.qr(root, mode="r"))


def _tail(noisy: Floats, variance: float, bins: Bins) -> Floats:
    """Second differences of log p, (difference, bin), that must not be positive: from the last sure bin up, or all.

    A bin is sure if noise does not explain its count, or the sum of counts from this bin up. If values may be negative,
    the same holds in the lower tail.
    """
    wide = np.flatnonzero(bins.left < bins.right)
    if not len(wide):
        return np.zeros((0, len(noisy)))
    sure = noisy[wide] > explained(np.zeros(len(noisy)), 0.0, variance)[wide]
    noise = SURE_SUM * np.sqrt(variance * np.arange(1, len(wide) + 1))
    above = wide[sure | (np.cumsum(noisy[wide][::-1]) > noise)[::-1]]
    below = wide[sure | (np.cumsum(noisy[wide]) > noise)]
    last, first = above[-1] if len(above) else wide[0], below[0] if len(below) else wide[-1]
    middle = np.arange(wide[0] + 1, wide[-1])
    middle = middle[(middle >= last) | ((middle <= first) & (bins.left[0] < 0.0))]
    return np.asarray(np.eye(len(noisy))[middle - 1] - 2.0 * np.eye(len(noisy))[middle] + np.eye(len(noisy))[middle + 1])


def _error_scale(variance: float, count: Floats) -> Floats:
    """The scale of the logistic law of a count's error, (bin,)."""
    return np.asarray(np.sqrt(3.0 * (variance + np.maximum(count, 0.0))) / np.pi)


def _prior(bins: Bins, roughness: float) -> Floats:
    """A root of the precision matrix of the prior of θ, (row, bin)."""
    wide = bins.left < bins.right
    ends = np.flatnonzero(np.diff(wide.astype(int))) + 1
    blocks = []
    for part in np.split(wide, ends):
        size = len(part)
        rough = np.diff(np.eye(size), n=3, axis=0) if part.all() and size > 3 else np.zeros((1, size))
        blocks.append(rough / roughness)
    jumps = (np.eye(len(wide))[ends] - np.eye(len(wide))[ends - 1]) / JUMP
    return np.vstack([scipy.linalg.block_diag(*blocks), jumps, np.eye(len(wide)) / WIDTH])


def grouped(codes: Codes, count: Floats, least: float) -> Codes:
    """The group of every cell, (cell,); groups have at least `least` records and are as fine as possible.

    Small cells are pooled with those that differ in the last column only, then in the last two, and so on. A smallest
    group that is still too small joins the next larger one. `codes` is (cell, column).
    """
    group = np.arange(len(codes))
    for depth in range(codes.shape[1] - 1, -1, -1):
        small = np.flatnonzero(np.bincount(group, weights=count, minlength=len(codes))[group] < least)
        for key in np.unique(codes[small, :depth], axis=0):
            joined = small[(codes[small, :depth] == key).all(axis=1)]
            group[joined] = joined[0]
    size = np.bincount(group, weights=count, minlength=len(codes))
    used = np.unique(group)
    if len(used) > 1 and size[used].min() < least:
        smallest, next_one = used[np.argsort(size[used], kind="stable")[:2]]
        group[group == smallest] = next_one
    return np.unique(group, return_inverse=True)[1].astype(np.int32)


def in_common(codes: Codes, count: Floats, group: Codes, margins: Sequence[tuple[int, ...]]) -> Floats:
    """Factor on the square of a shared error, relative to a cell's separate error, (group,).

    It is the harmonic mean of n_P/n_k, over published cells (n_P records) that contain cells of the group (n_k records). In
    the variance of a published cell, a cell's separate error has the factor n_k/n_P, as direct errors have. A shared error
    has the factor 1.
    """
    separate, cells = np.zeros(len(codes)), np.bincount(group)
    for margin in margins:
        _, published = np.unique(codes[:, list(margin)], axis=0, return_inverse=True)
        published = published.reshape(-1)
        separate += count / np.bincount(published, weights=count)[published]
    return np.asarray(len(margins) * cells / np.bincount(group, weights=separate))


def holds_two_values(noisy: Floats, variance: float, bins: Bins) -> bool:
    """True for a yes-or-no outcome: nearly all records are on its bounds, and only noise between them.

    Bins between the bounds then do not belong to the outcome's shape.
    """
    if len(noisy) < 3 or bins.left[0] < bins.right[0] or bins.left[-1] < bins.right[-1]:
        return False
    inner, ends = noisy[1:-1], float(noisy[0] + noisy[-1])
    sum_of_noise = 3.0 * float(np.sqrt(variance * len(inner)))
    alone = inner.max() <= explained(np.zeros(len(noisy)), 0.0, variance)[0]
    return bool(alone and inner.sum() <= sum_of_noise and ends > MOSTLY * (ends + max(float(inner.sum()), 0.0)) > 0.0)


def sure_ends(noisy: Floats, variance: float) -> tuple[int, int]:
    """Numbers of the first and the last sure bin; of the outer bins if there are none."""
    sure = np.flatnonzero(noisy > explained(np.zeros(len(noisy)), 0.0, variance))
    return (int(sure[0]), int(sure[-1])) if len(sure) else (0, len(noisy) - 1)


def fall(share: Floats, covariance: Floats, bins: Bins, number: int, step: int) -> float:
    """By which power of the value shares fall towards bin `number`, less one standard deviation; at least 0.

    They are compared with those FALLING bins before it; `step` is 1 for an upper tail and −1 for a lower one. With a
    concave logarithm they fall at least as steeply beyond. 0 if a bin between holds a single value or touches 0.
    """
    before = number - FALLING * step
    rows = [before, number]
    if not 0 <= before < len(share) or (bins.left * bins.right <= 0.0)[rows].any() or (share[rows] <= 0.0).any():
        return 0.0
    wide = np.log(bins.right[rows] / bins.left[rows])
    if not wide.all():
        return 0.0
    middle = 0.5 * np.log(np.abs(bins.left[rows] * bins.right[rows]))
    density, error = np.log(share[rows] / np.abs(wide)), covariance[np.ix_(rows, rows)] / np.outer(share[rows], share[rows])
    fallen = density[0] - density[1] - np.sqrt(max(error[0, 0] + error[1, 1] - 2.0 * error[0, 1], 0.0))
    return max(0.0, float(fallen / abs(middle[1] - middle[0])))


def evenly_placed(counts: Floats, order: Floats) -> tuple[np.ndarray, Floats]:
    """The bin of each point, and its position in the bin, at the quantile levels `order` of a histogram."""
    upper = np.cumsum(counts)
    place = order * upper[-1]
    number = np.minimum(np.searchsorted(upper, place, side="right"), len(counts) - 1)
    number = np.minimum(number, np.flatnonzero(counts > 0)[-1])
    return number, np.clip((place - (upper[number] - counts[number])) / counts[number], 0.0, 1.0)


def paired_levels(number: int) -> list[Floats]:
    """Quantile levels of the points, one array for each variable; across variables the points are spread evenly.

    They are ranks of a Kronecker sequence (Roberts 2018).
    """
    golden = 2.0
    for _ in range(60):
        golden = (1.0 + golden) ** (1.0 / (number + 1))
    sequence = np.arange(HISTOGRAM_POINTS)[:, None] * golden ** -np.arange(1, number + 1) % 1.0
    return list((np.argsort(np.argsort(sequence, axis=0), axis=0).T + 0.5) / HISTOGRAM_POINTS)
