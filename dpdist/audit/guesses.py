"""For `studies.black_box`: bounds ε from below by an attacker who guesses which of two files each release is of.

A fair coin chooses the file of every run that is guessed. Under a loss of ε, a release changes the odds of the two
files by a factor of at most e^ε. So a guess is right with a probability of at most e^ε/(1 + e^ε), whatever came before.
The attacker need not guess each time. The number of right guesses is at most binomial (Steinke, Nasr & Jagielski 2023).
Under (ε, δ), each run is also lost independently with probability δ.

Other releases teach the attacker which figures differ, how to score them, and at which scores to guess. Figures that
repeat others are dropped. Cross-validation selects the one of a few scores that proves most. The alarm rate holds
whatever the attacker learned, because no teaching release is guessed.
"""

from __future__ import annotations

from math import exp, expm1, floor, log, log1p
from typing import Literal, NamedTuple

import numpy as np
import scipy

from dpdist.audit.lower_bounds import ALARM, MOST_CLAIMED
from dpdist.core.records import Floats

LOST = 0.01
"""Part of the alarm rate for losing more runs by δ than the bound allows for."""
FOLDS = 5
LIMIT = 10.0
"""Figures are clipped at this number of mean deviations from their middle."""
RANKED = 60
"""Number of figures, by difference, that are examined; the others are noise, or repeat these."""
SAME = 0.999
"""Correlation, within a file, above which a figure repeats another."""
TIES = 1e-3
SHRINKAGE = 0.2
"""Weight of the diagonal in the covariance matrix of a discriminant."""
DIFFERING = 4.0
"""All figures but the first are used only if their means differ by this many standard errors."""
CUTS = np.append(np.linspace(0.0, 1.0, 21), np.inf)
"""Quantile levels of scores among teaching releases: the attacker guesses below one level and above another."""
DOUBT = 0.001
"""Alarm rate of the bounds that choose scores and cuts, so that a few lucky guesses prove little."""
Kind = Literal["ratios", "discriminant"]
ATTACKERS: tuple[tuple[Kind, int], ...] = (
    *(("ratios", number) for number in (1, 2, 4, 8)),
    *(("discriminant", number) for number in (2, 4, 16)),
)
"""Scores to try, each with a number of figures: log ratios of independent Laplace laws, and a linear discriminant."""


class Score(NamedTuple):
    """A score of releases, larger for the second file."""

    figures: list[int]
    middle: Floats
    spread: Floats
    ends: tuple[Floats, Floats]
    """Middles of the figures under both files, in units of their spread."""
    weights: Floats | None
    """The weights of a discriminant; None: log ratios."""

    def __call__(self, released: Floats) -> Floats:
        values = _clipped(released[:, self.figures], self.middle, self.spread)
        if self.weights is not None:
            return np.asarray((values - (self.ends[0] + self.ends[1]) / 2.0) @ self.weights)
        ratios = np.abs(values - self.ends[0]) - np.abs(values - self.ends[1])
        # Ratios are alike beyond both middles. The farther release is put first there, so that levels have no ties.
        return np.asarray((ratios + TIES * values * np.sign(self.ends[1] - self.ends[0])).sum(1))


class Rule(NamedTuple):
    """What the attacker learned: it guesses the first file below one level of scores, and the second above another."""

    score: Score
    taught: Floats
    """Scores of the teaching releases, in rising order. A level is the share of these scores that are smaller."""
    below: float
    from_on: float

    def guesses(self, released: Floats, second: Floats) -> tuple[int, int]:
        """Numbers of right guesses and of guesses; `second` (run,) is true where the second file was released."""
        levels = np.searchsorted(self.taught, self.score(released)) / len(self.taught)
        first, other = levels < self.below, levels >= self.from_on
        return int((first & ~second.astype(bool)).sum() + (other & second.astype(bool)).sum()), int((first | other).sum())


def learned(one: Floats, other: Floats) -> Rule:
    """Learns from releases of two files, (run, figure) each."""
    best, most = (ATTACKERS[0], 0.0, np.inf), -np.inf
    for attacker in ATTACKERS:
        levels = [np.empty(len(one)), np.empty(len(other))]
        for fold in range(FOLDS):
            kept = [np.arange(len(side)) % FOLDS != fold for side in (one, other)]
            score, scale = _scaled(attacker, one[kept[0]], other[kept[1]])
            for level, side, teaches in zip(levels, (one, other), kept, strict=True):
                level[~teaches] = np.searchsorted(scale, score(side[~teaches])) / len(scale)
        shown, below, from_on = _cuts(*levels)
        if shown > most:
            best, most = (attacker, below, from_on), shown
    return Rule(*_scaled(best[0], one, other), *best[1:])


def _scaled(attacker: tuple[Kind, int], one: Floats, other: Floats) -> tuple[Score, Floats]:
    score = _score(attacker, one, other)
    return score, np.sort(np.concatenate([score(one), score(other)]))


def _cuts(one: Floats, other: Floats) -> tuple[float, float, float]:
    """The largest bound that these levels of scores would prove, with its two cuts."""
    below = [(side[:, None] < CUTS).sum(0) for side in (one, other)]
    right = below[0][:, None] + (len(other) - below[1])[None, :]
    wrong = below[1][:, None] + (len(one) - below[0])[None, :]
    ordered = CUTS[:, None] <= CUTS[None, :]
    least = scipy.special.betaincinv(np.maximum(right, 1), wrong + 1, DOUBT)
    shown = np.where(ordered & (right > 0), _odds(least), -np.inf)
    low, high = np.unravel_index(int(np.argmax(shown)), shown.shape)
    return float(shown[low, high]), float(CUTS[low]), float(CUTS[high])


def _odds(share: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(share / (1.0 - share)))


def _score(attacker: tuple[Kind, int], one: Floats, other: Floats) -> Score:
    """The score of an attacker, from releases of both files."""
    kind, number = attacker
    middles = np.median(one, 0), np.median(other, 0)
    deviation = [np.abs(side - middle).mean(0) for side, middle in zip((one, other), middles, strict=True)]
    middle, spread = (middles[0] + middles[1]) / 2.0, (deviation[0] + deviation[1]) / 2.0
    varies = np.flatnonzero((spread > 0.0) | (middles[0] != middles[1]))
    middle, spread = middle[varies], np.where(spread > 0.0, spread, 1.0)[varies]
    values = [_clipped(side[:, varies], middle, spread) for side in (one, other)]
    chosen = _different(*values)[:number]
    values = [side[:, chosen] for side in values]
    figures, limits = varies[chosen].tolist(), (middle[chosen], spread[chosen])
    if kind == "ratios":
        return Score(figures, *limits, (np.median(values[0], 0), np.median(values[1], 0)), None)
    means = values[0].mean(0), values[1].mean(0)
    within = np.concatenate([side - mean for side, mean in zip(values, means, strict=True)])
    covariance = np.atleast_2d(np.cov(within, rowvar=False)) if chosen else np.empty((0, 0))
    diagonal = np.diag(np.diag(covariance) + 1e-9)
    weights = np.linalg.solve((1.0 - SHRINKAGE) * covariance + SHRINKAGE * diagonal, means[1] - means[0])
    return Score(figures, *limits, means, weights)


def _clipped(values: Floats, middle: Floats, spread: Floats) -> Floats:
    return np.asarray(np.clip((values - middle) / spread, -LIMIT, LIMIT))


def _different(one: Floats, other: Floats) -> list[int]:
    """Figures by the distance of their means, in standard errors, without those that repeat an earlier one."""
    variance = one.var(0) / len(one) + other.var(0) / len(other)
    errors = np.abs(one.mean(0) - other.mean(0)) / np.sqrt(variance + 1e-12)
    order = np.argsort(-errors, kind="stable")[:RANKED]
    order = order[: max(1, int((errors[order] > DIFFERING).sum()))]
    within = np.concatenate([one[:, order] - one[:, order].mean(0), other[:, order] - other[:, order].mean(0)])
    size = np.sqrt((within**2).sum(0))
    alike = np.abs(within.T @ within) / np.maximum(np.outer(size, size), 1e-12)
    kept = list[int]()
    for place in range(len(order)):
        if not kept or alike[place, kept].max() < SAME:
            kept.append(place)
    return [int(order[place]) for place in kept]


def bound_of_guesses(right: int, guesses: int, runs: int, delta: float = 0.0) -> float:
    """The ε proven by this number of right guesses; 0 if none is proven."""
    lost, rate = _lost(runs, delta)
    counted = right - lost
    if counted <= 0:
        return 0.0
    least = np.float64(scipy.special.betaincinv(counted, guesses - counted + 1, ALARM - rate))
    return max(0.0, float(_odds(np.array([least]))[0]))


def p_value(right: int, guesses: int, runs: int, claimed: float, delta: float = 0.0) -> float:
    """An upper bound on the probability of so many right guesses, if the claim holds."""
    lost, rate = _lost(runs, delta)
    likely = 1.0 / (1.0 + exp(-claimed))
    return min(1.0, rate + float(scipy.stats.binom.sf(right - lost - 1, guesses, likely)))


def _lost(runs: int, delta: float) -> tuple[int, float]:
    """A number of runs that δ may lose, and the probability of losing more."""
    if delta == 0.0:
        return 0, 0.0
    number = int(scipy.stats.binom.isf(LOST * ALARM, runs, delta))
    return number, float(scipy.stats.binom.sf(number, runs, delta))


def most_shown(runs: int, delta: float = 0.0) -> float:
    """The largest ε that this number of guessed runs can prove, if all guesses are right."""
    return bound_of_guesses(runs, runs, runs, delta) if delta else -log(expm1(-log(ALARM) / runs))


def runs_to_exceed(claimed: float, delta: float = 0.0) -> int:
    """The fewest guessed runs, within a tenth, that can prove more than the claim."""
    runs = floor(log(ALARM) / -log1p(exp(-min(claimed, MOST_CLAIMED)))) + 1
    while most_shown(runs, delta) <= min(claimed, MOST_CLAIMED):
        runs += max(1, runs // 10)
    return runs
