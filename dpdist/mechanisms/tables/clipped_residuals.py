"""What limits clip of a cell's records, and what they leave: variances, parts of drift, and the predicted risk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.mechanisms.tables.residual_samples import MORE_UNEQUAL, OWN, POOLED, probabilities

COMMON_DRIFT = 0.05
"""Factor of the risk's term for drift that cells have in common: the logarithm of a sum's error in direct variances."""
MOST_HIDDEN = 0.9
"""Largest part of a count that is expected beyond limits."""


class ClippedShare(NamedTuple):
    """The part of residuals of a norm that is clipped, and by how much this part grows with the norm."""

    share: Floats
    growth: Floats

    @classmethod
    def at(cls, norm: Floats) -> ClippedShare:
        factor = 1.0 / np.maximum(norm, 1.0)
        growth = factor * factor
        growth *= norm > 1.0
        return cls(1.0 - factor, growth)


class ClippedResiduals(NamedTuple):
    """What limits clip of residuals that stand for cells' records: products of residuals with their shares.

    r is a record's weight less what is subtracted of it, ρ the same of an outcome's total about the cell's mean, and c the
    centre of r (`limits`). A place is one residual of the sample.
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
    """Means of their squares, (1 + outcome, cell)."""
    centre: Floats
    number: Floats
    """Expected numbers of records, (cell,)."""
    records: Floats
    """Numbers of reference records, with what the pool counts for, (cell,)."""
    relative: Floats
    """Shares times weights and totals over means that are not known, (1 + outcome, cell, place); without coordinates where
    they are known."""
    moving: Floats
    """Parts of places in a drift of all records, (1 + outcome, cell, place)."""
    moving_size: Floats
    """The same times `size`."""
    drifts: Floats
    """What drift of all records adds to the cell's sums, (1 + outcome, cell, size), by size (`common_drifts`)."""
    more_unequal_size: Floats
    more_unequal: Floats
    """`size` and `first` of records with more unequal weights; without coordinates where weights' inequality is known."""
    inequality_error: float
    """Standard error of weights' inequality."""

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
        more_unequal: tuple[Floats, Floats] | None = None,
        inequality_error: float = 0.0,
    ) -> ClippedResiduals:
        """`unknown_mean` (cell, 1 + outcome) are predicted means that may be far from the right ones; 0 for known ones.

        `more_unequal` are `sample` and `share` of records with more unequal weights.
        """
        deviation = np.moveaxis(sample, 2, 0).copy()
        deviation[0] -= centre[:, None]
        first = share * deviation
        products = share[:, : OWN + POOLED] * sample[:, : OWN + POOLED, 0]
        across = (first * sample[..., 0])[:, :, : OWN + POOLED] if adds_weight else np.zeros((0, *products.shape))
        weight = np.column_stack([products.sum(axis=1), (products * sample[:, : OWN + POOLED, 0]).sum(axis=1)])
        second = first * deviation
        sums = first.sum(axis=2), second.sum(axis=2)
        relative = np.zeros((0, *share.shape)) if unknown_mean is None else _relative(sample, share, unknown_mean)
        drifts = np.zeros((len(first), len(share), 0)) if drifts is None else drifts
        moving = np.zeros((len(first), *products.shape))
        if moves is not None:
            moving = share[:, : OWN + POOLED] * np.moveaxis(moves, 2, 0)
            moving = moving / np.maximum(moving.sum(axis=2, keepdims=True), 1e-300)
        more_unequal_size = of_unequal = np.zeros((0, len(share), 0))
        if more_unequal is not None:
            of_unequal = np.moveaxis(more_unequal[0], 2, 0).copy()
            of_unequal[0] -= centre[:, None]
            more_unequal_size, of_unequal = np.abs(of_unequal), more_unequal[1] * of_unequal
        size = np.abs(deviation)
        moving_size = moving * size[..., : OWN + POOLED]
        parts = first, second, across, weight, *sums, centre, number, records, relative, moving, moving_size, drifts
        return cls(size, *parts, more_unequal_size, of_unequal, inequality_error)

    @classmethod
    def chosen(cls, several: Sequence[ClippedResiduals], which: Ints) -> ClippedResiduals:
        """For every cell, the one of `several` that `which` (cell,) names."""

        def by_cell(parts: Sequence[Floats], axis: int) -> Floats:
            place = np.expand_dims(which, [k for k in range(parts[0].ndim + 1) if k != 1 + axis])
            return np.asarray(np.take_along_axis(np.stack(parts), place, axis=0)[0])

        axes, by_cells = (1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1), [each[:-1] for each in several]
        chosen = [by_cell(parts, axis) for *parts, axis in zip(*by_cells, axes, strict=True)]
        return cls._make([*chosen, several[0].inequality_error])

    def ratios(self, scale: Floats) -> list[Floats]:
        """Sizes of residuals in limits (cell, 1 + outcome): of every coordinate, (cell, place).

        Here and below, axes before these are those of several limits that are tried.
        """
        return [size / scale[..., k, None] for k, size in enumerate(self.size)]

    def norm(self, ratios: Sequence[Floats]) -> Floats:
        """Norms of contributions, (cell, place), as in `table_law`: above 1 where a record is clipped."""
        if not len(self.across):
            return reduce(np.add, ratios)
        part = ratios[0] / max(len(ratios) - 1, 1)
        return np.asarray(sum(np.maximum(part, ratio) for ratio in ratios[1:]))

    def slope(self, ratios: Sequence[Floats], clipped: ClippedShare) -> Floats:
        """The part of a change of a cell's mean weight, and mean outcomes, that is clipped, (cell, 1 + outcome): values
        change in proportion.
        """
        columns = list[Floats]()
        for ratio, relative in zip(ratios, self.relative, strict=True):
            columns.append(np.minimum(_dot(relative, clipped.share + ratio * clipped.growth), MOST_HIDDEN))
        return np.stack(columns, axis=-1)

    def hidden(self, clipped_share: Floats) -> Floats:
        """The part of weights that is clipped where numbers of records are secret, (cell,)."""
        body = OWN + POOLED
        part = _dot(self.first[0][:, :body], clipped_share[..., :body]) / np.maximum(self.weight[:, 0], 1e-300)
        return np.asarray(np.clip(part, 0.0, MOST_HIDDEN))

    def clipped_by_inequality(self, scale: Floats, clipped_share: Floats, both_sides: bool = False) -> Floats | float:
        """What is clipped more of a record where weights are more unequal, (cell, 1 + outcome): `TableLimits`.
        `clipped_share` is that of places.

        With `both_sides`, what is clipped of small weights adds to what is clipped of large ones, which it would balance.
        """
        if not len(self.more_unequal):
            return 0.0
        ratios = [size / scale[..., k, None] for k, size in enumerate(self.more_unequal_size)]
        of_unequal = 1.0 - 1.0 / np.maximum(self.norm(ratios), 1.0)
        columns = list[Floats]()
        for k, (now, then) in enumerate(zip(self.more_unequal, self.first, strict=True)):
            if both_sides and k == 0:
                now, then = np.abs(now), np.abs(then)
            columns.append((_dot(now, of_unequal) - _dot(then, clipped_share)) / MORE_UNEQUAL)
        return np.stack(columns, axis=-1)

    def variances(self, scale: Floats, places: ClippedShare, most: Floats | float = np.inf) -> tuple[Floats, Floats]:
        """Variances of what is clipped of cells' sums, and of what is kept, (cell, 1 + outcome) each, by what is clipped of
        places. No more is clipped of a drift than of the `most` that values of the public range add, (cell, 1 + outcome).
        """
        of_range = np.broadcast_to(most, (len(self.number), len(self.size)))
        clipped, columns = places.share, list[tuple[Floats, Floats]]()
        body, ahead, square = OWN + POOLED, self.number + self.number**2 / self.records, clipped * clipped
        for k, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            mean = _dot(first[:, :body], clipped[..., :body])
            inside, tail = _dot(second[:, :body], square[..., :body]), _dot(second[:, body:], square[..., body:])
            if len(self.across):
                # What is clipped goes with the count: only what is left of it is uncertain.
                part = mean / np.maximum(self.weight[:, 0], 1e-300)
                uncertain = inside - 2.0 * part * _dot(self.across[k], clipped[..., :body]) + part**2 * self.weight[:, 1]
            else:
                uncertain = inside - mean**2
            loss = np.maximum(uncertain, 0.0) * ahead + tail * self.number
            variance = self.square[k] - 2.0 * _dot(second, clipped) + inside + tail
            if k == 0:
                of_centre = self.centre + 2.0 * (self.mean[0] - mean - _dot(first[:, body:], clipped[..., body:]))
                variance = variance + self.centre * of_centre
            variance = np.maximum(variance, 0.0) * self.number
            if self.drifts[k].any():
                # Drift adds to all records at once: what limits leave of it, and what they clip.
                part = _dot(self.moving[k], clipped[..., :body])
                part = part + _dot(self.moving_size[k], places.growth[..., :body]) / scale[..., k]
                largest = (self.number * scale[..., k])[..., None]
                left = np.minimum((1.0 - part)[..., None] * self.drifts[k], largest)
                of_sizes, expected = probabilities(self.drifts.shape[2]), self.drifts[k]
                if k == 0 and len(self.across):
                    expected = expected * (1.0 - self.hidden(clipped))[..., None]
                within = of_range[:, k, None]
                lost = np.where(expected > within, np.maximum(within - left, 0.0), expected - left)
                loss, variance = loss + lost**2 @ of_sizes, variance + left**2 @ of_sizes
            columns.append((loss, variance))
        lost, kept_of = (np.stack(part, axis=-1) for part in zip(*columns, strict=True))
        return lost, kept_of

    def risk(
        self, ratios: Sequence[Floats], scale: Floats, noise: Floats | float, direct: Floats, unknown: Floats
    ) -> Floats:
        """Predicted squared errors of a cell's count and means, summed, in direct variances, (cell,), with a term by which
        sums also show drift that cells have in common.
        """
        clipped = ClippedShare.at(self.norm(ratios))
        loss, variance = self.variances(scale, clipped)
        if len(self.more_unequal):
            of_inequality = self.clipped_by_inequality(scale, clipped.share, both_sides=True)
            loss = loss + (self.inequality_error * self.number[:, None] * of_inequality) ** 2
        variance, added = variance + unknown, noise * scale**2
        if len(self.across):
            # A count is what is kept of it over the part that is expected to be kept.
            kept = np.ones_like(loss)
            kept[..., 0] = (1.0 - self.hidden(clipped.share)) ** 2
            loss, variance, added = loss / kept, variance / kept, added / kept
        if len(self.relative):
            response = (1.0 - self.slope(ratios, clipped)) ** 2
            loss, added = loss / response, added / response
        risk = variance * added / np.maximum(variance + added, 1e-300) + loss
        # Without it, limits of sums that add nothing to the prediction of their own cell would be arbitrary, and noise of
        # wide ones would hide a drift that many cells have in common.
        return np.asarray((risk / direct + COMMON_DRIFT * np.log1p((added + loss) / direct)).sum(axis=-1))


def clipped_change(ratio: Floats, norm: Floats) -> Floats:
    """The part of a change of residuals with this ratio to their limit that is clipped."""
    of_norm = ClippedShare.at(norm)
    return of_norm.share + ratio * of_norm.growth


def _relative(sample: Floats, share: Floats, means: Floats) -> Floats:
    """Shares times weights, and times totals of outcomes, over their means, (1 + outcome, cell, place)."""
    weight = np.maximum(sample[..., 0] + means[:, :1], 0.0)
    totals = [np.maximum(sample[..., k] + means[:, k, None] * weight, 0.0) for k in range(1, means.shape[1])]
    parts = [share * (part if k == 0 else part * (means[:, k, None] > 0.0)) for k, part in enumerate([weight, *totals])]
    return np.array([part / np.maximum(part.sum(axis=1, keepdims=True), 1e-300) for part in parts])


def _dot(left: Floats, right: Floats) -> Floats:
    return np.asarray(np.einsum("...s,...s->...", left, right))
