"""What limits clip where the law has moved since the reference, by what noisy sums show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.records import Codes, Floats, Ints, Singles, quotient_or
from dpdist.core.sharing import PiecesInTurn, share_out
from dpdist.mechanisms.tables.clipped_residuals import MOST_HIDDEN, clipped_change
from dpdist.mechanisms.tables.expected import ExpectedFile
from dpdist.mechanisms.tables.limits import TableLimits, predicted_means
from dpdist.mechanisms.tables.prediction import FollowedRecords, Prediction, RecordMoves
from dpdist.mechanisms.tables.residual_samples import AT_ONCE, POOLED, quantile_ranks
from dpdist.mechanisms.tables.table_law import TableLaw

FAR = 0.5
"""Relative change of a base cell's means beyond which sums show less of it than of their other cells."""
MOST_ALIKE = 5.0
"""Change in the logarithm of what is clipped beyond which a cell tells no more of its levels."""
MOST_MOVED = 0.25
"""Part of the noise by which what is clipped of a sum may differ from what its own law says."""


def followed_limits(
    file: ExpectedFile, limits: Sequence[TableLimits], calibrated: Prediction, law: Prediction
) -> tuple[TableLimits, ...]:
    """Limits of all measurements, with what they clip under this law; those of tables are about the `calibrated` one."""
    before, count, means, weight = file.prediction, file.count[:, None], file.prediction.means, law.means[:, :1]
    drift = count * np.column_stack([weight - means[:, :1], weight * (law.means[:, 1:] - means[:, 1:])])
    everywhere, followed = np.zeros(len(file.reference.weight), dtype=np.int32), list[TableLimits]()

    def piece(number: int) -> tuple[TableLimits, Codes, bool]:
        placed = file.placed_records(number - 1) if number else everywhere
        return replace(limits[number], unequal=None), placed, not number

    light = before.without_factors, law.without_factors, file.informed.without_factors, calibrated.without_factors
    clipping = _Following(*light, file.count, file.highest, file.lowest)
    for table, clipped in zip(limits, share_out(clipping, PiecesInTurn(piece, len(limits))), strict=True):
        sums = np.column_stack([drift[:, 0], (means[:, 1:] - table.mean[table.cell]) * drift[:, :1] + drift[:, 1:]])
        lacking = 0.0 if clipped.unequal is None else table.added(sums * (clipped.unequal - 1.0))
        followed.append(replace(clipped, cell=table.cell, expected=table.added(sums), lacking=lacking))
    return tuple(followed)


def steadied(loss: Floats, before: Floats, noise: Floats, levels: Ints, size: Floats) -> Floats:
    """Variances of what a table's limits clip, (cell, 1 + outcome), that follow noise less.

    Noise that raises a cell's law raises what is clipped, and so errors. Weighed by these, sums with noise above 0 count
    for less than those below, and totals of many cells are too low. Levels show changes of the variances `before` better
    than one cell does, so variances are moved towards an additive fit over `levels` (cell, column), by a part of `noise`
    (cell, 1 + outcome) at most: a cell of which the law now clips much more than of its levels keeps its error.
    """
    change = np.clip(np.log(np.maximum(quotient_or(1.0, loss, before), 1e-300)), -MOST_ALIKE, MOST_ALIKE)
    of_levels = np.broadcast_to(np.average(change, axis=0, weights=size), change.shape)
    for level in levels.T:
        left = [np.bincount(level, weights=size * part) for part in (change - of_levels).T]
        of_levels = of_levels + quotient_or(0.0, np.array(left), np.bincount(level, weights=size)).T[level]
    most = MOST_MOVED * noise
    moved = np.clip(before * np.exp(of_levels), np.maximum(loss - most, 0.0), loss + most)
    return np.asarray(np.where(before > 0.0, moved, loss))


@dataclass(frozen=True)
class _Following:
    """Work on limits, the table's cell of every reference record, and whether the table is that of all records: limits with
    what they clip where the law has moved.

    Residuals of all records are taken from the prediction `informed`, and in other tables from the `calibrated` one.
    """

    before: Prediction
    law: Prediction
    informed: Prediction
    calibrated: Prediction
    count: Floats
    highest: Floats
    lowest: Floats

    def __call__(self, piece: tuple[TableLimits, Codes, bool]) -> TableLimits:
        limits, placed, of_all = piece
        law, about = following(self.law, self.before, limits.cell, placed, self.count), self.calibrated
        about, ends = (self.informed if of_all else about), (self.highest, self.lowest)
        followed = TableLaw(limits.cell, placed, self.count, law, *ends, origin=about).under(limits)
        unequal = left_of_changes(followed, self.law, about, self.count) if self.far else None
        return replace(followed, unequal=unequal)

    @property
    def far(self) -> bool:
        """Whether a base cell has moved by more than `FAR`, relative to its mean, or mean and spread of an outcome."""
        moved = np.abs(self.law.means - self.calibrated.means)
        moved[:, 1:] *= self.calibrated.means[:, :1]
        reach = self.calibrated.drifting
        return bool((moved > FAR * reach)[reach > 0.0].any())


def left_of_changes(limits: TableLimits, law: Prediction, about: Prediction, size: Floats) -> Singles:
    """What limits leave of a change of a base cell over what they leave of one of its whole cell, (base cell, 1 + outcome).

    Records have the law of all residuals, and values change in proportion: as in `TableLaw`, nothing is clipped of changes
    of outcomes with gains and losses. Outcomes of two values have 1.
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
    of_base, of_whole = (quotient_or(1.0, part, most) for part, most in ((unclipped_values, all_values), of_cell))
    proportional = np.concatenate([[True], law.proportional & (law.by_values[1:] > 0.0)])
    # A ratio for every base cell in every table takes much memory, and needs no more digits.
    ratio = of_base / np.maximum(of_whole, 1.0 - MOST_HIDDEN)
    return np.asfortranarray(np.where(proportional, ratio, 1.0), dtype=np.float32)


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
            return quotient_or(1.0, now, then)

        of_law, of_before = (predicted_means(cells, size, of) for of in (law, before))
        spread = np.column_stack([factors(*both) for both in zip(law.spread.T, before.spread.T, strict=True)])
        moves.append(RecordMoves(place, factors(law.means[:, 0], before.means[:, 0]), of_law - of_before, spread))
        if two_valued:
            inside = np.flatnonzero(place >= 0)
            then[inside, 1:], now[inside, 1:] = of_before[place[inside]], of_law[place[inside]]
    followed = FollowedRecords(before, tuple(moves))
    moved = replace(law, at_reference=followed, scaled=1.0, moved=False, values=before.values)
    return moved.with_values(then, now)
