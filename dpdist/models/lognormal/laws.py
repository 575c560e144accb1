"""Means of lognormal variables within bounds, and the law of outcome and weight in a sample from a population's law."""

from __future__ import annotations

import numpy as np
import scipy

from dpdist.core.records import Floats


def limited_lognormal_mean(mu: Floats, variance: Floats, bounds: tuple[float, float]) -> Floats:
    """E min(max(Y, lower), upper) for log Y ~ N(mu, variance), with `bounds` (lower, upper)."""
    low, high = bounds
    sd = np.sqrt(variance)

    def below(limit: float) -> Floats:
        """E Y·1(Y < limit)."""
        whole = np.exp(mu + variance / 2.0)
        return np.asarray(whole * scipy.special.ndtr((np.log(limit) - mu - variance) / sd))

    inside = (
        np.exp(mu + variance / 2.0) if np.isinf(high) else below(high) + high * scipy.special.ndtr((mu - np.log(high)) / sd)
    )
    if low <= 0.0:
        return np.asarray(inside)
    return np.asarray(inside - below(low) + low * scipy.special.ndtr((np.log(low) - mu) / sd))


def sample_law(beta: Floats, kappa_x: Floats, kappa_y: Floats, sigma_y: Floats, sigma_pi: Floats) -> tuple[Floats, Floats]:
    """Coefficients B and covariance Σ of (log y, log w) in the sample, from the population's parameters.

    In the population log y | x ~ N(x'β, σ_y²) and log π | y, x ~ N(κ_y log y + x'κ_x, σ_π²), where π = 1/w. `beta` and
    `kappa_x` are (draw, predictor), of which the first predictor is the intercept. B is (draw, predictor, 2), and Σ is
    (draw, 2, 2).
    """
    cross, weight = -kappa_y * sigma_y**2, (kappa_y * sigma_y) ** 2 + sigma_pi**2
    covariance = np.stack([sigma_y**2, cross, cross, weight], axis=1).reshape(-1, 2, 2)
    coefficients = np.stack([beta, -kappa_x - kappa_y[:, None] * beta], axis=2)
    coefficients[:, 0, :] -= covariance[:, 1, :]
    return coefficients, covariance
