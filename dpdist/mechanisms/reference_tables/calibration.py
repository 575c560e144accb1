"""Calibrates a cell's donor records to its released means: by their weights, and by their outcomes only if necessary.

Let w be the weights of n records, w̄ the released mean weight, y_k outcome k and m_k its released mean. The new weights
are w' = w exp(λ₀ + Σ_k λ_k (y_k − m_k)), with λ such that Σw' = n w̄ and Σw'(y_k − m_k) = 0. They are the weights nearest
to w in relative entropy (raking; Deville & Särndal 1992). They exist if the means lie inside the outcomes' range. Atoms
are values that many records have, such as 0 or a top-code. Their weighted shares are kept as further constraints where
possible, because a release does not measure them.

Sometimes no such weights exist, or a weight would change by LARGEST_WEIGHT_RATIO times the factor of another. Outcomes
are then scaled within their public bounds (shifted, if they may be negative); atoms and round figures stay. If that is
not enough either, outcomes are moved until their weighted mean is the released one. Outcomes that are whole numbers stay
whole. Without weights, the mean of n whole numbers then differs from the released one by at most 1/(2n).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.reference_tables.value_domains import HALVINGS, Domain

LARGEST_WEIGHT_RATIO = 20.0
"""Largest ratio of the factors by which two records' weights may change."""
ROUNDS = 60
"""Largest number of Newton steps."""
NEAR = 4.0
"""For an outcome of two values, weights correct the odds of its share by at most this factor."""
MET = 1e-13
"""Tolerance of a mean, in standard deviations of the outcome."""


def agree(
    weight: Floats, outcomes: Floats, mean_weight: float, means: Floats, domains: tuple[Domain, ...], weighted: bool
) -> tuple[Floats, Floats]:
    """Weights (record,) and outcomes (record, outcome) with the given mean weight and mean outcomes.

    Without a weight column, `weighted` False, weights stay 1.
    """
    if not weighted:
        each = zip(outcomes.T, means, domains, strict=True)
        return np.ones(len(weight)), np.column_stack([_unweighted(y, m, domain) for y, m, domain in each])
    each = zip(outcomes.T, means, domains, strict=True)
    outcomes = np.column_stack([_reachable(y, m, domain.low, domain.top) for y, m, domain in each])
    for moved, away in _tried(weight, outcomes, means, domains):
        outcomes, factor = moved, _tilt(weight, away)
        if factor is not None:
            weight = weight * factor
            break
    return weight * (mean_weight * len(weight) / weight.sum()), outcomes


def _tried(weight: Floats, outcomes: Floats, means: Floats, domains: tuple[Domain, ...]) -> Iterator[tuple[Floats, Floats]]:
    """Yields outcomes to try, the least moved first, with deviations (record, …) whose weighted sums must become 0."""
    each = list(zip(outcomes.T, means, domains, strict=True))
    shares = _of_atoms(weight, outcomes, domains)
    if shares.shape[1]:
        yield outcomes, np.column_stack([outcomes - means, shares])
    yield outcomes, outcomes - means
    scaled = [domain.scaled(y, weight, m) for y, m, domain in each]
    if any(values is not None for values in scaled):
        kept = [y if s is None else d.rounded(s, y) for s, (y, _, d) in zip(scaled, each, strict=True)]
        moved = np.column_stack(kept)
        yield moved, np.column_stack([moved - means, _of_atoms(weight, moved, domains)])
        yield moved, moved - means
    anyhow = [moved_to(y, weight, m, domain.low, domain.top) for y, m, domain in each]
    if any(domain.whole for domain in domains):
        whole = [_rounded(y, d.low, d.top) if d.whole else y for y, d in zip(anyhow, domains, strict=True)]
        moved = np.column_stack(whole)
        yield moved, moved - means
    moved = np.column_stack(anyhow)
    yield moved, moved - means


def _of_atoms(weight: Floats, outcomes: Floats, domains: tuple[Domain, ...]) -> Floats:
    """Columns (record, atom) for the atoms that some records have: 1 for such a record, else 0, less the weighted share.

    An outcome that consists of atoms alone has none of these columns.
    """
    found = []
    for values, domain in zip(outcomes.T, domains, strict=True):
        if domain.still(values).all():
            continue
        held = [(values == atom).astype(np.float64) for atom in domain.atoms]
        found += [one - np.average(one, weights=weight) for one in held if one.any()]
    return np.column_stack(found) if found else np.empty((len(weight), 0))


def _unweighted(outcome: Floats, mean: float, domain: Domain) -> Floats:
    """Outcomes whose unweighted mean is `mean`; whole numbers have the nearest possible mean."""
    if domain.whole:
        return _counted(outcome, mean, domain.low, domain.top)
    ones = np.ones(len(outcome))
    scaled = domain.scaled(outcome, ones, mean)
    return moved_to(outcome, ones, mean, domain.low, domain.top) if scaled is None else scaled


def _reachable(outcome: Floats, mean: float, low: float, top: float) -> Floats:
    """Outcomes such that weights can give them the mean `mean`.

    A mean at or beyond a bound makes all outcomes equal to the bound. An outcome of two values gets enough records of
    either value, if its share is far from the wanted one.
    """
    if mean <= low or mean >= top:
        return np.full(len(outcome), min(max(mean, low), top))
    if len(outcome) < 2 or not np.isin(outcome, (low, top)).all():
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
    left = round(float(outcome.sum() - down.sum()))
    first = np.argsort(down - outcome, kind="stable")
    first = first[down[first] < np.floor(top)][:left]
    down[first] += 1.0
    return np.asarray(down)


def _tilt(weight: Floats, away: Floats) -> Floats | None:
    """Factors exp(Σ λ_k away_k) of weights, (record,), under which the weighted sums of `away` (record, …) are 0.

    None if the weights would move too far.
    """
    scale = np.sqrt((away**2).mean(axis=0))
    if not (scale > 0).all():
        away, scale = away[:, scale > 0], scale[scale > 0]
    if not len(scale):
        return np.ones(len(weight))
    x, share = away / scale, weight / weight.sum()
    slopes = np.zeros(x.shape[1])

    def cost(at: Floats) -> tuple[float, Floats]:
        power = x @ at
        own = share * np.exp(power - power.max())
        return float(np.log(own.sum()) + power.max()), own / own.sum()

    value, own = cost(slopes)
    for _ in range(ROUNDS):
        gradient = own @ x
        if np.abs(gradient).max() < MET:
            break
        curvature = (x * own[:, None]).T @ x - np.outer(gradient, gradient)
        step = np.linalg.lstsq(curvature, gradient, rcond=1e-12)[0]
        length = 1.0
        while length > 1e-6:
            tried, found = cost(slopes - length * step)
            if tried <= value + 1e-15 * (1.0 + abs(value)):
                break
            length /= 2.0
        slopes = slopes - length * step
        value, own = tried, found
    power = x @ slopes
    spread = float(power.max() - power.min())
    if not (np.isfinite(spread) and spread < np.log(LARGEST_WEIGHT_RATIO) and np.abs(own @ x).max() < 1e-11):
        return None
    factor: Floats = np.exp(power)
    return factor


def moved_to(outcome: Floats, weight: Floats, mean: float, low: float, top: float) -> Floats:
    """Outcomes scaled, or shifted, within their bounds until their weighted mean is `mean`."""
    scaled = low >= 0.0 and bool((outcome > 0).any())
    if mean <= low or mean >= top:
        return np.full(len(outcome), min(max(mean, low), top))

    def at(share: float) -> Floats:
        """Outcomes, from all at the lower bound for `share` 0 to all at the upper bound for `share` 1."""
        if scaled:
            return np.asarray(np.clip(outcome * np.tan(share * np.pi / 2.0), low, top))
        return np.asarray(np.clip(outcome + (2.0 * share - 1.0) * (top - low), low, top))

    below, above = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (below + above) / 2.0
        below, above = (middle, above) if np.average(at(middle), weights=weight) < mean else (below, middle)
    found = at(above)
    if abs(np.average(found, weights=weight) - mean) <= 1e-9 * (top - low):
        return found
    share = (mean - low) / (top - low)
    return np.full(len(outcome), low + share * (top - low))
