"""Residuals that stand for the records of a table's cells, by the reference: their sample, bounds, drift and tails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

from dpdist.core.records import Codes, Floats, Ints
from dpdist.mechanisms.tables.prediction import Prediction, powers_of_ratios

OWN, POOLED, BEYOND = 96, 32, 5
"""Numbers of residuals of a cell's own reference records, of all records, and beyond them, that stand for a cell."""
AT_ONCE = 256
"""Cells whose limits are computed together: what they need stays in a processor's own memory."""
POOL_WORTH = 30.0
"""Number of records that the residuals of all records count for in what a cell is expected to clip."""
WORTH_IN_CHOICE = 1_000.0
"""The same in the choice of a cell's limits and in their errors. Limits that follow a cell's few largest residuals clip
less of these than of others, and errors that follow them give the most weight to sums of which too little is expected to be
clipped.
"""
NEARLY_NONE = 1e-9
"""Smallest of the largest residuals, in what public bounds allow: a constant has none."""
TAIL = 4.0
"""Exponent of the power law beyond the largest residual of the reference."""
MORE_UNEQUAL = 0.5
"""Change of the logarithm of weights' exponent (`inequality`) that stands for more unequal weights."""
PLANNED_INEQUALITY = 0.15
"""Error of weights' inequality that limits of all records have room for: it is measured afterwards."""
PLANNED_DRIFT = 0.05
"""Relative drift of a cell's weights and outcomes that limits have room for."""
FAR_DRIFTS = {0.12: 0.018, 0.3: 1.8e-3, 0.9: 2e-4, 2.7: 2e-5}
"""Relative sizes of drift far beyond that, and their probabilities: three times as far is a tenth as likely."""


def quantile_ranks(start: Ints, count: Ints, number: int) -> tuple[Ints, Floats]:
    """Places within sorted runs of records, denser at their ends, (cell, number), and weights that sum to 1."""
    u = (np.arange(number) + 0.5) / number
    place = start[:, None] + np.floor(np.maximum(count, 1)[:, None] * (1.0 - (1.0 - u) ** 3)).astype(np.int64)
    share = 3.0 * (1.0 - u) ** 2
    return place, share / share.sum()


def residual_samples(
    cell: Codes,
    of_reference: Ints | Codes,
    size: Floats,
    mean: Floats,
    prediction: Prediction,
    drift: Floats | float,
    bounds: tuple[Floats, Floats],
    about: Prediction | None = None,
    together: bool = False,
    more_unequal: bool = False,
) -> Iterator[tuple[slice, Floats, Floats, Floats | None, Floats, Floats, Floats]]:
    """Residuals (r, ρ) that stand for a cell's records, (cell, place, 1 + outcome); those of them that are of all records,
    before errors of the prediction and drift move them; the first of more unequal weights, if they are asked for; shares
    (cell, place); the number of reference records, (cell,); and squares of moves by drift in relative ones, times what a
    relative drift of 1 adds, (cell, place, 1 + outcome), for some cells at a time.

    `of_reference` is the cell of every reference record, -1 for those in none. Values beyond public `bounds` of weight and
    outcomes are moved to them: residuals of a law of all cells may be far from a cell's, and a law may have moved. They
    are taken `about` another prediction, if it is given.
    """
    about = about or prediction
    cells, z, rank = int(cell.max()) + 1, prediction.residuals.values, prediction.residuals.by_size
    # Records by cell, those with small residuals first: a matrix by rows counts entries instead of comparing them.
    ranked = rank[of_reference[rank] >= 0]
    order = scipy.sparse.csr_array(
        (ranked, (of_reference[ranked], np.arange(len(ranked), dtype=np.int32))), shape=(cells, len(ranked))
    ).data
    count = np.bincount(of_reference[ranked], minlength=cells)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    pool_place, pool_share = quantile_ranks(np.zeros(1, dtype=np.int64), np.array([len(rank)]), POOLED)
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
    drifting = prediction.drifting
    moves = np.hypot(errors * prediction.spread, drift * drifting)
    for begin in range(0, cells, AT_ONCE):
        block = slice(begin, min(begin + AT_ONCE, cells))
        place, share = quantile_ranks(start[block], count[block], OWN)
        quantiles = (
            z[order[np.minimum(place, max(len(order) - 1, 0))]] if len(order) else np.zeros((*place.shape, z.shape[1]))
        )
        sample = np.concatenate([quantiles, np.broadcast_to(pool_z, (len(quantiles), *pool_z.shape))], axis=1)
        pooled = np.broadcast_to(WORTH_IN_CHOICE * pool_share, (len(quantiles), POOLED))
        shares = np.concatenate([count[block, None] * share, pooled], axis=1)
        quantile_rank = first[block, None] + steps * ends[block, None]
        base = by_cell[np.minimum(np.searchsorted(reach, quantile_rank, side="right"), len(cell) - 1)]
        means, spread = prediction.means[base], prediction.spread[base]
        if prediction.law is not None:
            means, spread = prediction.law.means[base], prediction.law.spread[base]
            shares[:, OWN:] *= prediction.law.worth(rank[pool_place[0]], base[:, OWN:])
        centre, alone = mean[block, None, :], sample * spread
        weight, total = _of_residuals(alone + sign * moves[base], means, centre, bounds)
        offset = about.subtracted[base]
        less = np.concatenate([offset[..., None], offset[..., None] * (about.means[base, 1:] - centre)], axis=-1)
        of_unequal = None
        if more_unequal:
            # Errors of the prediction and drift make no weights more unequal.
            as_predicted = np.maximum(means[..., 0] + alone[..., 0], 0.0)
            factor = powers_of_ratios(as_predicted, means[..., 0], MORE_UNEQUAL)
            factor *= (shares * as_predicted).sum(axis=1, keepdims=True) / (shares * as_predicted * factor).sum(
                axis=1, keepdims=True
            )
            values = within_bounds(weight * factor, total * factor[..., None], means[..., 0], centre, bounds)
            of_unequal = np.concatenate([values[0][..., None], values[1]], axis=-1) - less
        of_pool = slice(OWN, number)
        unmoved = _of_residuals(alone[:, of_pool], means[:, of_pool], centre, bounds)
        yield (
            block,
            np.concatenate([weight[..., None], total], axis=-1) - less,
            np.concatenate([unmoved[0][..., None], unmoved[1]], axis=-1) - less[:, of_pool],
            of_unequal,
            shares,
            np.asarray(count[block] + POOL_WORTH, dtype=np.float64),
            sign**2 * drifting[base],
        )


def _of_residuals(residual: Floats, means: Floats, centre: Floats, bounds: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Weights, and totals about `centre`, of residuals (cell, place, 1 + outcome)."""
    weight = np.maximum(means[..., 0] + residual[..., 0], 0.0)
    total = residual[..., 1:] + (means[..., 1:] - centre) * weight[..., None]
    return within_bounds(weight, total, means[..., 0], centre, bounds)


def within_bounds(
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


def with_tails(sample: Floats, share: Floats, records: int, ends: Floats) -> tuple[Floats, Floats]:
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
