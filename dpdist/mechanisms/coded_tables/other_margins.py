"""Margins of coded columns as another sample or other noise would have them, for standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.coded_tables.fitting import Marginal, agreed_margins
from dpdist.mechanisms.coded_tables.value_sums import ValueSums


def sampled_again(
    margins: Sequence[Floats], per_weight: float, records: int, draws: int, rng: np.random.Generator
) -> Floats:
    """Margins (draw, level) of all columns, one after another, under other samples without noise.

    `per_weight` is the variance of a sum of weights for each unit of the sum: a bound, or an estimate from a reference.
    How weights vary is unknown: they are taken to be 0 or `per_weight`, so that the number at `per_weight` is binomial.
    """
    total = margins[0].sum()
    effective, found = max(1, round(total / per_weight)), []
    for margin in margins:
        share = margin / total if total > 0.0 else np.full(len(margin), 1.0 / len(margin))
        found.append(rng.multinomial(effective, share / share.sum(), draws) / effective)
    below = max(0.0, 1.0 - effective / max(records, 1))
    spread = np.maximum(total * (1.0 + rng.standard_normal(draws) * np.sqrt(below / effective)), 0.0)
    return np.asarray(spread[:, None] * np.concatenate(found, axis=1))


def noised(
    sizes: Sequence[int],
    tables: Mapping[Marginal, Floats],
    scales: Mapping[Marginal, float],
    ends: tuple[float, float],
    beyond: Mapping[Marginal, tuple[Floats, Floats]],
    sums: Sequence[ValueSums],
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Margins (draw, level) of all columns, one after another, under other noise on fitted tables.

    `beyond` has the relative errors of counts from sampling and from drift beyond the weights' bound, by table; it is
    empty without a reference. The drift is one for all cells. `sums` are the sums of values that the fitted tables have.
    """
    found = [np.empty((draws, size)) for size in sizes]
    for draw in range(draws):
        noisy = {key: (table + rng.laplace(0.0, scales[key], table.shape))[None] for key, table in tables.items()}
        drift = rng.standard_normal() if beyond else 0.0
        for key, (of_cell, common) in beyond.items():
            noisy[key] = noisy[key] * (1.0 + of_cell * rng.standard_normal(of_cell.shape) + common * drift)
        told = [each._replace(values=each.values + rng.laplace(0.0, each.scale, each.values.shape)) for each in sums]
        for values, margin in zip(found, agreed_margins(sizes, noisy, scales, ends, told), strict=True):
            values[draw] = margin[0]
    return np.concatenate(found, axis=1)
