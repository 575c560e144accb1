"""Choice of the limits of a table's cells, by the law of their records.

c, L and H minimise the predicted error of a cell's count and means in direct standard errors, noise against what is
clipped, and let sums show drift that cells have in common. What no reference record shows lies beyond with the probability
of one record more, by a power law of exponent 4 up to the public range. So limits reach the range as the budget grows, and
the estimate is then the direct one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints, quantiles, quotient_or
from dpdist.mechanisms.tables.clipped_residuals import MOST_HIDDEN, ClippedResiduals, ClippedShare
from dpdist.mechanisms.tables.limits import (
    STEPS_WIDER,
    WIDER,
    TableLimits,
    direct_variances,
    even_parts,
    predicted_means,
    sampled_variances,
)
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.residual_samples import (
    AT_ONCE,
    OWN,
    PLANNED_DRIFT,
    POOL_WORTH,
    POOLED,
    common_drifts,
    residual_samples,
    with_tails,
    within_bounds,
)

RECORDS_AT_ONCE = 2**18
"""Reference records whose clipped parts are computed together: they take much memory."""
RECORDS_OF_GROUP, MOST_GROUPS, WORTH_OF_ALL = 500, 16, 1_000
"""Fewest reference records of a group of cells of about the same size, the largest number of groups, and the number of
records that all cells count for in what a group clips.
"""
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


class _Block(NamedTuple):
    """Some cells of a table, residuals that stand for their records, (cell, place, 1 + outcome), those of all records as
    they are without drift, shares (cell, place), and what else `ClippedResiduals.of` takes.
    """

    of: slice
    sample: Floats
    pooled: Floats
    share: Floats
    law: tuple[Any, ...]

    def about(self, centre: Floats) -> ClippedResiduals:
        return ClippedResiduals.of(self.sample, self.share, centre, *self.law)


_Choice: TypeAlias = Callable[[_Block], tuple[Floats, Floats]]
"""Centres (cell,) and limits (cell, 1 + outcome) of a block's cells."""


class _ByLaw(NamedTuple):
    """Reference records under a law: their cells, weights, and totals about the cell's mean (record, outcome), with r and
    what ρ subtracts of totals.
    """

    cell: Ints | Codes
    weight: Floats
    total: Floats
    r: Floats
    subtracted: Floats
    worth: Floats
    """Numbers of records that each stands for, (record,)."""

    def lost(self, total: Floats, centre: Floats, scale: Floats, adds_weight: bool) -> Floats:
        """What limits clip of these totals, (record, 1 + outcome)."""
        residual = np.column_stack([self.r, total - self.subtracted])[:, None]
        return _lost(residual, centre[self.cell], scale[self.cell], adds_weight)[:, 0]


@dataclass(frozen=True, eq=False)
class TableLaw:
    """A table's cells and the law of their records, of which limits are chosen or are known."""

    cell: Codes
    """The cell of every base cell."""
    of_reference: Ints | Codes
    """The cell of every reference record, -1 for those in none."""
    size: Floats
    """Numbers of records of base cells."""
    prediction: Prediction
    highest: Floats
    """Public bounds of weight and outcomes, (1 + outcome,)."""
    lowest: Floats
    drift: Floats | float = PLANNED_DRIFT
    together: bool = False
    """True if all records drift together: what limits clip of their drift then adds up (`common_drifts`)."""
    unknown: Floats | None = None
    """Variances of the prediction's errors in sums, (cell, 1 + outcome), if no reference tells cells apart. A weight is
    then larger in proportion to its cell's mean, and `hidden` is the part of such a change that is clipped."""
    inequality_error: float = 0.0
    """Standard error of weights' inequality (`inequality`): limits have room for it."""
    origin: Prediction | None = None
    """The prediction about which residuals are clipped, where it is not that of the law; `slope` is then that of a change
    of the law."""

    @property
    def cells(self) -> int:
        return int(self.cell.max()) + 1

    @cached_property
    def number(self) -> Floats:
        """Numbers of records, (cell,). A cell that is expected to have less than a record matters only if it has one."""
        number = np.bincount(self.cell, weights=self.size, minlength=self.cells)
        return np.maximum(number, float(self.prediction.adds_weight))

    @cached_property
    def mean(self) -> Floats:
        return predicted_means(self.cell, self.size, self.prediction)

    @cached_property
    def _direct(self) -> Floats:
        """Variances of direct sums, (cell, 1 + outcome)."""
        least = 1e-12 * (self.number * self.prediction.means[:, 0].max())[:, None] ** 2
        return np.asarray(np.maximum(direct_variances(self._adding, self.size, self.mean, self.prediction), least))

    @cached_property
    def _adding(self) -> scipy.sparse.csr_array:
        base = np.arange(len(self.cell))
        return scipy.sparse.csr_array((np.ones(len(base)), (self.cell, base)), shape=(self.cells, len(base)))

    def narrow_limits(self, noise: Floats | float) -> TableLimits:
        """Limits that counts of records beyond them will widen, so that nothing is clipped; `noise` is that of `limits`."""
        ends = self._ranges(self.mean)
        # Steps of counts reach the ends of the public range from here, even where records are expected to be alike.
        none, least = np.zeros_like(ends), ends / WIDER ** (STEPS_WIDER - 1)
        scale = np.minimum(ends, np.maximum(NARROW * np.sqrt(self._direct / noise), least))
        parts = np.zeros(self.cells), scale[:, 0], scale[:, 1:], none, none, none, none
        return TableLimits(self.cell, self.number, self.mean, *parts, widest=ends * even_parts(self.prediction))

    def limits(self, noise: Floats | float) -> TableLimits:
        """Limits of the least risk under noise of this variance on sums of contributions."""
        ends, direct = self._ranges(self.mean), self._direct
        # Those that clip no record at the ends of all coordinates.
        widest = ends * even_parts(self.prediction)
        # Errors of counts are judged in direct ones that have those of numbers of records.
        of_counts = np.maximum(sampled_variances(self._adding, self.size, self.prediction), direct[:, 0])
        unit = np.column_stack([of_counts, direct[:, 1:]])
        centres = () if self.prediction.adds_weight else CENTRES
        unknown = np.zeros_like(ends) if self.unknown is None else self.unknown

        def least_risk(block: _Block) -> tuple[Floats, Floats]:
            residual, of = block.sample[..., 0], block.of
            start = [np.zeros(len(residual)), *(_quantile(residual, block.share, level, ends[of, 0]) for level in centres)]
            risks = noise, unit[of], widest[of], self.cells > MOST_WITH_ALL_CENTRES, unknown[of]
            centre, scale = _best([block.about(centre) for centre in start], *risks)
            # A limit whose noise is far below the direct error costs nothing, and hides less.
            return centre, np.maximum(scale, np.minimum(widest[of], NEGLIGIBLE * np.sqrt(direct[of] / noise)))

        return self._with_clipped(self.mean, ends, least_risk)

    def under(self, limits: TableLimits) -> TableLimits:
        """Known limits with what they clip under this law."""
        centre, scale = limits.centre, limits.scale

        def known(block: _Block) -> tuple[Floats, Floats]:
            return centre[block.of], scale[block.of]

        of_law = self._with_clipped(limits.mean, self._ranges(limits.mean), known)
        if self.origin is None:
            return of_law
        return replace(limits, beyond=of_law.beyond, loss=of_law.loss, slope=of_law.slope)

    def _with_clipped(self, mean: Floats, ends: Floats, choice: _Choice) -> TableLimits:
        """Chosen limits with what they clip of residuals."""
        centre, scale = np.zeros(self.cells), np.zeros_like(ends)
        loss, slope, pool, by_inequality = (np.zeros_like(ends) for _ in range(4))
        adds_weight, of_pool = self.prediction.adds_weight, slice(OWN, OWN + POOLED)
        for block in self._blocks(mean, ends):
            of = block.of
            centre[of], scale[of] = choice(block)
            clipping = block.about(centre[of])
            ratios = clipping.ratios(scale[of])
            clipped = ClippedShare.at(clipping.norm(ratios))
            loss[of] = clipping.variances(scale[of], clipped, self.number[of, None] * ends[of])[0]
            if len(clipping.relative):
                slope[of] = clipping.slope(ratios, clipped)
            pooled, worth = _lost(block.pooled, centre[of], scale[of], adds_weight), block.share[:, of_pool]
            pool[of] = np.einsum("cs,csk->ck", worth, pooled) / worth.sum(axis=1, keepdims=True)
            by_inequality[of] = self.number[of, None] * clipping.clipped_by_inequality(scale[of], clipped.share)
        beyond, of_probability = self._beyond(mean, centre, scale, pool)
        if self.origin is not None:
            for k, part in of_probability.items():
                slope[:, 1 + k] = np.clip(part, 0.0, MOST_HIDDEN)
        # A value within the public range loses no more than one at its end.
        measured = slice(int(self.prediction.weights_known), None)
        most = _norm(ends[:, measured] / scale[:, measured], adds_weight)
        slope = np.minimum(slope, 1.0 - 1.0 / np.maximum(most, 1.0)[:, None])
        hidden = np.zeros_like(beyond)
        if self.unknown is not None:
            hidden[:, 0] = slope[:, 0]
        if adds_weight and self.origin is None:
            count = np.bincount(self.cell, weights=self.size)
            weight = np.bincount(self.cell, weights=self.size * self.prediction.means[:, 0]) / count
            beyond[:, 0] = np.minimum(beyond[:, 0], MOST_HIDDEN * weight)
            hidden = beyond / weight[:, None]
        scales = scale[:, 0], scale[:, 1:]
        parts = mean, centre, *scales, beyond, loss, hidden, slope
        return TableLimits(self.cell, self.number, *parts, clipped_by_inequality=by_inequality)

    def _blocks(self, mean: Floats, ends: Floats) -> Iterator[_Block]:
        cell, size, prediction = self.cell, self.size, self.prediction
        unknown_mean = None
        if self.unknown is not None or self.origin is not None:
            weight = (self.origin or prediction).means[:, 0]
            base_weight = np.bincount(cell, weights=size * weight, minlength=self.cells) / self.number
            unknown_mean = np.column_stack([np.maximum(base_weight, 1e-300), np.where(prediction.proportional, mean, 0.0)])
        # Where a cell's records hardly differ, sums have drift alone to show.
        drifts = np.array(
            [
                np.column_stack([np.bincount(cell, weights=size * part, minlength=self.cells) for part in drift_of.T])
                for drift_of in common_drifts(self.drift, prediction, self.together)
            ]
        ).T
        bounds = self.lowest, self.highest
        samples = residual_samples(
            cell,
            self.of_reference,
            size,
            mean,
            prediction,
            self.drift,
            bounds,
            self.origin,
            self.together,
            self.inequality_error > 0.0,
        )
        number = len(prediction.residuals.values)
        for of, sample, pooled, of_unequal, share, records, moves in samples:
            share = share / share.sum(axis=1, keepdims=True)
            more_unequal = None if of_unequal is None else with_tails(of_unequal, share, number, ends[of])
            sample, share = with_tails(sample, share, number, ends[of])
            unknown_means = None if unknown_mean is None else unknown_mean[of]
            law = self.number[of], records, prediction.adds_weight, unknown_means, drifts[:, of], moves
            yield _Block(of, sample, pooled, share, (*law, more_unequal, self.inequality_error))

    def _ranges(self, mean: Floats) -> Floats:
        """The largest |r| and |ρ| of any record of a cell, (cell, 1 + outcome)."""
        about, highest, lowest = self.origin or self.prediction, self.highest, self.lowest
        subtracted, most, far = about.subtracted, np.zeros(self.cells), np.zeros_like(mean)
        np.maximum.at(most, self.cell, np.maximum(highest[0] - subtracted, subtracted))
        reach = highest[0] * np.maximum(highest[1:] - mean, mean - lowest[1:])
        np.maximum.at(far, self.cell, subtracted[:, None] * np.abs(about.means[:, 1:] - mean[self.cell]))
        return np.column_stack([most, reach + far])

    def _beyond(self, mean: Floats, centre: Floats, scale: Floats, pool: Floats) -> tuple[Floats, dict[int, Floats]]:
        """Expected clipped part of a record, of the cell's reference records and of the pool's, (cell, 1 + outcome); and
        the part of a change of probability that is clipped, (cell,), by outcome of two values.

        If no reference tells cells apart, no record is in a cell. Values of the law count as records of all base cells in
        turn, and cells have the pool's part.
        """
        prediction, alike, adds_weight = self.prediction, self.unknown is not None, self.prediction.adds_weight
        records = np.arange(len(prediction.residuals.values)) if alike else np.flatnonzero(self.of_reference >= 0)
        number, squares, sums = np.zeros(self.cells), np.zeros(self.cells), np.zeros_like(scale)
        changes = dict[int, tuple[Floats, Floats]]()

        def added(cell: Ints | Codes, values: Floats) -> Floats:
            return np.bincount(cell, weights=values, minlength=self.cells).astype(np.float64)

        for inside in np.array_split(records, max(-(-len(records) // RECORDS_AT_ONCE), 1)):
            of_law = self._of_records(inside, mean, len(records))
            cell, likely_total = of_law.cell, of_law.total.copy()
            two_valued = list(_of_two_values(prediction, inside, of_law.weight, mean[cell]))
            for k, likely, _, _ in two_valued:
                likely_total[:, k] = likely
            clipped_part = of_likely = of_law.lost(likely_total, centre, scale, adds_weight)
            for k, likely, other, probability in two_valued:
                instead = likely_total.copy()
                instead[:, k] = other
                change, rise = of_law.lost(instead, centre, scale, adds_weight) - of_likely, other - likely
                clipped_part = clipped_part + probability[:, None] * change
                lost_of, all_of = changes.get(k, (0.0, 0.0))
                lost_of = lost_of + added(cell, of_law.worth * np.sign(rise) * change[:, 1 + k])
                all_of = all_of + added(cell, of_law.worth * np.abs(rise))
                changes[k] = lost_of, all_of
            sums += np.column_stack([added(cell, of_law.worth * part) for part in clipped_part.T])
            number, squares = number + added(cell, of_law.worth), squares + added(cell, of_law.worth**2)
        # As many records of equal worth tell as much.
        effective = quotient_or(0.0, number**2, squares)
        clipped_of_change, per_record = dict[int, Floats](), quotient_or(0.0, effective, number)
        for k, (lost_of, all_of) in changes.items():
            pooled = POOL_WORTH * np.array([lost_of.sum(), all_of.sum()]) / max(float(number.sum()), 1e-300)
            clipped_of_change[k] = (per_record * lost_of + pooled[0]) / np.maximum(per_record * all_of + pooled[1], 1e-300)
        # The pool's parts are moved so that all reference records together have what they clip, and those of cells of about
        # the same size, which limits clip alike: by one multiple of limits, where there is a part, and by a factor where
        # sums without a centre clip nothing below 0.
        worth = np.ones(self.cells) if alike else POOL_WORTH / (effective + POOL_WORTH)
        by = scale * (pool != 0.0)
        by[:, : int(adds_weight)] = pool[:, : int(adds_weight)]
        for group, part in _groups_by_size(self.number, number):
            gaps = worth[:, None] * (sums - number[:, None] * pool) * (by != 0.0), (worth * number)[:, None] * by
            short, moved = (np.column_stack([np.bincount(group, of) for of in gap.T]) for gap in gaps)
            pool = pool + part * np.divide(short, moved, out=np.zeros_like(moved), where=moved != 0.0)[group] * by
        if alike:
            return pool, clipped_of_change
        mean_part = quotient_or(0.0, sums, np.broadcast_to(number[:, None], sums.shape))
        return np.asarray(mean_part + worth[:, None] * (pool - mean_part)), clipped_of_change

    def _of_records(self, inside: Ints, mean: Floats, records: int) -> _ByLaw:
        """Some of so many reference records under the law, with totals about cells' means (cell, outcome)."""
        prediction, about = self.prediction, self.origin or self.prediction
        cell: Ints | Codes
        worth = np.ones(len(inside))
        if self.unknown is not None:
            reach = np.cumsum(self.size)
            base = np.searchsorted(reach, (inside + 0.5) / max(records, 1) * reach[-1], side="right")
            base = np.minimum(base, len(self.size) - 1)
            cell, of_about = self.cell[base], about.means[base]
            means, spread = prediction.means[base], prediction.spread[base]
            if prediction.law is not None:
                means, spread = prediction.law.means[base], prediction.law.spread[base]
                worth = prediction.law.worth(inside, base)
        else:
            cell, (means, spread) = self.of_reference[inside], prediction.of_records(inside).transpose(1, 0, 2)
            of_about = about.of_records(inside)[:, 0]
            worth = worth if prediction.worth is None else prediction.worth[inside]
        residual = prediction.residuals.values[inside] * spread
        weight = np.maximum(means[:, 0] + residual[:, 0], 0.0)
        total = residual[:, 1:] + (means[:, 1:] - mean[cell]) * weight[:, None]
        weight, total = within_bounds(weight, total, means[:, 0], mean[cell], (self.lowest, self.highest))
        offset = (1.0 - about.adds_weight) * of_about[:, 0]
        return _ByLaw(cell, weight, total, weight - offset, offset[:, None] * (of_about[:, 1:] - mean[cell]), worth)


def _groups_by_size(size: Floats, reference: Floats) -> Iterator[tuple[Ints, float]]:
    """The group of every cell, (cell,), and the part of a group's own move that is made: first all cells as one group, then
    groups of about the same `size` with about the same number of `reference` records each.
    """
    yield np.zeros(len(size), dtype=np.int64), 1.0
    order = np.argsort(size, kind="stable")
    reach = np.cumsum(reference[order])
    groups = int(np.clip(reach[-1] / RECORDS_OF_GROUP, 1, MOST_GROUPS))
    group = np.empty(len(size), dtype=np.int64)
    group[order] = np.minimum((reach - reference[order] / 2.0) * groups / max(reach[-1], 1.0), groups - 1)
    if groups > 1:
        yield group, float(reach[-1] / (reach[-1] + groups * WORTH_OF_ALL))


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


def _lost(residual: Floats, centre: Floats, scale: Floats, adds_weight: bool) -> Floats:
    """The clipped part of residuals (row, place, 1 + outcome)."""
    deviation = residual.copy()
    deviation[..., 0] -= centre[:, None]
    norm = _norm(np.abs(deviation) / scale[:, None, :], adds_weight)
    return np.asarray(deviation * (1.0 - 1.0 / np.maximum(norm, 1.0))[..., None])


def _norm(size: Floats, adds_weight: bool) -> Floats:
    """Norms of contributions from sizes of their coordinates, (…, 1 + outcome)."""
    # The norm of pairs: |a + b|/2 + |a − b|/2 is the larger of |a| and |b|.
    pairs = np.maximum(size[..., :1] / max(size.shape[-1] - 1, 1), size[..., 1:]) if adds_weight else size
    return np.asarray(pairs.sum(axis=-1))


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
    # No record that is as predicted is clipped: sums would show nothing of most records.
    low[:, 0] = np.maximum(low[:, 0], np.abs(clipping.centre))
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
