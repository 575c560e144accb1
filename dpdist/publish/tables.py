"""Every cell and statistic of the published tables, from released parameters and synthetic records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpdist.core.records import Cells, Floats
from dpdist.estimation.estimators import (
    STATISTICS,
    Figures,
    Interval,
    PsuSums,
    combine_sets,
    margins_of,
    positive_interval,
    raked_counts_and_means,
    t_interval,
)
from dpdist.job import Table
from dpdist.publish.further_statistics import Material, further_intervals
from dpdist.publish.noisy_figures import NoisedTables
from dpdist.publish.released import ReleasedObject, plain_effects
from dpdist.publish.standard_errors import Spreads, cell_estimates, table_variances, variances
from dpdist.publish.synthesis import (
    fixed_totals,
    limited,
    without_rounding,
)


class Grounds(NamedTuple):
    """The input of an outcome's estimates: expectations and sums of every set, simulated spreads, the outcome's number."""

    expected: Sequence[tuple[Floats, Floats]] | None
    sums: Sequence[PsuSums]
    spread: Spreads | None
    outcome: int = 0
    noised: NoisedTables | None = None
    """The input of figures that were released themselves; they need nothing else."""


def estimates(released: ReleasedObject, cells: Cells, grounds: Grounds) -> dict[str, list[Interval]]:
    """Intervals of counts, means and totals by estimator, the default estimator first; of parameters alone without sums."""
    expected, sums, spread, outcome, _ = grounds
    if expected is None:
        return {"records": combined_records(released, cells, sums, outcome=outcome)}
    parameters = from_parameters(released, cells, expected, spread, outcome)
    if spread is not None:
        records = {"records": _records_of(released, cells, grounds, expected, spread, parameters)} if len(sums) else {}
        return {"parameters": parameters} | records
    if not len(sums):
        return {"parameters": parameters}
    model = released.job.likelihood
    floor = parameters if model.synthesis == "fbp" or model.synthetic_weights == "expected" else None
    return {"parameters": parameters, "records": combined_records(released, cells, sums, floor, outcome)}


COLUMNS = ("statistic", "variable", "estimator")
NUMBERS = ("estimate", "standard_error", "df", "lower", "upper")


def table(
    released: ReleasedObject, spec: Table, grounds: Mapping[str, Grounds], material: Material | None = None
) -> pa.Table:
    """One row for each cell, statistic and estimator, with cells in the declared order of levels.

    `grounds` holds the input of estimates by outcome. `material` is needed for further statistics only.
    """
    cells = released.cells(spec)
    intervals_of_statistics = _intervals_of(released, spec, cells, grounds, material)
    printed = [
        (statistic, estimator, interval)
        for statistic, intervals in zip(spec.statistics, intervals_of_statistics, strict=True)
        for estimator, interval in intervals.items()
    ]
    cell = pa.array(np.repeat(np.arange(len(cells)), len(printed)))
    labels = zip(*cells.labels, strict=True) if spec.by else ()
    columns = {name: pa.array(levels, pa.string()).take(cell) for name, levels in zip(spec.by, labels, strict=True)}
    of_row = [[statistic.label, statistic.about, estimator] for statistic, estimator, _ in printed]
    columns |= {
        name: pa.array(list(texts) * len(cells), pa.string())
        for name, texts in zip(COLUMNS, zip(*of_row, strict=True), strict=True)
    }
    return pa.table(columns | _numbers([interval for *_, interval in printed]))


def _numbers(intervals: Sequence[Interval]) -> dict[str, pa.Array]:
    """Estimates, standard errors, df and limits of every cell under each interval in turn, (cell × interval,).

    Without an estimate only limits remain. An estimate without a standard error has limits only as a quantile that many
    records have.
    """
    value, error, df, lower, upper = (np.stack(parts, axis=1).ravel() for parts in zip(*intervals, strict=True))
    estimated = np.isfinite(value)
    with_error = estimated & np.isfinite(error)
    limited = np.isfinite(lower) & np.isfinite(upper)
    figures, masks = (value, error, df, lower, upper), (estimated, with_error, with_error, limited, limited)
    numbers = {
        name: pa.array(values, pa.float64(), mask=~there)
        for name, values, there in zip(NUMBERS, figures, masks, strict=True)
    }
    return numbers | {"suppressed": pa.array(~estimated)}


def _intervals_of(
    released: ReleasedObject, spec: Table, cells: Cells, grounds: Mapping[str, Grounds], material: Material | None
) -> list[dict[str, Interval]]:
    first, outcomes = released.job.outcomes[0], released.job.outcomes
    statistics = [statistic for statistic in spec.statistics if statistic.plain]
    plain_outcomes = {statistic.variable or first for statistic in statistics}
    if (noised := grounds[first].noised) is not None:
        by_outcome = {first: {"parameters": noised.intervals(spec, cells)}}
    else:
        by_outcome = {
            outcome: estimates(released, cells, ground) for outcome, ground in grounds.items() if outcome in plain_outcomes
        }
    by_outcome = {
        outcome: limited(released, cells, outcomes.index(outcome), by_estimator)
        for outcome, by_estimator in by_outcome.items()
    }
    totals = fixed_totals(cells, margins_of(released.job, released.crosstab))
    by_outcome = {
        outcome: {
            estimator: [without_rounding(counts, totals), *rest] for estimator, (counts, *rest) in by_estimator.items()
        }
        for outcome, by_estimator in by_outcome.items()
    }
    columns = []
    for statistic in spec.statistics:
        if statistic.plain:
            by_estimator, k = by_outcome[statistic.variable or first], STATISTICS.index(statistic.name)
            columns.append({estimator: intervals[k] for estimator, intervals in by_estimator.items()})
        else:
            assert material is not None
            columns.append(further_intervals(material, cells, statistic))
    return columns


def from_parameters(
    released: ReleasedObject,
    cells: Cells,
    expected: Sequence[tuple[Floats, Floats]],
    spread: Spreads | None,
    outcome: int = 0,
) -> list[Interval]:
    """Counts, means and totals from the released parameters, with the variance T of `standard_errors`."""
    n = released.crosstab.count.astype(float)
    weight, product = (np.array([pair[i] for pair in expected]) for i in range(2))
    points = [values.mean(axis=0) for values in cell_estimates(cells, n, weight, product)]
    df = np.full(len(cells), np.inf if spread is not None else len(released.sets) - 1)
    return _intervals(points, variances(released, cells, expected, spread, outcome), [df] * len(points))


def _records_of(
    released: ReleasedObject,
    cells: Cells,
    grounds: Grounds,
    expected: Sequence[tuple[Floats, Floats]],
    spread: Spreads,
    parameters: Sequence[Interval],
) -> list[Interval]:
    """Intervals from synthetic records, with a variance T.

    V is the variance from parameters, W the variance within a set, and m the number of sets. `standard_errors` defines V_x.

    T = V + S/m, where S = W − V_x is the variance that the synthetic records add, given x. If sets were drawn about one
    fit, T = V + (V + W)/m. If records have the table from parameters, T = V. If V is unknown, `combined_records` gives
    T.
    """
    sets, per_set = len(released.sets), _per_set(released, cells, grounds.sums)
    composed = table_variances(released, cells, expected, spread, grounds.outcome).composed
    combined, free_sets = _combined(released, cells, per_set, None, grounds.outcome), released.job.mechanism.sets == "drawn"
    effects = plain_effects(released.design_effects, cells, released.job.outcomes[grounds.outcome])
    totals, degrees = [], []
    for i, (from_parameters, from_records) in enumerate(zip(parameters, combined, strict=True)):
        within = np.mean([figures[i].variance for figures in per_set], axis=0)
        added = (
            from_parameters.standard_error**2 + effects[i] * within
            if free_sets
            else np.maximum(within - composed[i].variance, 0.0)
        )
        added = np.zeros_like(added) if released.job.mechanism.sets == "copied" else added
        total = from_parameters.standard_error**2 + added / sets
        totals.append(np.where(np.isfinite(total), total, from_records.standard_error**2))
        degrees.append(np.where(np.isfinite(total), np.inf, from_records.df))
    return _intervals([records.value for records in combined], totals, degrees)


def combined_records(
    released: ReleasedObject,
    cells: Cells,
    sums: Sequence[PsuSums],
    floor: Sequence[Interval] | None = None,
    outcome: int = 0,
) -> list[Interval]:
    """Intervals from synthetic records with T = B/m + W, where public design effects multiply W.

    B is the variance between the m sets, and W the mean variance within a set. With `fbp` synthesis or expected
    weights, weights are constant given x, so W misses the error of E(w|x). In that case T is at least the variance in
    `floor`.
    """
    return _combined(released, cells, _per_set(released, cells, sums), floor, outcome)


def _combined(
    released: ReleasedObject, cells: Cells, per_set: Sequence[Figures], floor: Sequence[Interval] | None, outcome: int
) -> list[Interval]:
    crosstab, effects = released.crosstab, plain_effects(released.design_effects, cells, released.job.outcomes[outcome])
    df, combined = float(crosstab.count.sum() - len(np.unique(crosstab.design_stratum))), []
    for i in range(len(STATISTICS)):
        values, within = (np.array([getattr(figures[i], part) for figures in per_set]) for part in ("value", "variance"))
        combined.append(combine_sets(values, effects[i] * within, df))
    totals, degrees = ([getattr(records, name) for records in combined] for name in ("standard_error", "df"))
    if floor is not None:
        totals = [np.fmax(error, least.standard_error) for error, least in zip(totals, floor, strict=True)]
        degrees = [np.full(len(cells), np.inf)] * len(combined)
    return _intervals([records.value for records in combined], [error**2 for error in totals], degrees)


def _per_set(released: ReleasedObject, cells: Cells, sums: Sequence[PsuSums]) -> list[Figures]:
    """Counts, means and totals of every set's records, raked where the job states public totals."""
    crosstab, rake = released.crosstab, margins_of(released.job, released.crosstab)
    return [raked_counts_and_means(set_sums, crosstab, cells, rake, released.stage) for set_sums in sums]


def _intervals(points: Sequence[Floats], totals: Sequence[Floats], degrees: Sequence[Floats]) -> list[Interval]:
    """Intervals by statistic. Counts of few records are skewed, so their intervals use the log scale."""
    counts, *rest = zip(points, totals, degrees, strict=True)
    return [positive_interval(*counts), *(t_interval(*other) for other in rest)]
