"""Draws means of cells under other samples, other noise and other counts, for standard errors (METHODS §7b)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.models.protocol import Draws

FARTHEST_LOG_WEIGHT = 5.0
"""Largest error of a log mean weight."""


def resampled(theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
    """Means under other samples of the reference and of the current file, without noise.

    `shape` (draw, cell) is the error of the reference's shapes, in standard deviations.
    """
    cells = theta["means"].shape[1]
    errors = _errors(theta, "sampling", theta["unit"][0].astype(np.int64), draws, rng)
    if theta["alone"].any():
        alone = _errors(theta, "alone", np.arange(cells), draws, rng)
        errors = [one + other for one, other in zip(errors, alone, strict=True)]
    shape = rng.standard_normal((draws, cells))
    return Draws({**_moved(theta, errors).values, "shape": shape})


def noised_again(theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
    """Means under other noise, including two errors that cells have in common.

    The first is the error of the mean to which cells are shrunk. It is common to the cells of a group that shares
    histograms, or to all cells where no histograms are used. The second is the error of the histograms' tails, common to
    all cells.
    """
    cells = theta["means"].shape[1]
    errors = _errors(theta, "noise", theta["unit"][0].astype(np.int64), draws, rng)
    group = theta["group"][0].astype(np.int64) if "group" in theta.values else np.zeros(cells, np.int64)
    single = np.bincount(group)[group] == 1
    for name, shared in (("common", np.where(single, -1, group)), ("tail", np.zeros_like(group))):
        if name in theta.values and theta[name].any():
            known, number = np.unique(shared, return_inverse=True)
            drawn = [rng.standard_normal((draws, len(known)))[:, number] for _ in errors]
            errors = [own + each * z for own, each, z in zip(errors, theta[name][0].T, drawn, strict=True)]
    return _moved(theta, errors)


def recounted(theta: Draws, counts: Floats, published: Floats) -> Draws:
    """Means under sample counts (draw, cell) that differ from the published ones (cell,), by the delta method."""
    unit = theta["unit"][0].astype(np.int64)
    members = np.eye(int(unit.max()) + 1)[unit]
    change = np.log((counts @ members) / (published @ members))[:, unit]
    return _moved(theta, [change * rate for rate in theta["elasticity"][0].T])


def _errors(theta: Draws, name: str, unit: Ints, draws: int, rng: np.random.Generator) -> list[Floats]:
    """Errors of log mean weights, then of each outcome's means, (draw, cell) each; the cells of one unit have equal errors.

    Outcomes vary with the weight, each by its own covariance. Covariances between outcomes enter no table and are left
    out.
    """
    outcomes = theta["means"].shape[2] - 1
    of_weight, *pairs = np.split(theta[name][0], np.arange(1, 1 + 2 * outcomes), axis=1)
    sd, units = np.sqrt(of_weight[:, 0]), int(unit.max()) + 1
    shift = rng.standard_normal((draws, units))[:, unit]
    errors = [sd * shift]
    for k in range(outcomes):
        both, own = pairs[2 * k][:, 0], pairs[2 * k + 1][:, 0]
        slope = np.divide(both, sd, out=np.zeros_like(sd), where=sd > 0)
        left = np.sqrt(np.maximum(own - slope**2, 0.0))
        errors.append(slope * shift + left * rng.standard_normal((draws, units))[:, unit])
    return errors


def _moved(theta: Draws, errors: Sequence[Floats]) -> Draws:
    """The released means with these errors added."""
    weight = theta["means"][..., 0] * np.exp(np.clip(errors[0], -FARTHEST_LOG_WEIGHT, FARTHEST_LOG_WEIGHT))
    outcomes = [theta["means"][..., 1 + k] + error for k, error in enumerate(errors[1:])]
    return Draws({"means": np.stack([weight, *outcomes], axis=-1)})
