"""For `packages.package` and its shares: a table's figures as functions of base cells' sums, with direct errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from dpdist.core.records import Floats
from dpdist.packages.limits import Shape
from dpdist.packages.prior import Prior
from dpdist.packages.sums import MarginSums, Sums, published_sums
from dpdist.packages.workload import PackageTable


class TableFigures(NamedTuple):
    """Direct standard errors of a table's counts and means by the reference, then of its totals, (cell,) each, and these
    as functions of the sums. Means are linearised at the reference's. NaN stands in cells without a record.
    """

    direct: list[Floats]
    of_totals: list[Floats]
    sums: MarginSums
    totals: MarginSums


def figures(prior: Prior, table: PackageTable) -> TableFigures:
    """A table's figures: counts, and means and totals of every outcome, of all cells."""
    workload, levels = prior.workload, prior.levels
    rows, adding = workload.margins(table)
    fine = published_sums(adding, levels)
    n, z = workload.count, prior.mean
    count, square = rows @ fine[0].of(z), n * levels.weight**2

    def summed(values: Floats) -> Floats:
        return np.asarray(rows @ (adding @ values))

    second = np.array([_moments(shape) for shape in prior.limits.shapes])[prior.limits.group]
    direct, of_totals, means = [summed(square * second[:, 0, 0]) - count**2 / n.sum()], list[Floats](), list[Floats]()
    for k, (total_sums, outcome) in enumerate(zip(fine[1:], levels.outcomes, strict=True)):
        total, offset, moments = rows @ total_sums.of(z), outcome.mean, second[:, k].T
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = total / count
            of_square = summed(
                square * (moments[0] * offset**2 + 2.0 * offset * outcome.unit * moments[1] + outcome.unit**2 * moments[2])
            )
            of_first = summed(square * (moments[0] * offset + outcome.unit * moments[1]))
            of_mean = (of_square - 2.0 * mean * of_first + mean**2 * summed(square * moments[0])) / count**2
        direct.append(of_mean)
        of_totals.append(of_square - total**2 / n.sum())
        means.append(mean)
    occurs = np.where(summed(n) > 0, 1.0, np.nan)
    direct, of_totals = ([np.sqrt(np.maximum(values, 0.0)) * occurs for values in some] for some in (direct, of_totals))
    return TableFigures(direct, of_totals, *_functions(rows, fine, count, means))


def _functions(
    rows: scipy.sparse.csr_array, fine: Sequence[Sums], count: Floats, means: Sequence[Floats]
) -> tuple[MarginSums, MarginSums]:
    """A table's counts and means, and its totals, as functions of one set of fine sums."""
    none = scipy.sparse.csr_array(rows.shape)

    def stacked(blocks: Sequence[Sequence[scipy.sparse.csr_array]]) -> MarginSums:
        return MarginSums(scipy.sparse.csr_array(scipy.sparse.block_array(blocks, format="csr")), every)

    every, places = Sums.stacked(fine), range(1, len(fine))
    with np.errstate(divide="ignore", invalid="ignore"):
        scale, *slopes = (np.where(count > 0.0, factor, 0.0) for factor in (1.0 / count, *(mean / count for mean in means)))
    scaled, *moved = (
        scipy.sparse.csr_array(scipy.sparse.diags_array(of) @ rows) for of in (scale, *(-slope for slope in slopes))
    )
    of_means = [[one, *(scaled if k == place else none for k in places)] for place, one in enumerate(moved, start=1)]
    of_totals = [[none, *(rows if k == place else none for k in places)] for place in places]
    return stacked([[rows, *[none] * len(places)], *of_means]), stacked(of_totals)


def _moments(shape: Shape) -> Floats:
    """E e², E e²r and E e²r² of a group's law, (outcome, 3)."""
    e = shape.e
    return np.array([[(e**2).mean(), (e**2 * r).mean(), (e**2 * r**2).mean()] for r in shape.r])
