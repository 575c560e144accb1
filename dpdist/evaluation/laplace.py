"""Computes the Laplace-noised tables of the slides, a comparator without a guarantee: class `none` ([T]; METHODS §7).

The sensitivities are computed on the file itself (`privacy.noisy_tables`), and the noise is Laplace(Δ/ε). `laplace`
spends the whole ε in every cell and statistic, as the slides do; `laplace_composed` divides it by the number of figures
that one record enters; `laplace_consistent` then makes its counts and totals add up by least squares, at no cost, and its
means are their ratios where the table has both.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.core.table_cells import Cells
from dpdist.estimation.direct import Totals
from dpdist.job import Comparator, StatisticName
from dpdist.mechanisms.laplace_tables.sensitivity import consistent_table, sensitivities


def noised(
    estimates: Mapping[StatisticName, Floats],
    sums: Totals,
    cells: Cells,
    epsilon: float,
    how: Comparator,
    key: Key,
    table: str,
    figures: int,
) -> dict[StatisticName, Floats]:
    """Returns direct estimates with Laplace noise; `estimates` maps count, mean and total to (cell,).

    `figures` is the number of figures of the whole release that one record enters.
    """
    share = 1.0 if how == "laplace" else float(figures)
    scale = sensitivities(sums.sums.a, sums.weight, sums.product, cells)
    rng = key.generator(f"compare {'laplace_composed' if how == 'laplace_consistent' else how}", table)
    noisy = {
        name: values + rng.laplace(0.0, share * scale[name] / epsilon, len(values)) if scale[name] > 0 else values
        for name, values in estimates.items()
    }
    return consistent_table(noisy, cells) if how == "laplace_consistent" else noisy
