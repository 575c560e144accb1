"""Draws noisy sample counts over public domains, for protected predictors and sizes (docs/methods.md §7d).

The frame counts records in every combination of the public columns. Here the frame is measured under noise at up to three
levels: all records, the cells of the tables, and every combination. Levels are nested. Each is a full cross of declared
levels, so a combination without a record is counted too. The cost has this proof:

1. A record is in one cell of each level. Adding or removing a record moves one count of each level by 1. Exchanging it
   for another with the same public columns moves two counts by 1. So a level's counts have L1 sensitivity 1 or 2, L2 √1
   or √2, times the records of a privacy unit.
2. Level l has a share s_l of the frame's budget, Σ s_l = 1: discrete Laplace noise of scale Δ₁/(s_l ε), or discrete
   Gaussian noise of σ² = Δ₂²/(2 s_l ρ). Levels compose to ε, or to ρ.
3. Counts by columns that are not protected are the same in neighbouring files, and are kept exact.

The remaining steps are post-processing. Going up, a cell's noisy count and the sum of its parts are averaged by their
variances (Hay, Rastogi, Miklau & Suciu 2010). Going down, the parts of a cell are projected on what is at least 0 and
adds up to it, and rounded by largest remainders. So all levels agree, no count is below 0, and public totals are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Frame, Ints
from dpdist.job import Job, NoiseName
from dpdist.privacy.simulated_noise import simulated_noise
from dpdist.privacy.units import record_epsilon, record_rho

TOTAL_SHARE = Fraction(1, 10)
"""Share of the frame's budget for the number of all records; the other levels share the rest equally."""
GRAIN = 1000
"""σ is rounded up to a multiple of 1 over this number."""


class Level(NamedTuple):
    """Counts of the cross of some columns, which are the columns before `end` in the order of the tree."""

    columns: tuple[str, ...]
    scale: Fraction | None
    """The scale of the noise, b or σ; None: the count is exact and public."""


def noise_name(job: Job) -> NoiseName:
    """The law of the counts' noise: Gaussian where the release's class is zCDP."""
    return "gaussian" if job.mechanism.gaussian else "laplace"


def tree(job: Job) -> tuple[str, ...]:
    """Orders the frame's columns for the tree: exact columns, then those of tables, then the rest."""
    cells = (name for name in job.cell_columns if name in job.categories)
    return tuple(dict.fromkeys([*job.counted_columns, *cells, *job.categories]))


def levels(job: Job) -> tuple[Level, ...]:
    """Lists levels from the root to every combination.

    The root is exact where neighbours have the same counts by its columns.
    """
    order, public = tree(job), len(job.counted_columns)
    ends = sorted({public, len({*job.counted_columns, *job.cell_columns} & set(order)), len(order)})
    secret = job.budget.adjacency == "add_remove"
    shares = [TOTAL_SHARE if end == 0 and len(ends) > 1 else None for end in ends]
    noisy = [end for end in ends if end > public or secret]
    plain = [end for end, share in zip(ends, shares, strict=True) if end in noisy and share is None]
    rest = 1 - (TOTAL_SHARE if secret and shares[0] is not None else 0)
    found = []
    for end, share in zip(ends, shares, strict=True):
        own = share if share is not None else Fraction(rest, len(plain) or 1)
        found.append(Level(order[:end], _scale(job, own) if end in noisy else None))
    return tuple(found)


def _scale(job: Job, share: Fraction) -> Fraction:
    """Computes the scale of the noise on a level's counts under its share of the frame's budget."""
    moved = 1 if job.budget.adjacency == "add_remove" else 2
    if noise_name(job) == "laplace":
        return moved / record_epsilon(job, share * job.epsilon_of_frame)
    square = moved / (2 * record_rho(job, share * job.rho_of_frame)) * GRAIN**2
    return Fraction(isqrt(square.numerator // square.denominator) + 1, GRAIN)


def counts(job: Job, frame: Frame) -> list[Ints]:
    """Counts the records of every level exactly, (cell,) each, in the tree's order, of a crossed frame; confidential."""
    values = _as_tree(job, frame, frame.count)
    sizes = [len(frame.levels[name]) for name in tree(job)]
    return [values.reshape(int(np.prod(sizes[: len(level.columns)])), -1).sum(axis=1) for level in levels(job)]


def noisy_frame(job: Job, frame: Frame, measured: Sequence[Floats]) -> Frame:
    """Makes the published frame, from which all other output follows. `measured` are the counts of every level.

    Only the rows of `frame` are used. The total is at least 1, because a file has at least one record.
    """
    known = levels(job)
    estimates = _upward(known, measured, noise_name(job))
    total = np.maximum(np.rint(estimates[0]), 1.0 if len(estimates[0]) == 1 else 0.0).astype(np.int64)
    for below in estimates[1:]:
        total = _whole(_projected(below.reshape(len(total), -1), total), total).reshape(-1)
    return replace(frame, count=_from_tree(job, frame, total))


def counted_again(job: Job, frame: Frame, draws: int, rng: np.random.Generator) -> Floats:
    """Returns counts of the published frame's rows with noise added again, made to agree in the same way, (draw, row).

    They are for standard errors only. The published counts are used in place of the exact ones.
    """
    known, law, published = levels(job), noise_name(job), counts(job, frame)
    found = np.empty((draws, len(frame)))
    for draw in range(draws):
        measured = [
            values + (np.zeros(1) if level.scale is None else simulated_noise(law, level.scale, len(values), rng))
            for level, values in zip(known, published, strict=True)
        ]
        found[draw] = noisy_frame(job, frame, measured).count
    return found


def _upward(known: Sequence[Level], measured: Sequence[Floats], law: NoiseName) -> list[Floats]:
    """Computes every level's best linear unbiased estimate from itself and the levels below it."""
    values, variance = np.asarray(measured[-1], dtype=np.float64), _variance(known[-1], law)
    found = [values]
    for level, own in zip(reversed(known[:-1]), reversed(measured[:-1]), strict=True):
        parts = len(values) // len(own)
        summed, spread, alone = values.reshape(len(own), parts).sum(axis=1), parts * variance, _variance(level, law)
        share = spread / (spread + alone) if spread + alone > 0.0 else 1.0
        values, variance = share * np.asarray(own, dtype=np.float64) + (1.0 - share) * summed, share * alone
        found.append(values)
    return found[::-1]


def _variance(level: Level, law: NoiseName) -> float:
    """Variance of the noise on a count."""
    if level.scale is None:
        return 0.0
    scale = float(level.scale)
    return scale**2 if law == "gaussian" else float(1.0 / (np.cosh(1.0 / scale) - 1.0))


def _projected(values: Floats, total: Ints) -> Floats:
    """Projects on the nearest rows that are at least 0 and add up to their totals, (cell, part)."""
    falling = -np.sort(-values, axis=1)
    above = (np.cumsum(falling, axis=1) - total[:, None]) / np.arange(1, values.shape[1] + 1)
    last = np.maximum((falling > above).sum(axis=1), 1) - 1
    return np.maximum(values - np.take_along_axis(above, last[:, None], axis=1), 0.0)


def _whole(values: Floats, total: Ints) -> Ints:
    """Rounds to whole numbers that sum to the totals, by largest remainders, (cell, part)."""
    whole = np.floor(values + 1e-9).astype(np.int64)
    left = total - whole.sum(axis=1)
    rank = np.argsort(np.argsort(whole - values, axis=1, kind="stable"), axis=1, kind="stable")
    return np.asarray(whole + (rank < left[:, None]), dtype=np.int64)


def _as_tree(job: Job, frame: Frame, values: Ints) -> Ints:
    """Rearranges values of a crossed frame's rows to the tree's order of columns."""
    names, shape = list(frame.codes), [len(frame.levels[name]) for name in frame.codes]
    return values.reshape(shape or (1,)).transpose([names.index(name) for name in tree(job)] or (0,)).reshape(-1)


def _from_tree(job: Job, frame: Frame, values: Ints) -> Ints:
    """Inverts `_as_tree`."""
    names, order = list(frame.codes), tree(job)
    shape = [len(frame.levels[name]) for name in order]
    return values.reshape(shape or (1,)).transpose([order.index(name) for name in names] or (0,)).reshape(-1)
