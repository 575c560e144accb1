"""Laplace-noised tables of the slides, for comparison only: class `none` ([T]; METHODS §7).

The sensitivities are those of the file at hand: count max w − min w, total max wy − min wy, mean (max wy − min
wy)/(Σw − (max w − min w)), the largest over cells; noise Laplace(Δ/ε). `laplace` spends the whole ε in every cell and
statistic, as the slides do; `laplace_composed` divides it by the number of figures that one record enters;
`laplace_consistent` then makes its counts and totals add up by least squares, at no cost, and its means are their
ratios where the table has both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpdist.cells import Cells
from dpdist.job import Comparator
from dpdist.keys import Key
from dpdist.records import Floats
from dpdist.survey.direct import Totals


def sensitivities(found: Totals, cells: Cells) -> dict[str, float]:
    """Local sensitivities of a count, a mean and a total."""
    low_w, high_w = _extremes(found.weight, cells)
    low_p, high_p = _extremes(found.product, cells)
    occupied = high_w >= low_w
    weight_range = (high_w - low_w)[occupied]
    total = (cells.membership @ found.sums.a)[occupied]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (high_p - low_p)[occupied] / (total - weight_range)
    return {
        "count": float(weight_range.max()),
        "mean": float(mean[np.isfinite(mean)].max(initial=0.0)),
        "total": float((high_p - low_p)[occupied].max()),
    }


def noised(
    estimates: Mapping[str, Floats],
    found: Totals,
    cells: Cells,
    epsilon: float,
    how: Comparator,
    key: Key,
    table: str,
    figures: int,
) -> dict[str, Floats]:
    """Direct estimates with Laplace noise; `estimates` maps count, mean and total to (cell,).

    `figures` is the number of figures of the whole release that one record enters.
    """
    share = 1.0 if how == "laplace" else float(figures)
    scale = sensitivities(found, cells)
    rng = key.generator(f"compare {'laplace_composed' if how == 'laplace_consistent' else how}", table)
    noisy = {
        name: values + rng.laplace(0.0, share * scale[name] / epsilon, len(values)) if scale[name] > 0 else values
        for name, values in estimates.items()
    }
    if how != "laplace_consistent":
        return noisy
    noisy |= {name: consistent(noisy[name], cells) for name in ("count", "total") if name in noisy}
    if {"count", "mean", "total"} <= set(noisy):
        with np.errstate(divide="ignore", invalid="ignore"):
            noisy["mean"] = noisy["total"] / noisy["count"]
    return noisy


def consistent(noisy: Floats, cells: Cells) -> Floats:
    """The additive table nearest to a noisy one in least squares, (cell,): its margins are sums of its cells.

    All cells have noise of one variance, so this is the best linear unbiased estimate (Hay, Rastogi, Miklau & Suciu 2010).
    """
    finest = np.unique(cells.membership.toarray(), axis=1)
    return np.asarray(finest @ (np.linalg.pinv(finest) @ noisy))


def _extremes(per_row: tuple[Floats, Floats], cells: Cells) -> tuple[Floats, Floats]:
    coo = cells.membership.tocoo()
    low, high = np.full(len(cells), np.inf), np.full(len(cells), -np.inf)
    np.minimum.at(low, coo.row, per_row[0][coo.col])
    np.maximum.at(high, coo.row, per_row[1][coo.col])
    return low, high
