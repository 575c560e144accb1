"""Published figures that may be far from direct ones, named from the release alone.

A predicted error is the error by noise, reference and mechanism over the sample's own, the direct standard error.
Figures with a ratio above FAR are named: at 2, one in twenty is off by over 4 direct standard errors, if errors are
normal. An error below NEVER_FAR is not: it is small, however small the direct one is.

Where a model knows how records vary within cells, the sample's own error is theirs. Estimates follow a part of it, by
draws of the same samples. What they leave is a part of the other error.

Noisy sums do not show how records vary within a cell. Without points, the direct error is at least that of as many
independent records of equal weight, whose outcomes vary by as much as their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.records import Cells, Floats, counted_and_named
from dpdist.estimation.estimators import STATISTICS, PsuSums, counts_and_means
from dpdist.job import Table
from dpdist.models.laws import has_few_rows
from dpdist.models.protocol import DRAWS, expected_of, supports
from dpdist.publish.refit import Expected
from dpdist.publish.released import ReleasedObject, plain_effects
from dpdist.publish.standard_errors import (
    NOISED,
    CellsKey,
    LawSpread,
    TableVariances,
    VarianceParts,
    cell_estimates,
    cells_key,
    composition,
    normal_variance,
    ratios,
    table_variances,
)
from dpdist.publish.tables import Grounds

FAR = 2.0
"""Predicted error, in direct standard errors, above which a figure is named."""
FAR_NAMED = 4.0
"""Distance from the direct figure, in its standard errors, of which a statement warns."""
EXACT = 1e-6
"""Relative error up to which a figure counts as exact, or as fixed by the design."""
NEVER_FAR = 1e-3
"""Error up to which no figure is named, however small the direct one is: a level's records may be all alike. Relative to
the figure, or for means to the range of the table's means, so that it does not matter where an outcome's scale begins."""
CLEAR, FEW = 10.0, 4
"""A direct variance counts if it is so many times what noise adds, by so many draws; else the design may fix the figure."""
MOST = 99.0
"""Ratio that also stands for all larger ones."""
IN_WORDS = (
    f"Published figures whose predicted error exceeds {FAR:g} standard errors of the survey's own estimate, each with the "
    "ratio of the two. Errors below one thousandth of the figure, or of the range of the table's means, are left out. "
    f"Such figures may differ from the survey's own estimates by more than {FAR_NAMED:g} of their standard errors. The "
    "prediction uses only this release; margins are included."
)

OfTable = Mapping[str, Mapping[tuple[str, ...], float]]
"""Predicted errors above FAR of a table, by statistic and cell."""
Ratios = Mapping[str, OfTable]
"""Predicted errors above FAR, by table, statistic and cell; a cell by its levels."""


def beyond_direct(
    released: ReleasedObject, table: Table, grounds: Mapping[str, Grounds], within: Mapping[str, Within]
) -> OfTable:
    """Predicted errors above FAR of a table's counts, means and totals; other statistics are not predicted.

    `within` is that of `within_cells`.
    """
    cells, by_outcome, beyond = released.cells(table), dict[str, list[Floats]](), dict[str, dict[tuple[str, ...], float]]()
    for statistic in table.statistics:
        outcome = statistic.variable or released.job.outcomes[0]
        if not statistic.plain or outcome not in grounds:
            continue
        if outcome not in by_outcome:
            by_outcome[outcome] = predict_errors(released, table, cells, grounds[outcome], within.get(outcome))
        ratios = by_outcome[outcome][STATISTICS.index(statistic.name)]
        far = {cells.labels[k]: min(round(float(ratios[k]), 2), MOST) for k in np.flatnonzero(ratios > FAR)}
        if far:
            beyond[statistic.text] = far
    return beyond


def predict_errors(
    released: ReleasedObject, table: Table, cells: Cells, grounds: Grounds, within: Within | None = None
) -> list[Floats]:
    """Predicted errors of counts, means and totals in direct standard errors, (cell,) each; NaN if unknown.

    `within` is the outcome's entry of `within_cells`, if it has one.
    """
    n, unknown = released.crosstab.count.astype(float), [np.full(len(cells), np.nan)] * len(STATISTICS)
    if grounds.noised is not None:
        values = grounds.noised.points(table)
        parts = grounds.noised.variance_parts(table, cells)
    elif grounds.expected is None or grounds.spread is None:
        return unknown
    else:
        weight, product = (np.array([pair[i] for pair in grounds.expected]) for i in range(2))
        values = [draws.mean(axis=0) for draws in cell_estimates(cells, n, weight, product)]
        of_table = table_variances(released, cells, grounds.expected, grounds.spread, grounds.outcome)
        parts, mean_weight = of_table.parts, weight.mean(axis=0)
        if within is not None:
            sums, outcome = within.over(released, table, cells), released.job.outcomes[grounds.outcome]
            both = _direct_variances(released, cells, outcome, of_table, mean_weight, within, sums)
            parts = [
                VarianceParts(direct, part.other + remainder) for (direct, remainder), part in zip(both, parts, strict=True)
            ]
    varying = grounds.noised is None
    records, errors = cells.membership @ n, []
    with np.errstate(divide="ignore", invalid="ignore"):
        for name, value, part in zip(STATISTICS, values, parts, strict=True):
            finite = value[np.isfinite(value)]
            size = np.ptp(finite) if name == "mean" and len(finite) else value
            direct = part.sampling if varying else np.fmax(part.sampling, value**2 / records)
            # A count that public totals fix errs by rounding; one that the design fixes has no direct error.
            predictable = (records > 1) & (part.other > (NEVER_FAR * size) ** 2) & (direct > (EXACT * value) ** 2)
            errors.append(np.where(predictable, np.sqrt(part.other / direct), np.nan))
    return errors


class Within(NamedTuple):
    """How an outcome's figures vary over samples, by a model that knows it.

    `direct` has draws of E(w|x) and E(wy|x) in unprotected samples by stratum, (draw, row of the stratum) each; or, where
    rows are more than cells, `sums` has their sums over the cells of every table. `noised` has the expectations of every
    crosstab row under other noise, (draw, row) each.
    """

    direct: list[Expected]
    sums: dict[CellsKey, LawSpread]
    noised: Expected

    def over(self, released: ReleasedObject, table: Table, cells: Cells) -> LawSpread:
        """Draws of unprotected sums over a table's cells."""
        if self.sums:
            return self.sums[cells_key(cells)]
        parts = (_over(released, table, stratum, expected) for stratum, expected in enumerate(self.direct))
        return reduce(_plus, parts)


def _over(released: ReleasedObject, table: Table, stratum: int, expected: Expected) -> LawSpread:
    """Sums of a stratum's expectations over a table's cells."""
    rows = released.crosstab.rows_of(stratum)
    if len(released.crosstab.stratum_labels) == 1:
        cells, n = released.cells(table), released.crosstab.count.astype(float)
        return LawSpread(*(cells.sums(n, values.T).T for values in expected))
    membership, n = released.rows_of_cells(table)[:, rows.start : rows.stop], released.crosstab.count[rows].astype(float)
    return LawSpread(*((membership @ (n * values).T).T for values in expected))


def _plus(sums: LawSpread, other: LawSpread) -> LawSpread:
    return LawSpread(*map(np.add, sums, other))


def within_cells(released: ReleasedObject, grounds: Mapping[str, Grounds]) -> dict[str, Within]:
    """How figures vary over samples, by outcome. Empty where no model knows it, and where public totals rake figures.

    Expectations under other noise are the first that spreads have, where these have draws of rows.
    """
    crosstab, outcomes = released.crosstab, released.job.outcomes
    if released.job.rake or not supports(released.model(0), "with_donors"):
        return {}
    drawn = {name: of.spread.laws[NOISED] for name, of in grounds.items() if of.spread is not None and of.spread.laws}
    nothing = np.empty((FEW, len(crosstab)))
    noised_rows = {name: drawn.get(name, (nothing, nothing)) for name in outcomes}
    within = {name: Within([], {}, (a[:FEW].astype(float), b[:FEW].astype(float))) for name, (a, b) in noised_rows.items()}
    by_row = has_few_rows(released.job, crosstab)
    tables = {} if by_row else {cells_key(released.cells(table)): table for table in released.job.tables}
    for stratum, label in enumerate(crosstab.stratum_labels):
        model, rows = released.model(stratum), crosstab.rows_of(stratum)
        theta, n = released.theta(model, stratum, 0), crosstab.count[rows].astype(float)
        key = released.seed.child(f"precision {label}")
        direct = model.unprotected(theta, DRAWS, key.generator("centres"))
        noised = None
        if len(drawn) < len(outcomes):
            noised = model.noised_again(theta, int(n.sum()), FEW, key.generator("noise of compositions"))
        for j, name in enumerate(outcomes):
            if noised is not None:
                for total, part in zip(within[name].noised, expected_of(model, noised, j), strict=True):
                    total[:, rows] = part
            expected = expected_of(model, direct, j)
            if not tables:
                within[name].direct.append(expected)
            for of_table, table in tables.items():
                sums, before = _over(released, table, stratum, expected), within[name].sums.get(of_table)
                within[name].sums[of_table] = sums if before is None else _plus(before, sums)
    return within


def _direct_variances(
    released: ReleasedObject,
    cells: Cells,
    outcome: str,
    of_table: TableVariances,
    weight: Floats,
    within: Within,
    sums: LawSpread,
) -> list[tuple[Floats, Floats]]:
    """Variances of direct counts, means and totals over samples, and of what estimates leave of them, (cell,) each.

    Estimates have the direct figures' numbers of records, so these are followed. Without a reference weights vary in the
    whole file as they may do in no cell: direct errors are then those of nearly equal weights within cells. A count or
    total varies at least as its number of records.
    """
    effects = plain_effects(released.design_effects, cells, outcome)
    composed, followed = of_table.composed, of_table.centres
    direct = ratios(*sums)
    noised = [composition(released, cells, [pair]) for pair in zip(*within.noised, strict=True)]
    numbers = counts_and_means(
        PsuSums(*[released.crosstab.count.astype(float)] * 5), released.crosstab, cells, released.stage
    )[0]
    sampling_variances, variances = [normal_variance(figure) for figure in direct], []
    if released.job.on_histograms:
        n = released.crosstab.count
        equal = cells.membership @ (n * weight**2)
        alike = equal / np.maximum(equal + sampling_variances[0], np.finfo(float).tiny)
        sampling_variances = [alike * variance for variance in sampling_variances]
    for k, (effect, part) in enumerate(zip(effects, composed, strict=True)):
        caused = np.nan_to_num(np.mean([parts_of_set[k].variance for parts_of_set in noised], axis=0) - part.variance)
        composed_and_drawn = part.variance + sampling_variances[k]
        variance = np.where(composed_and_drawn > CLEAR * caused, composed_and_drawn, 0.0)
        if STATISTICS[k] != "mean":
            with np.errstate(divide="ignore", invalid="ignore"):
                of_number = np.nan_to_num((part.value / numbers.value) ** 2 * numbers.variance)
            variance = np.maximum(variance, of_number)
        variances.append((effect * variance, effect * normal_variance(followed[k] - direct[k])))
    return variances


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
