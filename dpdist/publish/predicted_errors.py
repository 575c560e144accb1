"""For `publish.statement`: names published figures that may be far from direct ones, from the release alone.

A predicted error is the error by noise, reference and mechanism over the sample's own, the direct standard error.
Figures with a ratio above FAR are named: at 2, one in twenty is off by over 4 direct standard errors, if errors are
normal.

Where a reference completes cells, the sample's own error D is that of as many records like the released points. An
estimate follows the part k of a cell's own figure, and the common figure for the rest. Its covariance with the direct
figure is so kD. The other error is T + D − 2kD, and at least the noise. Cells of one noisy sum follow the sum, of which a
figure has its share only.

Noisy sums do not show how records vary within a cell. Without points, the direct error is at least that of as many
independent records of equal weight, whose outcomes vary by as much as their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from dpdist.core.cautions import Caution
from dpdist.core.records import Floats, Ints
from dpdist.core.table_cells import Cells, counted_and_named
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import Table
from dpdist.models.protocol import Unbiased
from dpdist.publish.design_effects import plain_effects
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import NOISED, VarianceParts, cell_estimates, composition, variance_parts
from dpdist.publish.tables import Grounds

FAR = 2.0
"""Predicted error, in direct standard errors, above which a figure is named."""
FAR_NAMED = 4.0
"""Distance from the direct figure, in its standard errors, of which a statement warns."""
MAY_BE_OFF = f"figures may be more than {FAR_NAMED:g} direct standard errors off"
EXACT = 1e-6
"""Relative error up to which a figure counts as exact, or as fixed by the design."""
CLEAR, FEW = 10.0, 4
"""A direct variance counts if it is so many times what noise adds, by so many draws; else the design may fix the figure."""
MOST = 99.0
"""Ratio that also stands for all larger ones."""
IN_WORDS = (
    f"These published figures have a predicted error of more than {FAR:g} direct standard errors (ratio given), and so may "
    f"be more than {FAR_NAMED:g} direct standard errors off. The prediction uses this release only, margins included."
)

Ratios = Mapping[str, Mapping[str, Mapping[tuple[str, ...], float]]]
"""Predicted errors above FAR, by table, statistic and cell; a cell by its levels."""


def beyond_direct(released: ReleasedObject, grounds: Mapping[str, Grounds]) -> Ratios:
    """Predicted errors above FAR of published counts, means and totals; other statistics are not predicted."""
    by_table: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}
    within = within_cells(released)
    for table in released.job.tables:
        cells, by_outcome = released.cells(table), dict[str, list[Floats]]()
        for statistic in table.statistics:
            outcome = statistic.variable or released.job.outcomes[0]
            if not statistic.plain or outcome not in grounds:
                continue
            if outcome not in by_outcome:
                by_outcome[outcome] = predicted(released, table, cells, grounds[outcome], within.get(outcome))
            ratios = by_outcome[outcome][STATISTICS.index(statistic.name)]
            far = {cells.labels[k]: min(round(float(ratios[k]), 2), MOST) for k in np.flatnonzero(ratios > FAR)}
            if far:
                by_table.setdefault(table.name, {})[statistic.text] = far
    return by_table


def predicted(
    released: ReleasedObject, table: Table, cells: Cells, grounds: Grounds, within: Within | None = None
) -> list[Floats]:
    """Predicted errors of counts, means and totals in direct standard errors, (cell,) each; NaN if unknown.

    `within` is the outcome's entry of `within_cells`, if it has one.
    """
    n, unknown = released.frame.count.astype(float), [np.full(len(cells), np.nan)] * len(STATISTICS)
    if grounds.noised is not None:
        if grounds.noised.again is None:
            return unknown
        values = grounds.noised.points(table)
        parts = grounds.noised.variance_parts(table, cells)
    elif grounds.expected is None or grounds.spread is None:
        return unknown
    else:
        weight, product = (np.array([pair[i] for pair in grounds.expected]) for i in range(2))
        values = [drawn.mean(axis=0) for drawn in cell_estimates(cells, n, weight, product)]
        parts = variance_parts(released, cells, grounds.expected, grounds.spread, grounds.outcome)
        if within is not None:
            both = _direct_variances(released, cells, grounds, values, within)
            parts = [
                VarianceParts(direct, np.fmax(part.total - direct + 2.0 * left, part.other))
                for (direct, left), part in zip(both, parts, strict=True)
            ]
    varying = grounds.noised is None and not isinstance(released.model(0), Unbiased)
    records, errors = cells.membership @ n, []
    with np.errstate(divide="ignore", invalid="ignore"):
        for value, part in zip(values, parts, strict=True):
            direct = part.sampling if varying else np.fmax(part.sampling, value**2 / records)
            least = (EXACT * value) ** 2
            # A count that public totals fix errs by rounding; one that the design fixes has no direct error.
            predictable = (records > 1) & (part.other > least) & (direct > least)
            errors.append(np.where(predictable, np.sqrt(part.other / direct), np.nan))
    return errors


class Within(NamedTuple):
    """Released points give var(w), cov(w, wy) and var(wy) of a record of every frame row, (3, row), for an outcome.

    `followed` is the part of them that estimates follow, and `sum` the number of each row's noisy sum, (row,).
    """

    moments: Floats
    followed: Floats
    sum: Ints


def within_cells(released: ReleasedObject) -> dict[str, Within]:
    """How records vary within cells, by outcome. Empty where no reference completes cells, and where public totals rake
    figures: points do not show what totals fix.
    """
    strata, size = released.completed_strata, len(released.frame)
    if len(strata) < len(released.frame.stratum_labels) or released.job.rake:
        return {}
    sums = np.empty(size, dtype=np.int64)
    within = {outcome: Within(np.empty((3, size)), np.empty((3, size)), sums) for outcome in released.job.outcomes}
    first = 0
    for stratum in strata:
        by_outcome, _ = stratum.model.points_of_cells(released, stratum.number)
        rows, pattern = released.frame.rows_of(stratum.number), stratum.model.design.pattern
        kept = stratum.facts.kept_shares
        sums[rows] = first + stratum.facts.noisy_sum[pattern]
        first = int(sums[rows].max()) + 1
        for number, (outcome, of_cells) in enumerate(zip(released.job.outcomes, by_outcome, strict=True), start=1):
            crossed = np.array([np.cov(pairs[:, 0], pairs.prod(axis=1), bias=True) for pairs in of_cells])
            moments = crossed[:, [0, 0, 1], [0, 1, 1]].T
            mean = np.array([np.average(pairs[:, 1], weights=pairs[:, 0]) for pairs in of_cells])
            within[outcome].moments[:, rows] = moments[:, pattern]
            within[outcome].followed[:, rows] = _followed(moments, mean, kept[:, 0], kept[:, number])[:, pattern]
    return within


def _followed(moments: Floats, mean: Floats, of_weight: Floats, of_outcome: Floats) -> Floats:
    """The moments (3, cell) with these parts of the variances of w and of w(y − mean), (cell,) each."""
    square, both, product = moments
    about, residual = both - mean * square, product - 2.0 * mean * both + mean**2 * square
    square, about, residual = of_weight * square, 0.5 * (of_weight + of_outcome) * about, of_outcome * residual
    return np.array([square, about + mean * square, residual + 2.0 * mean * about + mean**2 * square])


def _direct_variances(
    released: ReleasedObject, cells: Cells, grounds: Grounds, values: Sequence[Floats], within: Within
) -> list[tuple[Floats, Floats]]:
    """Sampling variances of counts, means and totals of records like the points, and the parts that are not followed.

    All are (cell,). Estimates have the direct figures' numbers of records, so these are followed.
    """
    assert grounds.expected is not None
    effects = plain_effects(released.design_effects, cells, released.job.outcomes[grounds.outcome])
    composed = composition(released, cells, grounds.expected)
    n, (count, mean, _) = released.frame.count.astype(float), values
    row = np.arange(len(n))

    def by_sum(values_of_rows: Floats) -> scipy.sparse.csr_array:
        in_sums = scipy.sparse.csr_array((values_of_rows, (row, within.sum)))
        return scipy.sparse.csr_array(cells.membership @ in_sums)

    counted = n * np.mean([weight for weight, _ in grounds.expected], axis=0)
    of_sum = np.maximum(np.bincount(within.sum, counted), np.finfo(float).tiny)
    shares = by_sum(counted / of_sum[within.sum])
    parts = (
        [cells.membership @ (n * moment) for moment in within.moments],
        [shares.multiply(by_sum(n * moment)).sum(axis=1) for moment in within.followed],
    )
    variances = []
    for of_weight, both, of_product in parts:
        with np.errstate(divide="ignore", invalid="ignore"):
            of_mean = (of_product - 2.0 * mean * both + mean**2 * of_weight) / count**2
        variances.append((of_weight, of_mean, of_product))
    noised = _noised_compositions(released, cells, grounds)
    return [
        (effect * np.where(part.variance + whole > CLEAR * caused, part.variance + whole, 0.0), effect * (whole - followed))
        for effect, part, caused, whole, followed in zip(effects, composed, noised, *variances, strict=True)
    ]


def _noised_compositions(released: ReleasedObject, cells: Cells, grounds: Grounds) -> Sequence[Floats]:
    """What noise on mean weights and outcomes adds to variances between rows, of counts, means and totals, (cell,) each."""
    assert grounds.expected is not None
    assert grounds.spread is not None
    noised, still = grounds.spread.laws[NOISED], composition(released, cells, grounds.expected)
    pairs = zip(noised.weight[:FEW], noised.product[:FEW], strict=True)
    drawn = [composition(released, cells, [pair]) for pair in pairs]
    return [
        np.nan_to_num(np.mean([one[k].variance - figure.variance for one in drawn], axis=0))
        for k, figure in enumerate(still)
    ]


def entry(ratios: Ratios) -> dict[str, Any]:
    """The statement's entry; empty if no figure is named."""
    if not ratios:
        return {}
    tables = {
        table: {
            statistic: {", ".join(label) or "Total": ratio for label, ratio in cells.items()}
            for statistic, cells in statistics.items()
        }
        for table, statistics in ratios.items()
    }
    return {"beyond_direct": {"in_words": IN_WORDS, "tables": tables}}


def cautions(ratios: Ratios) -> Iterator[Caution]:
    """Yields a caution for every table and statistic with such figures, with numbers of margins and of base cells."""
    for table, statistics in ratios.items():
        for statistic, cells in statistics.items():
            worst_first = sorted(cells, key=cells.__getitem__, reverse=True)
            facts = {"table": table, "statistic": statistic, "cells": counted_and_named(worst_first)}
            yield Caution.of("far_off", factor=f"{FAR_NAMED:g}", **facts)
