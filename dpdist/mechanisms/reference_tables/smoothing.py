"""Smooths a noisy histogram, so that noise does not hide its tails; this is post-processing.

Shares of bins, p = softmax(θ), are fitted to noisy counts of n records. The error of the count of bin b has the variance
s² + n p_b, from noise and sampling. It is taken as logistic, because Laplace noise has heavy tails too. The prior makes
third differences of log p over neighbouring bins small. Of several prior sizes of these differences, the one that is
likeliest under the counts is taken. With more noise the shape is closer to a lognormal law on log-spaced bins.

Beyond the last count that noise alone does not explain, log p is concave, as in all laws from the lognormal's to
Pareto's. Public bounds may lie far beyond all records, and a tail that could rise would take noise for the heaviest
records. A bin of a single value is tied to its neighbour alone, and loosely. The covariance of the shares is the Laplace
approximation's.

A mixture of strata with different weights may have a second mode, which the prior smooths away. Where the fit differs from
a noisy count by more than noise and sampling explain, that bin and its neighbours keep their noisy counts.
"""

from __future__ import annotations

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.histogram_bins import Bins

ROUGHNESS = (0.002, 0.01, 0.05)
"""Prior standard deviations of a third difference of log p that are tried."""
WIDTH = 10.0
"""Prior standard deviation of log p about its mean."""
JUMP = 1.5
"""Prior standard deviation of the difference in log p between a bin of a single value and its neighbour."""
BENT = 0.005
"""Prior standard deviation of a second difference of log p that is above 0, in the tail."""
ALARM = 1e-4
"""Probability, for a whole histogram, that noise and sampling alone make a count look unexplained."""
FIT_STEPS = 200
"""Largest number of Newton steps."""
SHORTEST = 1e-6
"""Smallest part of a step that is tried."""
EVEN = 1e-9
"""Difference of two losses that rounding may make."""
CLOSE = 1e-6
"""Step of θ at which the fit has converged."""


def smoothed(noisy: Floats, total: float, variance: float, bins: Bins) -> tuple[Floats, Floats]:
    """Shares (bin,) and their covariance (bin, bin), from noisy counts of `total` records.

    `variance` is the variance of the noise on a count.
    """
    tail = _tail(noisy, variance, bins)
    tried = [_fit(noisy, total, variance, _prior(bins, roughness), tail) for roughness in ROUGHNESS]
    _, share, covariance = max(tried, key=lambda found: found[0])
    return _as_counted(noisy, total, variance, share, covariance)


def _as_counted(noisy: Floats, total: float, variance: float, share: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """The fit, with noisy counts and their variance in the bins that the fit does not explain, and in their neighbours."""
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
    """How far noise and sampling may move a count from its expected value, (bin,).

    Half of ALARM is for the Laplace noise and half for sampling; the bins share each half. Among many bins, Laplace noise
    is often 6 of its standard deviations away somewhere.
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
    theta = np.log(np.maximum(noisy, 1.0 + np.sqrt(variance) / 10.0))
    theta, scale = theta - theta.mean(), _scale(variance, noisy)

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
        scale = _scale(variance, total * scipy.special.softmax(theta))
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
    """Second differences of log p, (difference, bin), that must not be above 0.

    In the upper tail they start from the last count that noise alone does not explain. Where values may be negative, the
    lower tail has them too.
    """
    wide = np.flatnonzero(bins.left < bins.right)
    sure = wide[noisy[wide] > explained(np.zeros(len(noisy)), 0.0, variance)[wide]]
    if not len(sure):
        return np.zeros((0, len(noisy)))
    middle = np.arange(wide[0] + 1, wide[-1])
    middle = middle[(middle >= sure[-1]) | ((middle <= sure[0]) & (bins.left[0] < 0.0))]
    return np.asarray(np.eye(len(noisy))[middle - 1] - 2.0 * np.eye(len(noisy))[middle] + np.eye(len(noisy))[middle + 1])


def _scale(variance: float, count: Floats) -> Floats:
    """The scale of the logistic law of a count's error, (bin,)."""
    return np.asarray(np.sqrt(3.0 * (variance + np.maximum(count, 0.0))) / np.pi)


def _prior(bins: Bins, roughness: float) -> Floats:
    """A root of the precision matrix of the prior of θ, (row, bin)."""
    wide = bins.left < bins.right
    ends = np.flatnonzero(np.diff(wide.astype(int))) + 1
    blocks = []
    for own in np.split(wide, ends):
        size = len(own)
        rough = np.diff(np.eye(size), n=3, axis=0) if own.all() and size > 3 else np.zeros((1, size))
        blocks.append(rough / roughness)
    jumps = (np.eye(len(wide))[ends] - np.eye(len(wide))[ends - 1]) / JUMP
    return np.vstack([scipy.linalg.block_diag(*blocks), jumps, np.eye(len(wide)) / WIDTH])
