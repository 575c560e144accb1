"""Limits of residual sums by table cell, from public residual laws and sizes.

In a cell a record adds u = ((r − c)/L, ρ_k/H_k), scaled into the L1 unit ball: u · min(1, 1/‖u‖₁). Here r = w − m_w,
and ρ_k = w(y_k − μ_k) − m_w(m_k − μ_k) with the cell's predicted mean μ_k. c, L and H minimise the predicted error of a
cell's count and means in direct standard errors, noise against what is clipped, and let sums show drift that cells
have in common. What no reference record shows lies beyond with the probability of one record more, by a power law of
exponent 4 up to the public range. So limits reach the range as the budget grows, and the estimate is then the direct one.

Where numbers of records are secret, m_w is left out of r and ρ, and c is 0: a record that is not there adds nothing. What
is clipped of n records is n times its mean. n is secret, but goes with the count: the part of the expected clipped sums
over the count, `hidden`, is taken from rows of the posterior (`system`), and only what is left of it is an error. Weights
are there in every record, so that u is measured in pairs (u_0/K + u_k)/2 and (u_0/K − u_k)/2. Their L1 norm is Σ_k
max(|u_0|/K, |u_k|), below ‖u‖₁: with one outcome this leaves half the variance of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from dpdist.core.records import UNIT, Codes, Floats, Ints, Singles, quantiles
from dpdist.mechanisms.tables.clipped_residuals import MOST_HIDDEN, ClippedResiduals, clipped_change
from dpdist.mechanisms.tables.prediction import FollowedRecords, Prediction, RecordMoves
from dpdist.mechanisms.tables.residual_samples import (
    AT_ONCE,
    OWN,
    PLANNED_DRIFT,
    POOL_WORTH,
    POOLED,
    common_drifts,
    quantile_ranks,
    residual_samples,
    with_tails,
    within_bounds,
)
from dpdist.mechanisms.tables.workload import AddedCells

RECORDS_AT_ONCE = 2**18
"""Reference records whose clipped parts are computed together: they take much memory."""
MOST_WITH_ALL_CENTRES = 256
"""Tables of more cells try one centre besides 0: that of the least risk under the limits about 0."""
CANDIDATES = 14
"""Number of limits that are tried at a time."""
SWEEPS = 2
NEGLIGIBLE = 0.01
"""Noise in direct standard errors below which limits are as wide as that noise allows."""
CENTRES = (0.0, 0.8, 0.95, 1.0)
"""Quantiles of a cell's residuals of weights that are tried as centres, besides 0."""
NARROW = 0.001
"""Noise in direct standard errors of limits that counts of records beyond them will widen."""
WIDER, STEPS_WIDER = 4.0, 12
"""Factor and number of the sizes by which records beyond limits are counted under a large budget."""


@dataclass(frozen=True)
class TableLimits:
    """Limits of a table's cells. `centre` and `weight` are c and L, (cell,); `outcome` is H, (cell, outcome).

    `mean` is μ, (cell, outcome). `beyond` is the expected clipped part of a record's residuals, (cell, 1 + outcome), and
    `loss` the variance of the clipped part of the cell's sums about it.
    """

    cell: Codes
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
    unequal: Singles | None = None
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

    @property
    def clipped_of_record(self) -> Floats:
        """Standard deviation of the clipped part of a record, over what slopes leave, (cell, 1 + outcome)."""
        return np.asarray(np.sqrt(self.loss / self.size[:, None]) / (1.0 - self.slope))

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
        place = self.cell[base][record].astype(np.int64) * columns + coordinate * STEPS_WIDER + step[record, coordinate] - 1
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


def predicted_means(cell: Ints | Codes, size: Floats, prediction: Prediction) -> Floats:
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


def choose(
    cell: Codes,
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
        sample, share = with_tails(sample, share, len(prediction.residuals.values), ends[block])
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
        loss[block] = clipping.variances(scale[block], ratios)[0]
        slope[block] = clipping.slope(ratios, clipping.norm(ratios))
        of_pool = slice(OWN, OWN + POOLED)
        pooled, worth = _lost(sample[:, of_pool], centre[block], scale[block], prediction.adds_weight), share[:, of_pool]
        pool[block] = np.einsum("cs,csk->ck", worth, pooled) / worth.sum(axis=1, keepdims=True)
    of_cells = cell, size, of_reference, prediction, mean, centre, scale, pool
    beyond, of_probability = _beyond(*of_cells, about or prediction, bounds, alike=unknown is not None)
    if fixed is not None and about is not None:
        for k, part in of_probability.items():
            slope[:, 1 + k] = np.clip(part, 0.0, MOST_HIDDEN)
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
            [candidate.risk(candidate.ratios(scale), scale, noise, direct, unknown) for candidate in candidates]
        )
        candidates = [ClippedResiduals.chosen(candidates, risks.argmin(axis=0))]
    for candidate in candidates:
        value, limit = _descend(candidate, noise, direct, ends, unknown)
        better = value < risk
        risk, centre = np.where(better, value, risk), np.where(better, candidate.centre, centre)
        scale = np.where(better[:, None], limit, scale)
    return centre, scale


def _beyond(
    cell_of_base: Codes,
    size: Floats,
    of_reference: Ints | Codes,
    prediction: Prediction,
    mean: Floats,
    centre: Floats,
    scale: Floats,
    pool: Floats,
    about: Prediction,
    bounds: tuple[Floats, Floats],
    alike: bool,
) -> tuple[Floats, dict[int, Floats]]:
    """Expected clipped part of a record, of the cell's reference records and of the pool's, (cell, 1 + outcome); and the
    part of a change of probability that is clipped, (cell,), by outcome of two values.

    If cells are `alike`, no record is in a cell. Values of the law count as records of all base cells in turn, and cells
    have the pool's part.
    """
    records = np.arange(len(prediction.residuals.values)) if alike else np.flatnonzero(of_reference >= 0)
    reach = np.cumsum(size)
    number, sums, changes = np.zeros(len(mean)), np.zeros_like(scale), dict[int, tuple[Floats, Floats]]()

    def added(cell: Ints | Codes, values: Floats) -> Floats:
        return np.bincount(cell, weights=values, minlength=len(mean)).astype(np.float64)

    for inside in np.array_split(records, max(-(-len(records) // RECORDS_AT_ONCE), 1)):
        if alike:
            base = np.searchsorted(reach, (inside + 0.5) / max(len(records), 1) * reach[-1], side="right")
            base = np.minimum(base, len(size) - 1)
            cell, of_about = cell_of_base[base], about.means[base]
            means, spread = prediction.means[base], prediction.spread[base]
        else:
            cell, (means, spread) = of_reference[inside], prediction.of_records(inside).transpose(1, 0, 2)
            of_about = about.of_records(inside)[:, 0]
        residual = prediction.residuals.values[inside] * spread
        weight = np.maximum(means[:, 0] + residual[:, 0], 0.0)
        total = residual[:, 1:] + (means[:, 1:] - mean[cell]) * weight[:, None]
        weight, total = within_bounds(weight, total, means[:, 0], mean[cell], bounds)
        offset = (1.0 - about.adds_weight) * of_about[:, 0]
        r, predicted = weight - offset, offset[:, None] * (of_about[:, 1:] - mean[cell])
        of_cells = centre[cell], scale[cell], prediction.adds_weight
        two_valued = list(_of_two_values(prediction, inside, weight, mean[cell]))
        for k, likely, _, _ in two_valued:
            total[:, k] = likely
        clipped_part = of_likely = _lost(np.column_stack([r, total - predicted])[:, None], *of_cells)[:, 0]
        for k, likely, other, probability in two_valued:
            instead = total.copy()
            instead[:, k] = other
            change = _lost(np.column_stack([r, instead - predicted])[:, None], *of_cells)[:, 0] - of_likely
            clipped_part = clipped_part + probability[:, None] * change
            upward = np.sign(other - likely)
            lost_of, all_of = changes.get(k, (0.0, 0.0))
            changes[k] = lost_of + added(cell, upward * change[:, 1 + k]), all_of + added(cell, upward * (other - likely))
        sums += np.column_stack([added(cell, part) for part in clipped_part.T])
        number += np.bincount(cell, minlength=len(mean))
    clipped_of_change = dict[int, Floats]()
    for k, (lost_of, all_of) in changes.items():
        pooled = POOL_WORTH * np.array([lost_of.sum(), all_of.sum()]) / max(len(records), 1)
        clipped_of_change[k] = (lost_of + pooled[0]) / np.maximum(all_of + pooled[1], 1e-300)
    # The pool's parts are moved so that all reference records together have what they clip: by one multiple of limits,
    # where there is a part, and by a factor where sums without a centre clip nothing below 0.
    worth = np.ones(len(mean)) if alike else POOL_WORTH / (number + POOL_WORTH)
    by = scale * (pool != 0.0)
    by[:, : int(prediction.adds_weight)] = pool[:, : int(prediction.adds_weight)]
    short, moved = worth @ (sums - number[:, None] * pool), (worth * number) @ by
    pool = pool + np.divide(short, moved, out=np.zeros_like(moved), where=moved != 0.0) * by
    if alike:
        return pool, clipped_of_change
    return np.asarray((sums + POOL_WORTH * pool) / (number[:, None] + POOL_WORTH)), clipped_of_change


def _of_two_values(
    prediction: Prediction, records: Ints, weight: Floats, mean: Floats
) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """By outcome of two values: its place, reference records' totals about `mean` (record, outcome) with the likelier value
    and with the other one, and the probability of this, (record,).
    """
    for k in np.flatnonzero(prediction.by_values[1:] == 0.0).tolist():
        (low, high), value = prediction.ends[:, k], prediction.values[records, k]
        upper = value > (low + high) / 2.0
        likely, other = (weight * (np.where(side, high, low) - mean[:, k]) for side in (upper, ~upper))
        yield k, likely, other, np.where(upper, high - value, value - low) / (high - low)


def left_of_changes(limits: TableLimits, law: Prediction, about: Prediction, size: Floats, lowest: Floats) -> Singles:
    """What limits leave of a change of a base cell over what they leave of one of its whole cell, (base cell, 1 + outcome).

    Records have the law of all residuals, and values change in proportion: as in `choose`, nothing is clipped of changes of
    outcomes that may be negative. Outcomes of two values have 1.
    """
    rank = law.residuals.by_size
    place, share = quantile_ranks(np.zeros(1, dtype=np.int64), np.array([len(rank)]), POOLED)
    sample, parts = law.residuals.values[rank[place[0]]], list[tuple[Floats, Floats]]()
    for begin in range(0, len(size), 8 * AT_ONCE):
        block = slice(begin, begin + 8 * AT_ONCE)
        cell, means, offset = limits.cell[block], law.means[block], about.subtracted[block, None]
        residual, centre = sample * law.spread[block, None], limits.mean[cell, None]
        weight = np.maximum(means[:, None, 0] + residual[..., 0], 0.0)
        total = residual[..., 1:] + (means[:, None, 1:] - centre) * weight[..., None]
        r, rho = weight - offset, total - (offset * (about.means[block, 1:] - centre[:, 0]))[:, None]
        deviation = np.concatenate([(r - limits.centre[cell, None])[..., None], rho], axis=-1)
        ratio = np.abs(deviation) / limits.scale[cell, None]
        values = np.concatenate([weight[..., None], np.maximum(total + centre * weight[..., None], 0.0)], axis=-1)
        values = values * share[:, None]
        unclipped = 1.0 - clipped_change(ratio, ratio.sum(axis=-1, keepdims=True))
        parts.append((np.einsum("bsk,bsk->bk", values, unclipped), values.sum(axis=1)))
    unclipped_values, all_values = map(np.concatenate, zip(*parts, strict=True))
    of_cell = [limits.added(size[:, None] * part)[limits.cell] for part in (unclipped_values, all_values)]
    of_base, of_whole = (
        np.divide(part, most, out=np.ones_like(part), where=most > 0.0)
        for part, most in ((unclipped_values, all_values), of_cell)
    )
    rising = np.concatenate([[True], (lowest[1:] >= 0.0) & (law.by_values[1:] > 0.0)])
    # A ratio for every base cell in every table takes much memory, and needs no more digits.
    return np.asfortranarray(np.where(rising, of_base / np.maximum(of_whole, 1.0 - MOST_HIDDEN), 1.0), dtype=np.float32)


def following(law: Prediction, before: Prediction, cell: Codes, of_reference: Ints | Codes, size: Floats) -> Prediction:
    """A law that has moved since the prediction `before`: reference records have moved as their base cells have, and those
    without one in the file as the cells of a table.
    """
    at_home, moves, two_valued = before.places >= 0, list[RecordMoves](), bool(len(before.values))
    then, now = (np.zeros((len(at_home) * two_valued, law.means.shape[1])) for _ in range(2))
    if two_valued:
        then[:] = now[:] = before.of_records(np.arange(len(at_home)))[:, 0]
    for cells, place in ((np.arange(len(cell)), before.places), (cell, np.where(at_home, np.int32(-1), of_reference))):

        def factors(of_law: Floats, of_before: Floats, cells: Ints | Codes = cells) -> Floats:
            now, then = (np.bincount(cells, weights=size * part) for part in (of_law, of_before))
            return np.divide(now, then, out=np.ones_like(now), where=then > 0.0)

        of_law, of_before = (predicted_means(cells, size, of) for of in (law, before))
        spread = np.column_stack([factors(*both) for both in zip(law.spread.T, before.spread.T, strict=True)])
        moves.append(RecordMoves(place, factors(law.means[:, 0], before.means[:, 0]), of_law - of_before, spread))
        if two_valued:
            inside = np.flatnonzero(place >= 0)
            then[inside, 1:], now[inside, 1:] = of_before[place[inside]], of_law[place[inside]]
    followed = FollowedRecords(before, tuple(moves))
    moved = replace(law, at_reference=followed, scaled=1.0, moved=False, values=before.values)
    return moved.with_values(then, now)


def _lost(residual: Floats, centre: Floats, scale: Floats, adds_weight: bool) -> Floats:
    """The clipped part of residuals (row, place, 1 + outcome)."""
    deviation = residual.copy()
    deviation[..., 0] -= centre[:, None]
    size = np.abs(deviation) / scale[:, None, :]
    # The norm of pairs: |a + b|/2 + |a − b|/2 is the larger of |a| and |b|.
    pairs = np.maximum(size[..., :1] / max(size.shape[-1] - 1, 1), size[..., 1:]) if adds_weight else size
    norm = pairs.sum(axis=-1)
    return np.asarray(deviation * (1.0 - 1.0 / np.maximum(norm, 1.0))[..., None])


def _ranges(cell: Codes, prediction: Prediction, mean: Floats, highest: Floats, lowest: Floats) -> Floats:
    """The largest |r| and |ρ| of any record of a cell, (cell, 1 + outcome)."""
    cells, subtracted = mean.shape[0], prediction.subtracted
    most = np.zeros(cells)
    np.maximum.at(most, cell, np.maximum(highest[0] - subtracted, subtracted))
    reach = highest[0] * np.maximum(highest[1:] - mean, mean - lowest[1:])
    far = np.zeros_like(mean)
    np.maximum.at(far, cell, subtracted[:, None] * np.abs(prediction.means[:, 1:] - mean[cell]))
    return np.column_stack([most, reach + far])


def _quantile(values: Floats, share: Floats, quantile: float, most: Floats) -> Floats:
    order = np.argsort(values, axis=1)
    reach = np.cumsum(np.take_along_axis(share, order, axis=1), axis=1)
    # The quantile of 1 is the largest residual of the sample, without values beyond.
    rank = quantile * reach[:, -1] if quantile < 1.0 else 0.998 * reach[:, -1]
    place = np.minimum((reach < rank[:, None]).sum(axis=1), values.shape[1] - 1)
    return np.asarray(np.clip(values[np.arange(len(values)), order[np.arange(len(values)), place]], -most, most))


def _descend(
    clipping: ClippedResiduals, noise: Floats | float, direct: Floats, ends: Floats, unknown: Floats
) -> tuple[Floats, Floats]:
    """Coordinate descent over limits for given centres: the risk, and the limits (cell, 1 + outcome)."""
    (most,) = quantiles(clipping.size, [0.9], axis=2)
    least = np.minimum(clipping.size, most[..., None]) ** 2
    shares = np.divide(clipping.second, clipping.size**2, out=np.zeros_like(least), where=clipping.size > 1e-150)
    typical = np.sqrt(np.einsum("kcs,kcs->ck", shares, least))
    low = np.maximum(0.3 * typical, 1e-9 * ends)
    high = np.maximum(ends * 1.0, low * 1.001)
    high[:, 0] += np.abs(clipping.centre)
    scale = np.minimum(3.0 * np.maximum(typical, low), high)
    ratios = clipping.ratios(scale)
    risk = clipping.risk(ratios, scale, noise, direct, unknown)
    groups = int(np.clip(CANDIDATES * len(ends) / AT_ONCE, 1, CANDIDATES))
    # The first sweep looks at limits of residuals' own sizes, the second at all up to the public range.
    for sweep in range(SWEEPS):
        for k in range(ends.shape[1]):
            top = high[:, k] if sweep else np.minimum(high[:, k], 40.0 * low[:, k])
            best = scale[:, k].copy()
            for parts in np.array_split(np.linspace(0.0, 1.0, CANDIDATES), groups):
                trial = np.repeat(scale[None], len(parts), axis=0)
                trial[..., k] = low[:, k] * (top / low[:, k]) ** parts[:, None]
                ratios[k] = clipping.size[k] / trial[..., k, None]
                values = clipping.risk(ratios, trial, noise, direct, unknown)
                least_of = values.argmin(axis=0)[None]
                value = np.take_along_axis(values, least_of, axis=0)[0]
                better = value < risk
                candidate_limit = np.take_along_axis(trial[..., k], least_of, axis=0)[0]
                risk, best = np.where(better, value, risk), np.where(better, candidate_limit, best)
            scale[:, k], ratios[k] = best, clipping.size[k] / best[:, None]
    return risk, scale
