"""Limits of residual sums by table cell, from public residual laws and sizes.

In a cell a record adds u = ((r − c)/L, ρ_k/H_k), scaled into the L1 unit ball: u · min(1, 1/‖u‖₁). Here r = w − m_w,
and ρ_k = w(y_k − μ_k) − m_w(m_k − μ_k) with the cell's predicted mean μ_k. c, L and H minimise the predicted error of a
cell's count and means in direct standard errors: noise against what is clipped. What no reference record shows lies
beyond with the probability of one record more, by a power law of exponent 4 up to the public range. So limits reach the
range as the budget grows, and the estimate is then the direct one.

Where numbers of records are secret, m_w is left out of r and ρ, and c is 0: a record that is not there adds nothing. What
is clipped of n records is n times its mean. n is secret, but goes with the count: the part of the expected clipped sums
over the count, `hidden`, is taken from rows of the posterior (`system`), and only what is left of it is an error. Weights
are there in every record, so that u is measured in pairs (u_0/K + u_k)/2 and (u_0/K − u_k)/2. Their L1 norm is Σ_k
max(|u_0|/K, |u_k|), below ‖u‖₁: with one outcome this leaves half the variance of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.workload import AddedCells

OWN, POOLED, BEYOND = 96, 32, 5
"""Numbers of residuals of a cell's own reference records, of all records, and beyond them, that stand for a cell."""
AT_ONCE = 256
"""Cells whose limits are computed together: what they need stays in a processor's own memory."""
MOST_WITH_ALL_CENTRES = 256
"""Tables of more cells try one centre besides 0: that of the least risk under the limits about 0."""
POOL_WORTH = 30.0
"""Number of records that the residuals of all records count for in a cell."""
CANDIDATES = 14
"""Number of limits that are tried at a time."""
SWEEPS = 2
NEGLIGIBLE = 0.01
"""Noise in direct standard errors below which limits are as wide as that noise allows."""
NEARLY_NONE = 1e-9
"""Smallest of the largest residuals, in what public bounds allow: a constant has none."""
TAIL = 4.0
"""Exponent of the power law beyond the largest residual of the reference."""
CENTRES = (0.0, 0.8, 0.95, 1.0)
"""Quantiles of a cell's residuals of weights that are tried as centres, besides 0."""
NARROW = 0.001
"""Noise in direct standard errors of limits that counts of records beyond them will widen."""
WIDER, STEPS_WIDER = 4.0, 12
"""Factor and number of the sizes by which records beyond limits are counted under a large budget."""
MOST_HIDDEN = 0.9
"""Largest part of a count that is expected beyond limits."""
PLANNED_DRIFT = 0.05
"""Relative drift of a cell's weights and outcomes that limits have room for."""
FAR_DRIFTS = {0.12: 0.018, 0.3: 1.8e-3, 0.9: 2e-4, 2.7: 2e-5}
"""Relative sizes of drift far beyond that, and their probabilities: three times as far is a tenth as likely."""


@dataclass(frozen=True)
class TableLimits:
    """Limits of a table's cells. `centre` and `weight` are c and L, (cell,); `outcome` is H, (cell, outcome).

    `mean` is μ, (cell, outcome). `beyond` is the expected clipped part of a record's residuals, (cell, 1 + outcome), and
    `loss` the variance of the clipped part of the cell's sums about it.
    """

    cell: Ints
    """The cell of every base cell."""
    size: Floats
    """Public numbers of records, (cell,)."""
    mean: Floats
    centre: Floats
    weight: Floats
    outcome: Floats
    beyond: Floats
    loss: Floats
    hidden: Floats
    """`beyond` over the predicted weight where numbers of records are secret, otherwise 0, (cell, 1 + outcome); without a
    reference the part of an error of the predicted mean weight that is clipped."""
    slope: Floats
    """Parts of errors of predicted means that are clipped without a reference, otherwise 0, (cell, 1 + outcome)."""
    expected: Floats | float = 0.0
    """Residual sums about which parts of errors are clipped, (cell, 1 + outcome)."""
    unequal: Floats | None = None
    """What limits leave of a change of a base cell over what they leave of one of the whole cell, (base cell, 1 + outcome),
    where some base cells have moved far."""
    lacking: Floats | float = 0.0
    """What limits leave more of the expected sums of base cells than of whole cells, (cell, 1 + outcome)."""
    widest: Floats | None = None
    """Limits that clip no record of the public range, (cell, 1 + outcome), where counts of records may widen them."""

    @property
    def scale(self) -> Floats:
        """L and H side by side, (cell, 1 + outcome)."""
        return np.column_stack([self.weight, self.outcome])

    def contributions(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """u of every record in whole units of 1/UNIT, (record, sum); the L1 norm is at most UNIT.

        Rounding is towards 0. Any weights and outcomes are allowed, except NaN. Where weights are public, none is read.
        """
        u = self._residuals(base, weight, outcomes, prediction)
        u = sums_and_differences(u) if prediction.adds_weight else u
        scaled: Floats = np.trunc(u * (UNIT / np.maximum(np.abs(u).sum(axis=1), 1.0))[:, None])
        # Division may round a norm up to a last digit above 1; one unit less in the largest coordinate mends it.
        above = np.flatnonzero(np.abs(scaled).sum(axis=1) > UNIT)
        largest = np.abs(scaled[above]).argmax(axis=1)
        scaled[above, largest] -= np.sign(scaled[above, largest])
        return scaled

    def _residuals(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """u of every record before it is scaled, (record, 1 + outcome)."""
        cell, means, subtracted = self.cell[base], prediction.means[base], prediction.subtracted[base]
        about, weight = self.mean[cell], means[:, 0] if prediction.weights_known else weight
        with np.errstate(over="ignore", invalid="ignore"):
            r = weight - subtracted
            rho = weight[:, None] * (outcomes - about) - subtracted[:, None] * (means[:, 1:] - about)
            u = np.column_stack([r - self.centre[cell], rho]) / self.scale[cell]
            # Values beyond this are at the ball's surface, whatever the others are.
            return np.clip(np.nan_to_num(u, nan=0.0), -1e9, 1e9)

    def counts_beyond(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """Numbers of records by cell, coordinate of u and its size, (cell, coordinate × step), in whole units.

        A record counts in one step of every coordinate that is beyond its even part of the ball: step k is from 4^(k−1) to
        4^k times this part, and the last one all above. It adds UNIT over the number of coordinates to each.
        """
        first = int(prediction.weights_known)
        size = np.abs(self._residuals(base, weight, outcomes, prediction))[:, first:]
        coordinates = size.shape[1]
        even = _even(prediction)[first:]
        step = np.searchsorted(WIDER ** np.arange(STEPS_WIDER), size * even)
        record, coordinate = np.nonzero(step)
        columns = coordinates * STEPS_WIDER
        place = self.cell[base][record] * columns + coordinate * STEPS_WIDER + step[record, coordinate] - 1
        counts = np.bincount(place, minlength=len(self.size) * columns).reshape(-1, columns)
        return np.asarray(UNIT // coordinates * counts, dtype=np.float64)

    def widened(self, counts: Floats) -> TableLimits:
        """Limits wide enough for all records that noisy counts show, (cell, coordinate × step), in units of 1/UNIT.

        The last step is of all records that may be. None needs limits beyond those of the public range.
        """
        coordinates = counts.shape[1] // STEPS_WIDER
        has_records = counts.reshape(len(counts), coordinates, STEPS_WIDER) > UNIT / coordinates / 2.0
        step = np.zeros(self.scale.shape, dtype=np.int64)
        step[:, -coordinates:] = (np.arange(1, STEPS_WIDER + 1) * has_records).max(axis=2)
        most = np.full(step.shape, np.inf) if self.widest is None else self.widest
        scale = np.where(step < STEPS_WIDER, np.minimum(self.scale * WIDER**step, most), most)
        return replace(self, weight=scale[:, 0], outcome=scale[:, 1:])

    def added(self, values: Floats) -> Floats:
        """Sums over base cells, (cell, 1 + outcome), of values (base cell, 1 + outcome)."""
        return np.column_stack([np.bincount(self.cell, weights=part, minlength=len(self.size)) for part in values.T])

    def observed(self, sums: Floats) -> Floats:
        """Residual sums of cells from sums of contributions, (cell, 1 + outcome), with the expected clipped part."""
        residuals = sums * self.scale + self.size[:, None] * self.beyond
        residuals[:, 0] += self.size * self.centre
        return residuals


def _even(prediction: Prediction) -> Floats:
    """Inverse parts of the ball that every coordinate of u has if all have the same, (1 + outcome,)."""
    outcomes = prediction.means.shape[1] - 1
    if prediction.adds_weight:
        # The norm of pairs is 1 where |u_0| is 1 and every |u_k| is 1/K.
        return np.array([1.0, *[float(outcomes)] * outcomes])
    return np.full(1 + outcomes, float(outcomes + (not prediction.weights_known)))


def sums_and_differences(u: Floats) -> Floats:
    """(u_0/K + u_k)/2 of all K outcomes, then (u_0/K − u_k)/2, (record, 2 × outcome)."""
    part = u[:, :1] / (u.shape[1] - 1)
    return np.concatenate([part + u[:, 1:], part - u[:, 1:]], axis=1) / 2.0


def unpaired(sums: Floats) -> Floats:
    """u_0 and u_k from sums of pairs, (row, 1 + outcome). Noise of variance σ² in each pair is 2Kσ² and 2σ² in these."""
    above, below = np.split(sums, 2, axis=1)
    return np.column_stack([sums.sum(axis=1), above - below])


def predicted_means(cell: Ints, size: Floats, prediction: Prediction) -> Floats:
    """Predicted means of outcomes by cell of a table, (cell, outcome)."""
    weight = size * prediction.means[:, 0]
    cell_weight = np.bincount(cell, weights=weight)
    sums = [np.bincount(cell, weights=weight * mean) for mean in prediction.means[:, 1:].T]
    return np.asarray(np.column_stack([total / cell_weight for total in sums]))


def direct_variances(
    adding: scipy.sparse.csr_array | AddedCells, size: Floats, mean: Floats, prediction: Prediction
) -> Floats:
    """Variances of direct counts and of means times counts of rows of base cells, given numbers of records if these are
    public.

    `adding` is (row, cell), `mean` are predicted means (row, outcome); the result is (row, 1 + outcome). Records of a
    row differ by their residuals, and by what is predicted of them.
    """
    weight, spread, number = prediction.means[:, 0], prediction.spread, np.maximum(adding @ size, 1e-300)
    average = adding @ (size * weight) / number
    of_numbers = (1.0 - prediction.adds_weight) * number * average**2
    columns = [adding @ (size * (spread[:, 0] ** 2 + weight**2)) - of_numbers]
    square = spread[:, 0] ** 2 + weight**2
    for k in range(1, 1 + mean.shape[1]):
        m, about = prediction.means[:, k], mean[:, k - 1]
        both = prediction.correlation[0, k] * spread[:, 0] * spread[:, k]
        # The square of R + (m - μ) w, whose terms are constant, linear and quadratic in μ.
        constant = adding @ (size * (spread[:, k] ** 2 + 2.0 * both * m + square * m**2))
        linear = adding @ (size * (both + square * m))
        columns.append(constant - 2.0 * about * linear + about**2 * (adding @ (size * square)))
    return np.asarray(np.maximum(np.column_stack(columns), 0.0))


def sampled_variances(adding: scipy.sparse.csr_array | AddedCells, size: Floats, prediction: Prediction) -> Floats:
    """Variances of direct counts with those of numbers of records, of rows of base cells, (row,)."""
    weight = prediction.means[:, 0]
    squares, sums = adding @ (size * (prediction.spread[:, 0] ** 2 + weight**2)), adding @ (size * weight)
    return np.asarray(np.maximum(squares - sums**2 / size.sum(), 0.0))


def _quantile_ranks(start: Ints, count: Ints, number: int) -> tuple[Ints, Floats]:
    """Places within sorted runs of records, denser at their ends, (cell, number), and weights that sum to 1."""
    u = (np.arange(number) + 0.5) / number
    place = start[:, None] + np.floor(np.maximum(count, 1)[:, None] * (1.0 - (1.0 - u) ** 3)).astype(np.int64)
    share = 3.0 * (1.0 - u) ** 2
    return place, share / share.sum()


def residual_samples(
    cell: Ints,
    of_reference: Ints | Codes,
    size: Floats,
    mean: Floats,
    prediction: Prediction,
    drift: Floats | float,
    bounds: tuple[Floats, Floats],
    about: Prediction | None = None,
    together: bool = False,
) -> Iterator[tuple[slice, Floats, Floats, Floats, Floats]]:
    """Residuals (r, ρ) that stand for a cell's records, (cell, place, 1 + outcome), their shares (cell, place), the number
    of reference records, (cell,), and squares of moves by drift in relative ones, times what a relative drift of 1 adds,
    (cell, place, 1 + outcome), for some cells at a time.

    `of_reference` is the cell of every reference record, -1 for those in none. Values beyond public `bounds` of weight and
    outcomes are moved to them: residuals of a law of all cells may be far from a cell's, and a law may have moved. They
    are taken `about` another prediction, if it is given.
    """
    about = about or prediction
    cells, z = int(cell.max()) + 1, prediction.residuals
    rank = np.argsort(np.abs(z).max(axis=1), kind="stable")
    # Records by cell, those with small residuals first: a matrix by rows counts entries instead of comparing them.
    ranked = rank[of_reference[rank] >= 0]
    order = scipy.sparse.csr_array(
        (ranked, (of_reference[ranked], np.arange(len(ranked)))), shape=(cells, len(ranked))
    ).data
    count = np.bincount(of_reference[ranked], minlength=cells)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    pool_place, pool_share = _quantile_ranks(np.zeros(1, dtype=np.int64), np.array([len(rank)]), POOLED)
    pool_z = z[rank[pool_place[0]]]
    # Every residual is that of one of the cell's base cells, in turn by their sizes.
    by_cell = np.argsort(cell, kind="stable")
    reach = np.cumsum(size[by_cell])
    ends = np.bincount(cell, weights=size, minlength=cells)
    first = np.concatenate([[0.0], np.cumsum(ends)[:-1]])
    number = OWN + POOLED
    steps = (np.arange(number) * 0.6180339887498949) % 1.0
    sign = np.where(np.arange(number) % 2 == 0, 1.0, -1.0)[None, :, None]
    if together:
        # Nodes of a normal law (Gauss-Hermite): 0, and ±√3 standard deviations in a sixth of the places each.
        sign = sign * (np.sqrt(3.0) * (np.arange(number) % 3 == 0))[:, None]
    errors = np.sqrt(np.column_stack([load.variance for load in prediction.loadings]) + prediction.alone**2)
    # Errors of the prediction and planned drift move residuals of all records of a base cell.
    moves = np.hypot(errors * prediction.spread, drift * prediction.drifting)
    for begin in range(0, cells, AT_ONCE):
        block = slice(begin, min(begin + AT_ONCE, cells))
        place, share = _quantile_ranks(start[block], count[block], OWN)
        quantiles = (
            z[order[np.minimum(place, max(len(order) - 1, 0))]] if len(order) else np.zeros((*place.shape, z.shape[1]))
        )
        sample = np.concatenate([quantiles, np.broadcast_to(pool_z, (len(quantiles), *pool_z.shape))], axis=1)
        pooled = np.broadcast_to(POOL_WORTH * pool_share, (len(quantiles), POOLED))
        shares = np.concatenate([count[block, None] * share, pooled], axis=1)
        quantile_rank = first[block, None] + steps * ends[block, None]
        base = by_cell[np.minimum(np.searchsorted(reach, quantile_rank, side="right"), len(cell) - 1)]
        means = prediction.means[base]
        residual = sample * prediction.spread[base] + sign * moves[base]
        weight, centre = np.maximum(means[..., 0] + residual[..., 0], 0.0), mean[block, None, :]
        total = residual[..., 1:] + (means[..., 1:] - centre) * weight[..., None]
        weight, total = _within(weight, total, means[..., 0], centre, bounds)
        offset = about.subtracted[base]
        r, rho = weight - offset, total - offset[..., None] * (about.means[base, 1:] - centre)
        yield (
            block,
            np.concatenate([r[..., None], rho], axis=-1),
            shares,
            np.asarray(count[block] + POOL_WORTH, dtype=np.float64),
            sign**2 * prediction.drifting[base],
        )


def _within(
    weight: Floats, total: Floats, predicted: Floats, centre: Floats, bounds: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Weights, and totals about `centre`, (…, outcome), that are at most those of public bounds: a weight as `predicted` is
    within them.
    """
    lowest, highest = bounds
    most = np.maximum(highest[0], predicted)
    total = total * (np.minimum(weight, most) / np.maximum(weight, 1e-300))[..., None]
    weight = np.minimum(weight, most)
    return weight, np.clip(total, weight[..., None] * (lowest[1:] - centre), weight[..., None] * (highest[1:] - centre))


def common_drifts(drift: Floats | float, prediction: Prediction, together: bool) -> Iterator[Floats]:
    """Sizes of drift that residuals of a base cell's records have in common, (cell, 1 + outcome), planned drift first, then
    those of `FAR_DRIFTS`: all of planned drift if records drift `together`, otherwise what is above their own spread.
    """
    reach, spread = prediction.drifting, prediction.spread * (not together)
    for size in (0.0, *FAR_DRIFTS):
        yield np.sqrt(np.maximum((drift * reach) ** 2 + (size * reach) ** 2 - spread**2, 0.0))


def probabilities(sizes: int) -> Floats:
    """Those of the first of `common_drifts`, (size,)."""
    far = np.array([0.0, *FAR_DRIFTS.values()])[:sizes]
    far[0] = 1.0 - far.sum()
    return far


def choose(
    cell: Ints,
    of_reference: Ints | Codes,
    size: Floats,
    prediction: Prediction,
    noise: Floats | float,
    highest: Floats,
    lowest: Floats,
    drift: Floats | float = PLANNED_DRIFT,
    fixed: TableLimits | None = None,
    unknown: Floats | None = None,
    narrow: bool = False,
    about: Prediction | None = None,
    together: bool = False,
) -> TableLimits:
    """Limits of a table's cells. `noise` is the variance of noise on sums of contributions; `highest` and `lowest` are
    public bounds of weight and outcomes, (1 + outcome,). `fixed` are limits of which only the clipped part is wanted.
    `unknown` (cell, 1 + outcome) are variances of the prediction's errors in sums, if no reference tells cells apart. A
    weight is then larger in proportion to its cell's mean, and `hidden` is the part of such a change that is clipped. If
    `narrow`, limits are those that counts of records beyond them will widen: nothing is clipped. `about` is the prediction
    about which `fixed` limits clip residuals, where the law is another; `slope` is then that of a change of this law. What
    limits clip of drift of records `together` adds up (`common_drifts`).
    """
    cells = int(cell.max()) + 1
    # A cell that is expected to have less than a record matters only if it has one.
    number = np.maximum(np.bincount(cell, weights=size, minlength=cells), prediction.adds_weight)
    mean = predicted_means(cell, size, prediction) if fixed is None else fixed.mean
    ends = _ranges(cell, about or prediction, mean, highest, lowest)
    # With one outcome, limits beyond a coordinate's range cost more noise than a record at both ends loses.
    widest = ends * (_even(prediction) if ends.shape[1] > 2 or narrow else 1.0)
    adding = scipy.sparse.csr_array((np.ones(len(cell)), (cell, np.arange(len(cell)))), shape=(cells, len(cell)))
    direct = np.maximum(
        direct_variances(adding, size, mean, prediction), 1e-12 * (number * prediction.means[:, 0].max())[:, None] ** 2
    )
    if narrow:
        none = np.zeros_like(ends)
        scale = np.minimum(ends, NARROW * np.sqrt(direct / noise))
        parts = scale[:, 0], scale[:, 1:], none, none, none, none
        return TableLimits(cell, number, mean, np.zeros(cells), *parts, widest=widest)
    # Errors of counts are judged in direct ones that have those of numbers of records.
    unit = np.column_stack([np.maximum(sampled_variances(adding, size, prediction), direct[:, 0]), direct[:, 1:]])
    centre, scale, loss, pool = np.zeros(cells), np.zeros_like(ends), np.zeros_like(ends), np.zeros_like(ends)
    slope, unknown_mean = np.zeros_like(ends), None
    if unknown is not None or about is not None:
        mean_weight = (about or prediction).means[:, 0]
        base_weight = np.bincount(cell, weights=size * mean_weight, minlength=cells) / number
        unknown_mean = np.column_stack([np.maximum(base_weight, 1e-300), np.where(lowest[1:] >= 0.0, mean, 0.0)])
    bounds = lowest, highest
    # Where a cell's records hardly differ, sums have drift alone to show.
    drifts = np.array(
        [
            np.column_stack([np.bincount(cell, weights=size * part, minlength=cells) for part in drift_of.T])
            for drift_of in common_drifts(drift, prediction, together)
        ]
    ).T
    samples = residual_samples(cell, of_reference, size, mean, prediction, drift, bounds, about, together)
    for block, sample, share, records, moves in samples:
        share = share / share.sum(axis=1, keepdims=True)
        sample, share = _with_tails(sample, share, len(prediction.residuals), ends[block])
        unknown_means = None if unknown_mean is None else unknown_mean[block]
        law = number[block], records, prediction.adds_weight, unknown_means, drifts[:, block], moves
        if fixed is None:
            centres = () if prediction.adds_weight else CENTRES
            start = [np.zeros(len(share)), *(_quantile(sample[..., 0], share, level, ends[block, 0]) for level in centres)]
            candidates = [ClippedResiduals.of(sample, share, centre, *law) for centre in start]
            open_ = np.zeros_like(unit[block]) if unknown is None else unknown[block]
            best = _best(candidates, noise, unit[block], widest[block], cells > MOST_WITH_ALL_CENTRES, open_)
            # A limit whose noise is far below the direct error costs nothing, and hides less.
            least = np.minimum(widest[block], NEGLIGIBLE * np.sqrt(direct[block] / noise))
            centre[block], scale[block] = best[0], np.maximum(best[1], least)
        else:
            centre[block], scale[block] = fixed.centre[block], fixed.scale[block]
        clipping = ClippedResiduals.of(sample, share, centre[block], *law)
        ratios = clipping.ratios(scale[block])
        loss[block] = clipping.variances(scale[block], clipping.norm(ratios))[0]
        slope[block] = clipping.slope(ratios, clipping.norm(ratios))
        of_pool = slice(OWN, OWN + POOLED)
        pooled, worth = _lost(sample[:, of_pool], centre[block], scale[block], prediction.adds_weight), share[:, of_pool]
        pool[block] = np.einsum("cs,csk->ck", worth, pooled) / worth.sum(axis=1, keepdims=True)
    beyond = _beyond(of_reference, prediction, mean, centre, scale, pool, about or prediction, bounds)
    if fixed is not None and about is not None:
        return replace(fixed, beyond=beyond, loss=loss, slope=slope)
    hidden = np.zeros_like(beyond)
    if unknown is not None:
        hidden[:, 0] = slope[:, 0]
    if prediction.adds_weight:
        weight = np.bincount(cell, weights=size * prediction.means[:, 0]) / np.bincount(cell, weights=size)
        beyond[:, 0] = np.minimum(beyond[:, 0], MOST_HIDDEN * weight)
        hidden = beyond / weight[:, None]
    return TableLimits(cell, number, mean, centre, scale[:, 0], scale[:, 1:], beyond, loss, hidden, slope)


def _best(
    about: Sequence[ClippedResiduals], noise: Floats | float, direct: Floats, ends: Floats, one_more: bool, unknown: Floats
) -> tuple[Floats, Floats]:
    """Centres and limits, (cell, 1 + outcome), of the least predicted risk, from residuals about the tried centres."""
    risk, scale = _descend(about[0], noise, direct, ends, unknown)
    centre, candidates = about[0].centre, about[1:]
    if one_more and candidates:
        risks = np.array(
            [
                candidate.risk(candidate.norm(candidate.ratios(scale)), scale, noise, direct, unknown)
                for candidate in candidates
            ]
        )
        candidates = [ClippedResiduals.chosen(candidates, risks.argmin(axis=0))]
    for candidate in candidates:
        value, limit = _descend(candidate, noise, direct, ends, unknown)
        better = value < risk
        risk, centre = np.where(better, value, risk), np.where(better, candidate.centre, centre)
        scale = np.where(better[:, None], limit, scale)
    return centre, scale


def _beyond(
    of_reference: Ints | Codes,
    prediction: Prediction,
    mean: Floats,
    centre: Floats,
    scale: Floats,
    pool: Floats,
    about: Prediction,
    bounds: tuple[Floats, Floats],
) -> Floats:
    """Expected clipped part of a record: of the cell's reference records, and of the pool's, (cell, 1 + outcome)."""
    inside = np.flatnonzero(of_reference >= 0)
    cell, (means, spread) = of_reference[inside], prediction.at_reference[inside].transpose(1, 0, 2)
    residual = prediction.residuals[inside] * spread
    weight, of_about = np.maximum(means[:, 0] + residual[:, 0], 0.0), about.at_reference[inside, 0]
    total = residual[:, 1:] + (means[:, 1:] - mean[cell]) * weight[:, None]
    weight, total = _within(weight, total, means[:, 0], mean[cell], bounds)
    offset = (1.0 - about.adds_weight) * of_about[:, 0]
    r, rho = weight - offset, total - offset[:, None] * (of_about[:, 1:] - mean[cell])
    clipped_part = _lost(np.column_stack([r, rho])[:, None], centre[cell], scale[cell], prediction.adds_weight)[:, 0]
    number = np.bincount(cell, minlength=len(mean))
    sums = np.column_stack([np.bincount(cell, weights=part, minlength=len(mean)) for part in clipped_part.T])
    return np.asarray((sums + POOL_WORTH * pool) / (number[:, None] + POOL_WORTH))


def left_of_changes(limits: TableLimits, law: Prediction, about: Prediction, size: Floats) -> Floats:
    """What limits leave of a change of a base cell over what they leave of one of its whole cell, (base cell, 1 + outcome).

    Records have the law of all residuals, and values change in proportion.
    """
    rank = np.argsort(np.abs(law.residuals).max(axis=1), kind="stable")
    place, share = _quantile_ranks(np.zeros(1, dtype=np.int64), np.array([len(rank)]), POOLED)
    residual, centre = law.residuals[rank[place[0]]] * law.spread[:, None], limits.mean[limits.cell, None]
    weight = np.maximum(law.means[:, None, 0] + residual[..., 0], 0.0)
    total = residual[..., 1:] + (law.means[:, None, 1:] - centre) * weight[..., None]
    r, rho = (
        weight - about.subtracted[:, None],
        total - (about.subtracted[:, None] * (about.means[:, 1:] - centre[:, 0]))[:, None],
    )
    deviation = np.concatenate([(r - limits.centre[limits.cell, None])[..., None], rho], axis=-1)
    ratio = np.abs(deviation) / limits.scale[limits.cell, None]
    values = (
        np.concatenate([weight[..., None], np.maximum(total + centre * weight[..., None], 0.0)], axis=-1) * share[:, None]
    )
    left = np.einsum("bsk,bsk->bk", values, 1.0 - _changed(ratio, ratio.sum(axis=-1, keepdims=True)))
    of_all = values.sum(axis=1)
    of_cell = [limits.added(size[:, None] * part)[limits.cell] for part in (left, of_all)]
    base, whole = (
        np.divide(part, most, out=np.ones_like(part), where=most > 0.0) for part, most in ((left, of_all), of_cell)
    )
    return np.asarray(base / np.maximum(whole, 1.0 - MOST_HIDDEN))


def following(law: Prediction, before: Prediction, cell: Ints, of_reference: Ints | Codes, size: Floats) -> Prediction:
    """A law that has moved since the prediction `before`: reference records have moved as their base cells have, and those
    without one in the file as the cells of a table.
    """
    at_reference, at_home = before.at_reference.copy(), before.places >= 0
    for cells, place in ((np.arange(len(cell)), before.places), (cell, np.where(at_home, -1, of_reference))):

        def factors(of_law: Floats, of_before: Floats, cells: Ints = cells) -> Floats:
            now, then = (np.bincount(cells, weights=size * part) for part in (of_law, of_before))
            return np.divide(now, then, out=np.ones_like(now), where=then > 0.0)

        inside = np.flatnonzero(place >= 0)
        outcomes = predicted_means(cells, size, law) - predicted_means(cells, size, before)
        spread = np.column_stack([factors(*both) for both in zip(law.spread.T, before.spread.T, strict=True)])
        at_reference[inside, 0, :1] *= factors(law.means[:, 0], before.means[:, 0])[place[inside], None]
        at_reference[inside, 0, 1:] += outcomes[place[inside]]
        at_reference[inside, 1] *= spread[place[inside]]
    return replace(law, at_reference=at_reference)


def _lost(residual: Floats, centre: Floats, scale: Floats, adds_weight: bool) -> Floats:
    """The clipped part of residuals (row, place, 1 + outcome)."""
    deviation = residual.copy()
    deviation[..., 0] -= centre[:, None]
    size = np.abs(deviation) / scale[:, None, :]
    # The norm of pairs: |a + b|/2 + |a − b|/2 is the larger of |a| and |b|.
    pairs = np.maximum(size[..., :1] / max(size.shape[-1] - 1, 1), size[..., 1:]) if adds_weight else size
    norm = pairs.sum(axis=-1)
    return np.asarray(deviation * (1.0 - 1.0 / np.maximum(norm, 1.0))[..., None])


def _ranges(cell: Ints, prediction: Prediction, mean: Floats, highest: Floats, lowest: Floats) -> Floats:
    """The largest |r| and |ρ| of any record of a cell, (cell, 1 + outcome)."""
    cells, subtracted = mean.shape[0], prediction.subtracted
    most = np.zeros(cells)
    np.maximum.at(most, cell, np.maximum(highest[0] - subtracted, subtracted))
    reach = highest[0] * np.maximum(highest[1:] - mean, mean - lowest[1:])
    far = np.zeros_like(mean)
    np.maximum.at(far, cell, subtracted[:, None] * np.abs(prediction.means[:, 1:] - mean[cell]))
    return np.column_stack([most, reach + far])


def _with_tails(sample: Floats, share: Floats, records: int, ends: Floats) -> tuple[Floats, Floats]:
    """The sample with values beyond its largest residuals, which one record more than all of the reference's would take."""
    cells, _, coordinates = sample.shape
    largest = np.maximum(np.abs(sample).max(axis=1), NEARLY_NONE * ends)
    extra, parts = [], []
    steps = (np.arange(BEYOND) + 0.5) / BEYOND
    tail_share = 1.0 / (records + 1.0)
    for k in range(coordinates):
        ratio = np.maximum(ends[:, k] / np.maximum(largest[:, k], 1e-300), 1.0)[:, None]
        size, worth = largest[:, k, None] * ratio**steps, ratio ** (-TAIL * (steps - steps[0]))
        worth = worth / worth.sum(axis=1, keepdims=True) * tail_share
        for sign in (1.0,) if k == 0 else (1.0, -1.0):
            place = np.zeros((cells, BEYOND, coordinates))
            place[..., k] = sign * size
            extra.append(place)
            parts.append(worth if k == 0 else worth / 2.0)
    shares = np.concatenate([share * (1.0 - coordinates * tail_share), *parts], axis=1)
    return np.concatenate([sample, *extra], axis=1), shares


def _quantile(values: Floats, share: Floats, quantile: float, most: Floats) -> Floats:
    order = np.argsort(values, axis=1)
    reach = np.cumsum(np.take_along_axis(share, order, axis=1), axis=1)
    # The quantile of 1 is the largest residual of the sample, without values beyond.
    rank = quantile * reach[:, -1] if quantile < 1.0 else 0.998 * reach[:, -1]
    place = np.minimum((reach < rank[:, None]).sum(axis=1), values.shape[1] - 1)
    return np.asarray(np.clip(values[np.arange(len(values)), order[np.arange(len(values)), place]], -most, most))


class ClippedResiduals(NamedTuple):
    """What limits clip of residuals that stand for cells' records: products of residuals with their shares.

    `size` are |r − c| and |ρ|; `first`, `second` and `across` are shares times residuals, their squares, and their products
    with r, (1 + outcome, cell, place) each. `across` has no coordinates where numbers of records are public.
    """

    size: Floats
    first: Floats
    second: Floats
    across: Floats
    weight: Floats
    """Means of r and of its square, (cell, 2)."""
    mean: Floats
    """Means of r − c and ρ, (1 + outcome, cell)."""
    square: Floats
    centre: Floats
    number: Floats
    records: Floats
    relative: Floats
    """Shares times weights and totals over means that are not known, otherwise 0, (1 + outcome, cell, place)."""
    moving: Floats
    """Parts of places in a drift of all records, (1 + outcome, cell, place)."""
    drifts: Floats
    """What drift of all records adds to the cell's sums, (1 + outcome, cell, size), by size (`common_drifts`)."""

    @classmethod
    def of(
        cls,
        sample: Floats,
        share: Floats,
        centre: Floats,
        number: Floats,
        records: Floats,
        adds_weight: bool,
        unknown_mean: Floats | None = None,
        drifts: Floats | None = None,
        moves: Floats | None = None,
    ) -> ClippedResiduals:
        """`unknown_mean` (cell, 1 + outcome) are predicted means that may be far from the right ones; 0 for known ones."""
        deviation = np.moveaxis(sample, 2, 0).copy()
        deviation[0] -= centre[:, None]
        first = share * deviation
        products = share[:, : OWN + POOLED] * sample[:, : OWN + POOLED, 0]
        across = (first * sample[..., 0])[:, :, : OWN + POOLED] if adds_weight else np.zeros((0, *products.shape))
        weight = np.column_stack([products.sum(axis=1), (products * sample[:, : OWN + POOLED, 0]).sum(axis=1)])
        second = first * deviation
        sums = first.sum(axis=2), second.sum(axis=2)
        relative = np.zeros_like(first) if unknown_mean is None else _relative(sample, share, unknown_mean)
        drifts = np.zeros((len(first), len(share), 0)) if drifts is None else drifts
        moving = np.zeros((len(first), *products.shape))
        if moves is not None:
            moving = share[:, : OWN + POOLED] * np.moveaxis(moves, 2, 0)
            moving = moving / np.maximum(moving.sum(axis=2, keepdims=True), 1e-300)
        return cls(
            np.abs(deviation), first, second, across, weight, *sums, centre, number, records, relative, moving, drifts
        )

    @classmethod
    def chosen(cls, several: Sequence[ClippedResiduals], which: Ints) -> ClippedResiduals:
        """By cell that of the given number."""

        def by_cell(parts: Sequence[Floats], axis: int) -> Floats:
            place = np.expand_dims(which, [k for k in range(parts[0].ndim + 1) if k != 1 + axis])
            return np.asarray(np.take_along_axis(np.stack(parts), place, axis=0)[0])

        axes = (1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1)
        return cls(*(by_cell(parts, axis) for *parts, axis in zip(*several, axes, strict=True)))

    def ratios(self, scale: Floats) -> list[Floats]:
        """Sizes of residuals in limits (cell, 1 + outcome): of every coordinate, (cell, place).

        Here and below, axes before these are those of several limits that are tried.
        """
        return [size / scale[..., k, None] for k, size in enumerate(self.size)]

    def norm(self, ratios: Sequence[Floats]) -> Floats:
        """Norms of contributions, (cell, place), as `_lost` has them."""
        if not len(self.across):
            return np.asarray(sum(ratios))
        part = ratios[0] / max(len(ratios) - 1, 1)
        return np.asarray(sum(np.maximum(part, ratio) for ratio in ratios[1:]))

    def slope(self, ratios: Sequence[Floats], norm: Floats) -> Floats:
        """The part of a change of a cell's mean weight, and mean outcomes, that is clipped, (cell, 1 + outcome): values
        change in proportion.
        """
        columns = list[Floats]()
        for ratio, relative in zip(ratios, self.relative, strict=True):
            columns.append(np.minimum(_dot(relative, _changed(ratio, norm)), MOST_HIDDEN))
        return np.stack(columns, axis=-1)

    def variances(self, scale: Floats, norm: Floats) -> tuple[Floats, Floats]:
        """Variances of what is clipped of cells' sums, and of what is kept, (cell, 1 + outcome) each."""
        clipped_share, columns = 1.0 - 1.0 / np.maximum(norm, 1.0), list[tuple[Floats, Floats]]()
        body, ahead = OWN + POOLED, self.number + self.number**2 / self.records
        for k, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            mean, product = _dot(first[:, :body], clipped_share[..., :body]), second * clipped_share
            inside, tail = (
                _dot(product[..., :body], clipped_share[..., :body]),
                _dot(product[..., body:], clipped_share[..., body:]),
            )
            if len(self.across):
                # What is clipped goes with the count: only what is left of it is uncertain.
                part = mean / np.maximum(self.weight[:, 0], 1e-300)
                uncertain = (
                    inside - 2.0 * part * _dot(self.across[k], clipped_share[..., :body]) + part**2 * self.weight[:, 1]
                )
            else:
                uncertain = inside - mean**2
            loss = np.maximum(uncertain, 0.0) * ahead + tail * self.number
            variance = self.square[k] - 2.0 * product.sum(axis=-1) + inside + tail
            if k == 0:
                of_centre = self.centre + 2.0 * (self.mean[0] - mean - _dot(first[:, body:], clipped_share[..., body:]))
                variance = variance + self.centre * of_centre
            variance = np.maximum(variance, 0.0) * self.number
            if self.drifts[k].any():
                # Drift adds to all records at once: what limits leave of it, and what they clip.
                part = _dot(self.moving[k], _changed(self.size[k] / scale[..., k, None], norm)[..., :body])
                most = (self.number * scale[..., k])[..., None]
                left = np.minimum((1.0 - part)[..., None] * self.drifts[k], most)
                of_sizes = probabilities(self.drifts.shape[2])
                loss, variance = loss + (self.drifts[k] - left) ** 2 @ of_sizes, variance + left**2 @ of_sizes
            columns.append((loss, variance))
        clipped, kept_of = (np.stack(part, axis=-1) for part in zip(*columns, strict=True))
        return clipped, kept_of

    def risk(self, norm: Floats, scale: Floats, noise: Floats | float, direct: Floats, unknown: Floats) -> Floats:
        """Predicted squared errors of a cell's count and means, summed, in direct variances, (cell,)."""
        ratios = self.ratios(scale)
        loss, variance = self.variances(scale, norm)
        variance, added = variance + unknown, noise * scale**2
        if self.relative.any():
            response = (1.0 - self.slope(ratios, norm)) ** 2
            loss, added = loss / response, added / response
        return np.asarray(((variance * added / np.maximum(variance + added, 1e-300) + loss) / direct).sum(axis=-1))


def _changed(ratio: Floats, norm: Floats) -> Floats:
    """The part of a change of residuals with this ratio to their limit that is clipped."""
    beyond = np.maximum(norm, 1.0)
    return np.asarray(np.where(norm > 1.0, 1.0 - 1.0 / beyond + ratio / beyond**2, 0.0))


def _relative(sample: Floats, share: Floats, means: Floats) -> Floats:
    """Shares times weights, and times totals of outcomes, over their means, (1 + outcome, cell, place)."""
    weight = np.maximum(sample[..., 0] + means[:, :1], 0.0)
    totals = [np.maximum(sample[..., k] + means[:, k, None] * weight, 0.0) for k in range(1, means.shape[1])]
    parts = [share * (part if k == 0 else part * (means[:, k, None] > 0.0)) for k, part in enumerate([weight, *totals])]
    return np.array([part / np.maximum(part.sum(axis=1, keepdims=True), 1e-300) for part in parts])


def _dot(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.einsum("...s,...s->...", left, right))


def _descend(
    clipping: ClippedResiduals, noise: Floats | float, direct: Floats, ends: Floats, unknown: Floats
) -> tuple[Floats, Floats]:
    """Coordinate descent over limits for given centres: the risk, and the limits (cell, 1 + outcome)."""
    least = np.minimum(clipping.size, np.quantile(clipping.size, 0.9, axis=2)[..., None]) ** 2
    shares = np.divide(clipping.second, clipping.size**2, out=np.zeros_like(least), where=clipping.size > 1e-150)
    typical = np.sqrt(np.einsum("kcs,kcs->ck", shares, least))
    low = np.maximum(0.3 * typical, 1e-9 * ends)
    high = np.maximum(ends * 1.0, low * 1.001)
    high[:, 0] += np.abs(clipping.centre)
    scale = np.minimum(3.0 * np.maximum(typical, low), high)
    risk = clipping.risk(clipping.norm(clipping.ratios(scale)), scale, noise, direct, unknown)
    groups = int(np.clip(CANDIDATES * len(ends) / AT_ONCE, 1, CANDIDATES))
    # The first sweep looks at limits of residuals' own sizes, the second at all up to the public range.
    for sweep in range(SWEEPS):
        for k in range(ends.shape[1]):
            top = high[:, k] if sweep else np.minimum(high[:, k], 40.0 * low[:, k])
            best = scale[:, k].copy()
            for parts in np.array_split(np.linspace(0.0, 1.0, CANDIDATES), groups):
                trial = np.repeat(scale[None], len(parts), axis=0)
                trial[..., k] = low[:, k] * (top / low[:, k]) ** parts[:, None]
                values = clipping.risk(clipping.norm(clipping.ratios(trial)), trial, noise, direct, unknown)
                least_of = values.argmin(axis=0)[None]
                value = np.take_along_axis(values, least_of, axis=0)[0]
                better = value < risk
                candidate_limit = np.take_along_axis(trial[..., k], least_of, axis=0)[0]
                risk, best = np.where(better, value, risk), np.where(better, candidate_limit, best)
            scale[:, k] = best
    return risk, scale
