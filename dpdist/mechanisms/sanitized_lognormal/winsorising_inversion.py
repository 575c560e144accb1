"""Means and covariance from noisy winsorised sums, with shrinkage and errors.

This is post-processing of the released sums with a reference. All figures are whitened, in units of C reference
standard deviations. The current file is modelled as the reference's residuals x, stretched by one symmetric matrix T
and shifted by each cell's δ. A cell's measured mean has sampling error of variance σ² and noise of variance ν². True
means vary about the common shift by the variance A between cells and the reference's error variance ρ². A cell keeps
the part k = (A + ρ² + σ²)/(A + ρ² + σ² + ν²) of its distance from the common shift. This estimates the mean without
noise. Then δ and T are solved so that the reference's residuals have the winsorised moments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.estimation.linear import symmetric_root
from dpdist.estimation.small_area import shrink
from dpdist.mechanisms.sanitized_lognormal.sensitivity import REACH, Whitening, WinsorisedMoments
from dpdist.models.protocol import Improper

KEPT = 2_000
"""Number of a reference's residuals that represent all of them."""
LARGEST_SHIFT = 3.0 / REACH
"""Largest shift of a cell in either direction: three reference standard deviations."""
STRETCH = (0.5, 2.0)
"""Public range of T's eigenvalues; the covariance then has between a quarter and four times the reference's eigenvalues."""
ROUNDS, STEP, DONE = 60, 1e-2, 1e-10
"""Largest number of iterations, step of the numerical derivatives, and tolerance."""
CONSTANT = (
    "log outcome or log weight is the same in every cell's reference records, or one is a linear function of the other"
)


class ReferenceMoments(NamedTuple):
    """Summary of the reference.

    It has the whitening; residuals (residual, 2) with mean 0 and covariance 1/C²; and numbers of records (cell,).
    """

    whitening: Whitening
    residuals: Floats
    records: Ints


class InvertedFit(NamedTuple):
    """The fit, δ (cell, 2) and T (2, 2), and the law of its errors.

    - `own_weight`: k, (cell, 2). `share`: the weight of each cell in the common shift, (cell, 2).
    - `prior`, `sampling`, `noise`: the variances A + ρ², σ² and ν² of the cells' means, (cell, 2).
    - `rate`: derivative of δ by the mean winsorised location, (2, 2).
    - `tail`: covariance of δ's error from the reference's tails, (2, 2).
    - `scatter_sampling`, `scatter_noise`: covariances of T's three entries from sampling and from noise, (3, 3).
    """

    shift: Floats
    stretch: Floats
    own_weight: Floats
    share: Floats
    prior: Floats
    sampling: Floats
    noise: Floats
    rate: Floats
    tail: Floats
    scatter_sampling: Floats
    scatter_noise: Floats


def whitening_of(cell: Ints, outcome: Floats, weight: Floats, cells: int) -> ReferenceMoments:
    """The whitening from a reference's records. Raises `Improper` if logarithms have no covariance within cells."""
    z, count = np.log(np.column_stack([outcome, weight])), np.bincount(cell, minlength=cells)
    centre = np.column_stack([np.bincount(cell, weights=column, minlength=cells) for column in z.T]) / count[:, None]
    residual = z - centre[cell]
    scatter = residual.T @ residual / max(1, len(z) - cells)
    deviation = np.sqrt(np.diag(scatter))
    if not (deviation > 1e-6).all() or abs(scatter[0, 1]) > (1.0 - 1e-9) * deviation.prod():
        raise Improper(CONSTANT)
    sample = residual[np.linspace(0, len(residual) - 1, min(KEPT, len(residual))).astype(np.int64)]
    sample = sample - sample.mean(axis=0)
    root = np.linalg.cholesky(sample.T @ sample / len(sample) + 1e-12 * np.diag(np.diag(scatter)))
    whitened = np.linalg.solve(root, sample.T).T / REACH
    return ReferenceMoments(Whitening(centre, np.linalg.inv(np.linalg.cholesky(scatter))), whitened, count)


def fit(
    whitening: ReferenceMoments, moments: WinsorisedMoments, count: Floats, noise: tuple[float, Floats], shrinkage: bool
) -> InvertedFit:
    """Fits δ and T; `count` is the current file's public sizes (cell,), and `noise` the variances of the moments' noise."""
    n, x = float(count.sum()), whitening.residuals
    within = _winsorise(x)
    sampling, earlier = (within.var(axis=0) / size[:, None] for size in (count, whitening.records))
    noisy = np.repeat(noise[0] / count[:, None] ** 2, 2, axis=1)
    location = moments.location / count[:, None]
    own_weight, centre, spread = np.ones_like(location), location, np.zeros(2)
    if shrinkage and len(count) > 2:
        parts = [shrink(location[:, k], (sampling + earlier)[:, k], noisy[:, k]) for k in range(2)]
        own_weight, centre = (np.column_stack([part[i] for part in parts]) for i in range(2))
        spread = np.array([part.drift for part in parts])
    prior = spread + earlier
    precision = 1.0 / (prior + sampling + noisy)
    share = precision / precision.sum(axis=0)
    first, second = (count / n) @ (prior - own_weight**2 / precision)
    scatter = moments.scatter / n - np.array([first + second, first - second, 0.0])
    rate, bend = _slopes(x)
    shift, stretch = _solve(x, np.clip(centre, -1.0, 1.0), scatter, count / n, rate, bend)
    influence = (_terms(within) - _terms(within).mean(axis=0)) @ bend.T
    direct = np.column_stack([x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2]) * REACH**2 / 2.0
    records = float(whitening.records.sum())
    beyond = np.cov((direct - direct.mean(axis=0) - influence).T) / records
    sampled, noised = np.cov(influence.T) / n + beyond, bend @ np.diag(noise[1] / n**2) @ bend.T
    tail = np.cov((x - (within - within.mean(axis=0)) @ rate.T).T) / records
    return InvertedFit(shift, stretch, own_weight, share, prior, sampling, noisy, rate, tail, sampled, noised)


def sampling_errors(fit: InvertedFit, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Errors of δ (draw, cell, 2) and T (draw, 2, 2) under other samples of both files and another drift."""
    shape = (draws, *fit.shift.shape)
    true = np.sqrt(fit.prior) * rng.standard_normal(shape)
    error = _shrunken(fit, true + np.sqrt(fit.sampling) * rng.standard_normal(shape)) - true
    tail = rng.standard_normal((draws, 1, 2)) @ symmetric_root(fit.tail)
    entries = rng.standard_normal((draws, 3)) @ symmetric_root(fit.scatter_sampling)
    return error @ fit.rate.T + tail, _symmetric(entries)


def noise_errors(fit: InvertedFit, draws: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Errors of δ (draw, cell, 2) and T (draw, 2, 2) under other noise."""
    shift_errors = moved_by(fit, np.sqrt(fit.noise) * rng.standard_normal((draws, *fit.shift.shape)))
    entries = rng.standard_normal((draws, 3)) @ symmetric_root(fit.scatter_noise)
    return shift_errors, _symmetric(entries)


def moved_by(fit: InvertedFit, values: Floats) -> Floats:
    """Changes of δ that follow from changes of the cells' own mean locations, (draw, cell, 2)."""
    return np.asarray(_shrunken(fit, values) @ fit.rate.T)


def _shrunken(fit: InvertedFit, values: Floats) -> Floats:
    """Changes of cells' own means after shrinkage, (draw, cell, 2)."""
    common = (fit.share * values).sum(axis=1, keepdims=True)
    return np.asarray(common + fit.own_weight * (values - common))


def clip_eigenvalues(stretch: Floats) -> Floats:
    """T (…, 2, 2) with its eigenvalues clipped to their public range."""
    values, vectors = np.linalg.eigh(stretch)
    return np.asarray((vectors * np.clip(values, *STRETCH)[..., None, :]) @ vectors.swapaxes(-1, -2))


def _solve(
    x: Floats, location: Floats, scatter: Floats, share: Floats, rate: Floats, bend: Floats
) -> tuple[Floats, Floats]:
    """δ and T under which the residuals x have the given winsorised moments, or the nearest moments in range."""
    shift, stretch = np.zeros_like(location), np.eye(2)
    for _ in range(ROUNDS):
        residuals = x @ stretch
        pending, sums_of_terms = location.copy(), np.zeros(3)
        for k, cell_shift in enumerate(shift):
            within = _winsorise(residuals + cell_shift)
            pending[k] -= within.mean(axis=0)
            sums_of_terms += share[k] * _terms(within).mean(axis=0)
        before, shift = shift, np.clip(shift + pending @ rate.T, -LARGEST_SHIFT, LARGEST_SHIFT)
        old, stretch = stretch, clip_eigenvalues(stretch + _symmetric(bend @ (scatter - sums_of_terms)))
        if max(np.abs(shift - before).max(), np.abs(stretch - old).max()) < DONE:
            break
    return shift, stretch


def _slopes(x: Floats) -> tuple[Floats, Floats]:
    """Derivatives at the reference: of δ by mean winsorised location, (2, 2), and of T's entries by scatter, (3, 3)."""
    steps = STEP * np.eye(2)
    location = [(_winsorise(x + e) - _winsorise(x - e)).mean(axis=0) / (2.0 * STEP) for e in steps]
    entries = [_symmetric(STEP * e) for e in np.eye(3)]
    ends = [[_terms(_winsorise(x @ (np.eye(2) + sign * e))).mean(axis=0) for sign in (1.0, -1.0)] for e in entries]
    scatter = [(high - low) / (2.0 * STEP) for high, low in ends]
    return np.linalg.inv(np.array(location).T), np.linalg.inv(np.array(scatter).T)


def _winsorise(x: Floats) -> Floats:
    """Points shortened to length 1 where they are longer, (record, 2)."""
    return np.asarray(x / np.maximum(1.0, np.hypot(x[:, 0], x[:, 1]))[:, None])


def _terms(p: Floats) -> Floats:
    """(|p|², p₁² − p₂², 2p₁p₂) of every record."""
    first, second = p[:, 0] ** 2, p[:, 1] ** 2
    return np.column_stack([first + second, first - second, 2.0 * p[:, 0] * p[:, 1]])


def _symmetric(entries: Floats) -> Floats:
    """The symmetric matrices [[a, b], [b, d]] of entries (…, 3)."""
    return np.asarray(entries[..., [0, 1, 1, 2]].reshape(*entries.shape[:-1], 2, 2))
