"""Optimal parts of the budget by measurement: those of the least predicted error of the published figures.

Let R be the sum of published figures' predicted variances in direct variances, by priority, and v_t(s_t) the variance of
noise on a contribution's sum in table t with the part s_t. Let c_t be the derivative of R by v_t, times v_t(1). The best
parts satisfy s_t ∝ c_t^{1/3} where v_t falls with the square of the part (Laplace noise), and c_t^{1/2} where it falls with
the part (Gaussian noise). c_t depends on the parts, so they are computed some times. Limits stay those of equal parts: at
the best limits R has no slope by them. Everything is public: reference, public sizes, and the job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import UNIT, Floats
from dpdist.core.sharing import share_out
from dpdist.job import Statistic
from dpdist.mechanisms.tables.conjugate import in_blocks
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.rows import FigureRows
from dpdist.mechanisms.tables.workload import AddedCells
from dpdist.privacy.guarantees import NoisyQuery

FIRST = Fraction(1, 20)
"""Smallest part of the budget that measures all records first."""
OF_SCORES, LEAST_OF_SCORES = Fraction(1, 5), Fraction(1, 20)
"""Largest and smallest part of a table's budget for sums of scores, where nothing else tells cells apart."""
STEPS_OF_SCORES = 200
"""Such parts are multiples of 1/`STEPS_OF_SCORES`: last digits, which machines compute otherwise, decide hardly any."""
ENOUGH = 0.2
"""Error of a log effect that hardly changes a cell's limits: scores need no more of the budget."""
SURE = 10.0
"""Logarithm of the inverse of the probability that any of all empty counts shows a record by its noise."""
MOST_BEYOND = Fraction(1, 2)
"""Largest part of a budget for counts of records beyond limits."""
PART_STEPS = 100_000
"""Parts are multiples of 1/`PART_STEPS`, so that they sum to 1 exactly."""
LEAST_EQUAL_PART = 0.25
"""Smallest part of a table, in equal parts: the prediction of R may be wrong."""
ROUNDS, ROUNDS_OF_LARGEST = 2, 12
"""Number of times that parts are computed, for the mean squared error and for the largest error."""
LARGEST_POWER = 16.0
"""The last power of squared errors by which figures count, if the largest error shall be least."""
PROBES, PROBES_OF_MANY = 64, 24
"""Numbers of random signs by which slopes are estimated, of few sums, and of many. A table's slope adds up many rows'."""
SIGNS_AT_ONCE = 2**16
"""Rows whose signs are drawn together: more at a time would take memory."""


class PublishedTable(NamedTuple):
    """A published table: the sums of base cells that it shows, (published cell, cell), and what squared errors of counts
    and of each outcome's means count for, (1 + outcome,)."""

    cells: AddedCells
    worth: Floats


class Target(NamedTuple):
    """All published figures as rows of z, and the weight of their variances, (row,): priorities over direct variances."""

    rows: FigureRows
    weight: Floats
    largest: bool
    """True if the largest squared error shall be least, and not the mean of them."""

    def weights(self, posterior: Posterior, power: float) -> Floats:
        """Weights of variances whose sum has the objective's slope, (row,)."""
        if not self.largest:
            return self.weight
        squares = self.weight * posterior.variances(self.rows)
        return np.asarray(self.weight * (squares / max(float(squares.max()), 1e-300)) ** (power - 1.0))


def worth_of(priority: float, statistics: Sequence[Statistic], outcomes: Sequence[str], largest: bool) -> tuple[float, ...]:
    """What squared errors of counts and of outcomes' means of a table count for: its priority, divided among statistics."""
    number = np.zeros(1 + len(outcomes))
    for statistic in statistics:
        outcome = statistic.variable or outcomes[0]
        number[0 if statistic.name == "count" or outcome not in outcomes else 1 + outcomes.index(outcome)] += 1.0
    return tuple((number * priority / (number.max() if largest else number.sum())).tolist())


def least_part(tables: int) -> Fraction:
    """The smallest part of a table."""
    return Fraction(int(LEAST_EQUAL_PART * float(1 - FIRST) / tables * PART_STEPS), PART_STEPS) if tables else Fraction(1)


def part_beyond(joint: NoisyQuery, tables: int, coordinates: int, counts: int) -> Fraction:
    """Part of the budget of `joint` for one of so many tables' counts of records beyond limits, of so many coordinates.

    Half a record is beyond the noise of all `counts`, ln(counts) + 10 scales of Laplace noise, with probability 1 − e^−10.
    It is 0 where the budget is too small for noise that shows a single record.
    """
    scale = float(coordinates * joint.scale / UNIT)
    sure = math.log(max(counts, 1)) + SURE
    exact_part = 2.0 * sure * scale if joint.law == "laplace" else 8.0 * sure * scale**2
    part = Fraction(math.ceil(exact_part * PART_STEPS), PART_STEPS)
    return part if 0 < part * tables <= MOST_BEYOND else Fraction(0)


def equal_parts(tables: int, sum_of_parts: Fraction = Fraction(1)) -> tuple[Fraction, ...]:
    """The least part of all records, and equal ones of the tables."""
    of_table = (float(sum_of_parts) - float(FIRST)) / max(tables, 1)
    return whole_parts(np.array([float(FIRST), *[of_table] * tables]), sum_of_parts)


def with_scores(parts: tuple[Fraction, ...], of_scores: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Parts of all records, of tables, and of these tables' sums of scores, which have these parts of theirs."""
    first, *tables = parts
    steps = [max(int(each * part * PART_STEPS), 1) for part, each in zip(tables, of_scores, strict=True)]
    scores = [Fraction(step, PART_STEPS) for step in steps]
    return (first, *(part - of_table for part, of_table in zip(tables, scores, strict=True)), *scores)


def enough_for_scores(error: float, power: int) -> Fraction:
    """Part of a table's budget for its scores, by the `error` of a typical cell's log effect under the largest one.

    The noise's variance falls with this power of a part.
    """
    part = np.clip(float(OF_SCORES) * (error / ENOUGH) ** (2.0 / power), float(LEAST_OF_SCORES), float(OF_SCORES))
    return Fraction(round(float(part) * STEPS_OF_SCORES), STEPS_OF_SCORES)


def whole_parts(targets: Floats, sum_of_parts: Fraction = Fraction(1)) -> tuple[Fraction, ...]:
    """Parts of all records and of tables near `targets` (measurement,), with this sum: none is below its least."""
    tables, steps = len(targets) - 1, int(sum_of_parts * PART_STEPS)
    if not tables:
        return (sum_of_parts,)
    least = np.array([int(FIRST * PART_STEPS), *[int(least_part(tables) * PART_STEPS)] * tables])
    free = np.maximum(targets / targets.sum() * steps - least, 0.0)
    rounded = least + np.floor(free / free.sum() * (steps - least.sum())).astype(int)
    rounded[1 + int(np.argmax(free[1:]))] += steps - int(rounded.sum())
    return tuple(Fraction(int(part), PART_STEPS) for part in rounded)


def best_parts(
    equal: Posterior,
    target: Target,
    parts: tuple[Fraction, ...],
    noise: Sequence[Floats],
    power: int,
    rounds: int = ROUNDS,
) -> tuple[Fraction, ...]:
    """The parts of least predicted error. `equal` is the posterior before the current file is read, under these `parts`.

    `noise` are variances of the noise in its rows by measurement, all records first, which fall with this power of a part.
    """
    # Rows after those of the measurements are of earlier periods, and have no noise that a part changes.
    noise = [*noise, np.zeros(len(equal.noise) - sum(map(len, noise)))]
    owner = np.repeat([*range(len(parts)), 0], list(map(len, noise)))
    first, of_noise = np.array(parts, dtype=float), np.concatenate(noise)
    signs, root = _signs(len(target.weight), PROBES if equal.dense else PROBES_OF_MANY), None
    for exponent in np.geomspace(1.0, LARGEST_POWER, ROUNDS_OF_LARGEST if target.largest else rounds):
        shares = np.array(parts, dtype=float)
        now = equal.under(equal.noise + of_noise * ((first / shares)[owner] ** power - 1.0))
        if root is None or target.largest:
            root = np.sqrt(target.weights(now, float(exponent)))
        # The slope by a row's noise is the sum over figures of its squared part in them, here over random signs.
        squares = _Squares(replace(equal), now, target.rows, root)
        probes = signs.shape[1]
        blocks = [slice(0, probes)] if now.dense else in_blocks(probes, 4 * len(now.noise))
        slopes = sum(share_out(squares, [signs[:, block] for block in blocks]), np.zeros(len(now.noise))) / probes
        best = (np.bincount(owner, weights=slopes * of_noise) * first**power) ** (1.0 / (power + 1.0))
        if not (np.isfinite(best).all() and best.sum() > 0.0):
            return parts
        # Weights of the largest errors react fast.
        parts = whole_parts(np.sqrt(best * shares / best.sum()) if target.largest else best, sum(parts, Fraction(0)))
    return parts


@dataclass(frozen=True)
class _Squares:
    """Work on random signs (row, probe): sums of squared parts of observations in figures' sums with these signs."""

    equal: Posterior
    now: Posterior
    rows: FigureRows
    root: Floats

    def __call__(self, signs: NDArray[np.int8]) -> Floats:
        covariance = self.equal.across(self.rows, self.root, signs)
        solution = self.now.solve(covariance) if self.now.dense else self.now.of_draws(covariance)[0]
        return np.asarray((solution.astype(np.float64) ** 2).sum(axis=1))


def _signs(rows: int, probes: int) -> NDArray[np.int8]:
    """Random signs, (row, probe)."""
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 2, (min(SIGNS_AT_ONCE, rows - start), probes)) for start in range(0, rows, SIGNS_AT_ONCE)]
    return np.concatenate([np.zeros((0, probes), dtype=np.int8), *((2 * part - 1).astype(np.int8) for part in parts)])
