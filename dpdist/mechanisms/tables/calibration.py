"""Calibration of donor records to a cell's released means: by weights first, then by outcomes.

Weights become w' = w exp(λ₀ + Σ_k λ_k (y_k − m_k)), so that they have the released mean weight and outcome means m_k.
These are the weights nearest to w in relative entropy (raking; Deville & Särndal 1992). If possible, the weighted
shares of atoms are kept as well, because no release measures them. Atoms are values that many records share for a
special reason: 0, a bound, a top-code, a minimum.

If no such weights exist, or their factors differ by more than LARGEST_WEIGHT_RATIO, outcomes are scaled within their
bounds. Outcomes that may be negative are shifted; atoms and round figures stay. If this is not enough, all outcomes are
moved to the released mean. Whole numbers stay whole, unless a cell has too few records for any weights: `synthesis` then
rounds its values at random. Without weights, the mean of n whole numbers differs from the released mean by at most 1/(2n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats

ATOM = 0.002
"""Smallest share of records at which the smallest or the largest value counts as an atom."""
ATOM_RECORDS = 5
"""Smallest number of records for this value to count as an atom."""
ON_GRID = 0.95
"""Smallest share of values that must be multiples of a step."""
ROUND_UNITS = tuple(factor * 10.0**power for power in range(5, -3, -1) for factor in (5.0, 1.0))
HALVINGS = 200
"""Largest number of bisection steps in the search for a scale."""


def _least(moved_by: Callable[[float], Floats], weight: Floats, mean: float) -> Floats:
    """Values moved by the least share, from 0 to 1, at which their weighted mean is `mean` or more."""
    below, above, total = 0.0, 1.0, weight.sum()
    for _ in range(HALVINGS):
        middle = (below + above) / 2.0
        if middle in (below, above):  # no number lies between: further steps would change nothing
            break
        below, above = (middle, above) if (moved_by(middle) * weight).sum() / total < mean else (below, middle)
    return moved_by(above)


class Domain(NamedTuple):
    """Public bounds of an outcome, the step of its round figures, and its atoms.

    `step` is the power of ten, or 5 times a power, that divides nearly all values; 0 if there is none. `least` and
    `largest` are ends for scaling: a minimum and a top-code of the reference.
    """

    low: float
    top: float
    integer: bool = False
    step: float = 0.0
    atoms: tuple[float, ...] = ()
    least: float = -np.inf
    largest: float = np.inf

    @classmethod
    def of(cls, values: Floats, bounds: tuple[float, float], integer: bool) -> Self:
        """The domain from a reference's values, (record,), at least one."""
        least = float(values.min()) if _atom(values, values.min()) else -np.inf
        largest = float(values.max()) if _atom(values, values.max()) else np.inf
        atoms = tuple(sorted({0.0, *bounds, *(end for end in (least, largest) if np.isfinite(end))}))
        return cls(*bounds, integer, _step(values[~np.isin(values, atoms)]), atoms, least, largest)

    def still(self, values: Floats) -> NDArray[np.bool_]:
        """Marks the values that are atoms."""
        return np.asarray(np.isin(values, self.atoms))

    def scaled(self, values: Floats, weight: Floats, mean: float) -> Floats | None:
        """Values scaled or shifted until their weighted mean is `mean`; atoms stay.

        None if no scale gives this mean.
        """
        free, low, top = ~self.still(values), max(self.low, self.least), min(self.top, self.largest)
        if not free.any() or not low < mean < top:
            return None
        multiplied = self.low >= 0.0 and bool((values > 0).any())

        def moved_by(share: float) -> Floats:
            if multiplied:
                scaled_values = values * np.tan(share * np.pi / 2.0)
            else:
                scaled_values = values + (2.0 * share - 1.0) * (self.top - self.low)
            return np.asarray(np.where(free, np.clip(scaled_values, low, top), values))

        scaled = _least(moved_by, weight, mean)
        return scaled if abs(np.average(scaled, weights=weight) - mean) <= 1e-9 * (self.top - self.low) else None

    def rounded(self, values: Floats, before: Floats) -> Floats:
        """Moved values; values that were multiples of the step are rounded to the nearest multiple.

        No value becomes 0 or passes an end by rounding.
        """
        rounded = values
        for step in (1.0,) * self.integer + (self.step,) * (self.step > 0.0):
            near = np.rint(values / step) * step
            near = np.where((near == 0.0) & (before != 0.0), np.sign(values) * step, near)
            inside = (near >= max(self.low, self.least)) & (near <= min(self.top, self.largest))
            rounded = np.where(_multiples(before, step) & ~self.still(before) & inside, near, rounded)
        return np.asarray(rounded)


def _atom(values: Floats, value: float) -> bool:
    return int((values == value).sum()) >= max(ATOM_RECORDS, ATOM * len(values))


def _step(values: Floats) -> float:
    """The largest step that divides nearly all values, or 0."""
    steps = [step for step in ROUND_UNITS if len(values) and _multiples(values, step).mean() >= ON_GRID]
    return steps[0] if steps else 0.0


def _multiples(values: Floats, step: float) -> NDArray[np.bool_]:
    times = values / step
    return np.asarray(np.abs(times - np.rint(times)) < 1e-6)


LARGEST_WEIGHT_RATIO = 20.0
"""Largest ratio of the factors by which two records' weights may change."""
ROUNDS = 60
"""Largest number of Newton steps."""
NEAR = 4.0
"""For a two-valued outcome, weights change the odds by at most this factor."""
MET = 1e-13
"""Tolerance of a mean, in standard deviations of the outcome."""

SOLVED = 1e-11
"""Largest rest of a mean, in standard deviations, of weights that are accepted."""
SHORT = 1e-3
"""Smallest part of the gradient that a step must be able to remove."""
FAR = 1e-10
"""Distance from 0, in standard deviations, of which rounding errors are sure to be a small part."""


def agree(
    weight: Floats, outcomes: Floats, mean_weight: float, means: Floats, domains: tuple[Domain, ...], weighted: bool
) -> tuple[Floats, Floats]:
    """Weights (record,) and outcomes (record, outcome) with the given mean weight and mean outcomes.

    Without a weight column, `weighted` False, weights stay 1.
    """
    if not weighted:
        aims = zip(outcomes.T, means, domains, strict=True)
        return np.ones(len(weight)), np.column_stack([_unweighted(y, m, domain) for y, m, domain in aims])
    if len(weight) == 1:  # nothing but the mean itself has this mean
        ends = np.array([(domain.low, domain.top) for domain in domains]).T
        return np.array([mean_weight]), np.clip(means, *ends)[None]
    aims = zip(outcomes.T, means, domains, strict=True)
    outcomes = np.column_stack([_reachable(y, m, domain.low, domain.top) for y, m, domain in aims])
    for candidate, away in _candidates(weight, outcomes, means, domains):
        outcomes, factor = candidate, _tilt(weight, away)
        if factor is not None:
            weight = weight * factor
            break
    return weight * (mean_weight * len(weight) / weight.sum()), outcomes


def _candidates(
    weight: Floats, outcomes: Floats, means: Floats, domains: tuple[Domain, ...]
) -> Iterator[tuple[Floats, Floats]]:
    """Yields outcomes to try, from the least moved, with deviations (record, …) whose weighted sums must become 0."""
    aims = list(zip(outcomes.T, means, domains, strict=True))
    shares = _of_atoms(weight, outcomes, domains)
    if shares.shape[1]:
        yield outcomes, np.column_stack([outcomes - means, shares])
    yield outcomes, outcomes - means
    scaled = [domain.scaled(y, weight, m) for y, m, domain in aims]
    if any(values is not None for values in scaled):
        rounded = [y if s is None else d.rounded(s, y) for s, (y, _, d) in zip(scaled, aims, strict=True)]
        candidate = np.column_stack(rounded)
        yield candidate, np.column_stack([candidate - means, _of_atoms(weight, candidate, domains)])
        yield candidate, candidate - means
    anyhow = [moved_to(y, weight, m, domain.low, domain.top) for y, m, domain in aims]
    if any(domain.integer for domain in domains):
        integers = [_rounded(y, d.low, d.top) if d.integer else y for y, d in zip(anyhow, domains, strict=True)]
        candidate = np.column_stack(integers)
        yield candidate, candidate - means
        for start in (outcomes, candidate):
            yield from _about_whole_numbers(weight, start, means, domains)
    candidate = np.column_stack(anyhow)
    yield candidate, candidate - means


def _about_whole_numbers(
    weight: Floats, outcomes: Floats, means: Floats, domains: tuple[Domain, ...]
) -> Iterator[tuple[Floats, Floats]]:
    """Yields whole numbers as they are, with other outcomes at their means under the weights that whole numbers need.

    Few records may have no weights that meet the means of several outcomes.
    """
    integers = np.array([domain.integer for domain in domains])
    if integers.all() or (factor := _tilt(weight, (outcomes - means)[:, integers])) is None:
        return
    moved = [
        y if domain.integer else moved_to(y, weight * factor, mean, domain.low, domain.top)
        for y, mean, domain in zip(outcomes.T, means, domains, strict=True)
    ]
    candidate = np.column_stack(moved)
    yield candidate, candidate - means


def _of_atoms(weight: Floats, outcomes: Floats, domains: tuple[Domain, ...]) -> Floats:
    """For every atom of some records a column (record, atom): the indicator less its weighted share.

    An outcome that has only atoms gets no column.
    """
    columns = []
    for values, domain in zip(outcomes.T, domains, strict=True):
        if domain.still(values).all():
            continue
        indicators = [(values == atom).astype(np.float64) for atom in domain.atoms]
        columns += [indicator - np.average(indicator, weights=weight) for indicator in indicators if indicator.any()]
    return np.column_stack(columns) if columns else np.empty((len(weight), 0))


def _unweighted(outcome: Floats, mean: float, domain: Domain) -> Floats:
    """Outcomes whose unweighted mean is `mean`; whole numbers have the nearest possible mean."""
    if domain.integer:
        return _counted(outcome, mean, domain.low, domain.top)
    ones = np.ones(len(outcome))
    scaled = domain.scaled(outcome, ones, mean)
    return moved_to(outcome, ones, mean, domain.low, domain.top) if scaled is None else scaled


def _reachable(outcome: Floats, mean: float, low: float, top: float) -> Floats:
    """Outcomes that weights can bring to the mean `mean`.

    A mean at or beyond a bound makes all outcomes equal to the bound. A two-valued outcome with a share far from the
    wanted share gets enough records of either value.
    """
    if mean <= low or mean >= top:
        return np.full(len(outcome), min(max(mean, low), top))
    if len(outcome) < 2 or not ((outcome == low) | (outcome == top)).all():
        return outcome
    share, aim = float((outcome == top).mean()), (mean - low) / (top - low)
    if aim * (1.0 - share) <= NEAR * share * (1.0 - aim) and share * (1.0 - aim) <= NEAR * aim * (1.0 - share):
        return outcome
    upper = min(max(round(aim * len(outcome)), 1), len(outcome) - 1)
    return np.where(np.arange(len(outcome)) < upper, top, low)


def _counted(outcome: Floats, mean: float, low: float, top: float) -> Floats:
    """Whole numbers whose mean is nearest to `mean`; of yes-or-no outcomes as few as possible change."""
    if top - low != 1.0:
        return _rounded(moved_to(outcome, np.ones(len(outcome)), mean, low, top), low, top)
    share = min(max((mean - low) / (top - low), 0.0), 1.0)
    more = round(share * len(outcome)) - int((outcome == top).sum())
    changed = outcome.copy()
    changed[np.flatnonzero(outcome == (low if more > 0 else top))[: abs(more)]] = top if more > 0 else low
    return changed


def _rounded(outcome: Floats, low: float, top: float) -> Floats:
    """Whole numbers with the nearest whole sum; outcomes with the largest fractions are rounded up."""
    down = np.clip(np.floor(outcome), np.ceil(low), np.floor(top))
    remainder = round(float(outcome.sum() - down.sum()))
    first = np.argsort(down - outcome, kind="stable")
    first = first[down[first] < np.floor(top)][:remainder]
    down[first] += 1.0
    return np.asarray(down)


def _tilt(weight: Floats, away: Floats) -> Floats | None:
    """Factors exp(Σ λ_k away_k) of weights, (record,), that make the weighted sums of `away` (record, …) 0.

    None if weights would change too much.
    """
    scale = np.sqrt((away**2).mean(axis=0))
    if not (scale > 0).all():
        away, scale = away[:, scale > 0], scale[scale > 0]
    if not len(scale):
        return np.ones(len(weight))
    x, share = away / scale, weight / weight.sum()
    x = x[:, 0] if len(scale) == 1 else x  # the usual case, in which numbers need no algebra of matrices
    if (np.maximum(x.min(axis=0), -x.max(axis=0)) > FAR).any():  # all of a column lie on one side of 0
        return None
    slopes = np.zeros(x.shape[1:])

    def cost(slopes: Floats) -> tuple[float, Floats]:
        power = np.dot(x, slopes)
        tilted = share * np.exp(power - power.max())
        return float(np.log(tilted.sum()) + power.max()), tilted / tilted.sum()

    value, tilted = cost(slopes)
    for _ in range(ROUNDS):
        gradient = tilted @ x
        far = np.abs(gradient).max()
        if far < MET:
            break
        step = _newton_step(x, tilted, gradient)
        # Columns have mean square 1, so curvature times a step is at most the step times records and columns. A far shorter
        # one removes nothing of the gradient: columns contradict each other, or one record has all weight.
        if step is None or (far > 10.0 * SOLVED and np.abs(step).max() * x.size < SHORT * far):
            break
        length = 1.0
        while length > 1e-6:
            new_value, shares = cost(slopes - length * step)
            if new_value <= value + 1e-15 * (1.0 + abs(value)):
                break
            length /= 2.0
        slopes = slopes - length * step
        value, tilted = new_value, shares
    power = np.dot(x, slopes)
    spread = float(power.max() - power.min())
    if not (np.isfinite(spread) and spread < np.log(LARGEST_WEIGHT_RATIO) and np.abs(tilted @ x).max() < SOLVED):
        return None
    factor: Floats = np.exp(power)
    return factor


def _newton_step(x: Floats, tilted: Floats, gradient: Floats) -> Floats | None:
    """The step (slope,) by the curvature of all slopes; None if their system is too badly conditioned to be solved."""
    if x.ndim == 1:
        curvature = (x * tilted) @ x - gradient**2
        return gradient / curvature if curvature > 0.0 else 0.0 * gradient
    square = (x * tilted[:, None]).T @ x - np.outer(gradient, gradient)
    try:
        step = np.asarray(np.linalg.lstsq(square, gradient, rcond=1e-12)[0])
    except np.linalg.LinAlgError:
        return None
    return step if np.isfinite(step).all() else None


def moved_to(outcome: Floats, weight: Floats, mean: float, low: float, top: float) -> Floats:
    """Outcomes scaled, or shifted, within their bounds until their weighted mean is `mean`; else all are equal to it."""
    mean = min(max(mean, low), top)
    moved = Domain(low, top).scaled(outcome, weight, mean)
    return np.full(len(outcome), mean) if moved is None else moved
