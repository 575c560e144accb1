"""Raking: weights scaled by one factor a frame row until every public total is met (iterative proportional fitting).

The raked estimate's variance is that of its residuals from a regression on the margins with the weights before raking,
times the factors (Deville & Särndal 1992; R's `calibrate` with calfun="raking").

Where noisy sums do not tell a row's weights, totals may: such rows take up what the others leave (`Room`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpdist.core.records import TOTAL, Floats, Frame
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.estimators import Estimate, Figures, Sums, group_sums
from dpdist.estimation.variance import Stage, stratified
from dpdist.job import Job

ROUNDS = 1_000
"""Of proportional fitting; what is not met then is solved by Newton's method."""
NEWTON_STEPS = 200
MET = 1e-11
TOLD = 1e-6
"""Width of a row's room, in its sum of weights, up to which totals tell the sum."""
LEAST_ROOM = 1e-9
"""Of a row's largest weight, its least: a weight of 0 could be raked to nothing."""


class Margin(NamedTuple):
    """Public totals (cell,) and the 0/1 matrix (cell, frame row); every row is in one cell."""

    membership: csr_array
    totals: Floats


class NotMet(Exception):
    """No factors meet all totals: some combination that they need has no record."""


class Room(NamedTuple):
    """The least and the most that a row's weights add up to, (row,); both the same where that is known."""

    least: Floats
    most: Floats

    @property
    def free(self) -> NDArray[np.bool_]:
        """Rows of which that is not known, (row,)."""
        return np.asarray(self.most > self.least)


def margins_of(job: Job, frame: Frame) -> list[Margin]:
    found = []
    for said in job.rake:
        cells = cross(frame, said.by, margins=False)
        found.append(
            Margin(cells.membership, np.array([said.totals[" / ".join(label) or TOTAL] for label in cells.labels]))
        )
    return found


def factors(weights: Floats, margins: Sequence[Margin], room: Room | None = None) -> Floats:
    """Factors (…, row) that bring the sums of weights (…, row) to every total. Raises `NotMet`.

    Whether there are any depends on which rows have weights, and not on these. Rows with `room` take up what the others
    leave of the totals, as far as their room goes; only then are all rows scaled.
    """
    flat = weights.reshape(-1, weights.shape[-1])
    start = flat if room is None or not room.free.any() else _placed(flat, margins, room)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(flat > 0, start / flat, 1.0)
    for _ in range(ROUNDS):
        apart = np.zeros(len(flat))
        for margin in margins:
            ratio = _ratio(margin, flat * factor)
            factor *= (margin.membership.T @ ratio.T).T
            apart = np.maximum(apart, np.abs(ratio - 1.0).max(axis=1, initial=0.0))
        if apart.max(initial=0.0) < MET:
            return factor.reshape(weights.shape)
    for k in np.flatnonzero(apart >= MET):
        factor[k] *= _solved(flat[k] * factor[k], margins)
    return factor.reshape(weights.shape)


def _ratio(margin: Margin, weights: Floats) -> Floats:
    """Totals over the sums of weights (set, row), (set, cell)."""
    now = (margin.membership @ weights.T).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(now > 0, margin.totals / now, 1.0)


def _solved(weights: Floats, margins: Sequence[Margin]) -> Floats:
    """The same factors of one set of weights, (row,), as the minimum of Σ w exp(x'λ) − t'λ, which is convex. Proportional
    fitting is slow where rows hardly overlap. Raises `NotMet` where the minimum lies at no finite λ."""
    x = np.vstack([margin.membership.toarray() for margin in margins])
    totals = np.concatenate([margin.totals for margin in margins])
    power = np.zeros(weights.shape[0])

    def cost(at: Floats, along: float) -> float:
        return float((weights * np.exp(np.minimum(at, 500.0))).sum()) - along

    reached = 0.0
    for _ in range(NEWTON_STEPS):
        own = weights * np.exp(power)
        now = x @ own
        if np.abs(now - totals).max() <= MET * totals.max() and np.abs(_apart(now, totals)).max() < MET:
            return np.asarray(np.exp(power))
        scale = 1.0 / np.sqrt(np.maximum(now, np.finfo(float).tiny))
        curvature = (x * own) @ x.T * np.outer(scale, scale)
        step = scale * np.linalg.lstsq(curvature, scale * (totals - now), rcond=1e-14)[0]
        length, gain = 1.0, float(totals @ step)
        while length > 1e-10 and cost(power + length * (x.T @ step), reached + length * gain) > cost(power, reached):
            length /= 2.0
        power, reached = power + length * (x.T @ step), reached + length * gain
    raise NotMet


def _apart(now: Floats, totals: Floats) -> Floats:
    """Relative distances of the sums that are there, (cell,)."""
    return np.where(now > 0, totals / np.maximum(now, np.finfo(float).tiny) - 1.0, 0.0)


def _placed(flat: Floats, margins: Sequence[Margin], room: Room) -> Floats:
    """Sums of weights (set, row), those of rows with room scaled within it towards what the others leave of the totals."""
    free, placed = room.free, flat.copy()
    least, most = np.maximum(room.least, LEAST_ROOM * room.most)[free], room.most[free]
    for _ in range(ROUNDS):
        before = placed[:, free]
        for margin in margins:
            membership, own = margin.membership[:, free], placed[:, free]
            of_free = (membership @ own.T).T
            rest = (margin.membership @ placed.T).T - of_free
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(of_free > 0, np.maximum(margin.totals - rest, 0.0) / of_free, 1.0)
            placed[:, free] = np.clip(own * (membership.T @ ratio.T).T, least, most)
        if np.allclose(placed[:, free], before, rtol=MET, atol=0.0):
            break
    return placed


def within_totals(weights: Floats, margins: Sequence[Margin], room: Room) -> Room:
    """What totals and the other rows' sums `weights`, (row,), leave of the room; the sums themselves are in it."""
    least, most = (np.where(room.free, ends, weights) for ends in room)
    for _ in range(len(margins) + 1):
        for margin in margins:
            held = margin.membership
            low, high = (held.T @ (margin.totals - held @ ends) + ends for ends in (most, least))
            least = np.where(room.free, np.maximum(least, low), least)
            most = np.where(room.free, np.minimum(most, high), most)
    told = most - least <= TOLD * np.abs(weights)
    return Room(np.where(told, weights, np.minimum(least, weights)), np.where(told, weights, np.maximum(most, weights)))


def raked(sums: Sums, factor: Floats) -> Sums:
    """Sums of records whose weights were multiplied by their row's factor."""
    return Sums(sums.a * factor, sums.b * factor, *(values * factor**2 for values in (sums.aa, sums.ab, sums.bb)))


def raked_counts_and_means(
    sums: Sums, frame: Frame, cells: Cells, margins: Sequence[Margin], stage: Stage, room: Room | None = None
) -> Figures:
    """Counts, means and totals after raking, from the sums before it; variances of residuals, records as PSUs."""
    inside, plain = cells.membership.toarray(), sums
    sums = raked(plain, factors(plain.a, margins, room))
    count, total = (cells.membership @ values for values in (sums.a, sums.b))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        share = inside / count[:, None]
    x = np.vstack([margin.membership.toarray() for margin in margins])
    gram = np.linalg.pinv((x * plain.a) @ x.T)
    counted = _residual(inside, np.zeros_like(inside), plain, x, gram)
    averaged = _residual(-np.nan_to_num(mean)[:, None] * np.nan_to_num(share), np.nan_to_num(share), plain, x, gram)
    added = _residual(np.zeros_like(inside), inside, plain, x, gram)
    variances = [_variance(*each, sums, frame, stage) for each in (counted, averaged, added)]
    averages = Estimate(mean, np.where(count > 0, variances[1], np.nan))
    return Estimate(count, variances[0]), averages, Estimate(total, variances[2])


def _residual(p: Floats, q: Floats, sums: Sums, x: Floats, gram: Floats) -> tuple[Floats, Floats]:
    """p + q y, coefficients (cell, row), less its regression on the margins, weighted as `sums`: another p."""
    slopes = (p * sums.a + q * sums.b) @ x.T @ gram
    return p - slopes @ x, q


def _variance(p: Floats, q: Floats, sums: Sums, frame: Frame, stage: Stage) -> Floats:
    cells = len(p)
    total = p * sums.a + q * sums.b
    squares = p**2 * sums.aa + 2.0 * p * q * sums.ab + q**2 * sums.bb
    strata = len(stage.size)
    group = (np.arange(cells)[:, None] * strata + frame.design_stratum).reshape(-1)
    pairs = np.arange(cells * strata)
    sum_t, sum_tt = (group_sums(group, values.reshape(-1), cells * strata) for values in (total, squares))
    return stratified(sum_t, sum_tt, pairs // strata, pairs % strata, stage, cells)
