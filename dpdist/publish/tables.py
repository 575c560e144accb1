"""Published tables: every cell and statistic, estimated from the released parameters and from the synthetic records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpdist.cells import Cells, cross
from dpdist.estimates import STATISTICS, Interval, Sums, combine_sets, counts_and_means, stratum_sizes, t_interval
from dpdist.job import Table
from dpdist.models.protocol import Expectation, expected_of
from dpdist.publish.precision import Spreads, cell_estimates, variances
from dpdist.publish.released import Release
from dpdist.raking import factors, margins_of, raked_counts_and_means
from dpdist.records import Floats
from dpdist.variances import Stage


def expectations(release: Release, outcome: int = 0) -> list[tuple[Floats, Floats]] | None:
    """E(w|x) and E(wy|x) of an outcome per frame row, one pair a set; None where the model does not tell them."""
    if not isinstance(release.model(0), Expectation):
        return None
    rows = len(release.frame)
    found = [(np.empty(rows), np.empty(rows)) for _ in release.sets]
    for stratum in range(len(release.frame.stratum_labels)):
        model, own = release.model(stratum), release.frame.rows_of(stratum)
        assert isinstance(model, Expectation)
        for k, (weight, product) in enumerate(found):
            drawn = expected_of(model, release.theta(model, stratum, k), outcome)
            weight[own], product[own] = drawn[0][0], drawn[1][0]
    if rake := margins_of(release.job, release.frame):
        n = release.frame.count.astype(float)
        factor = [factors(n * weight, rake) for weight, _ in found]
        found = [(weight * g, product * g) for (weight, product), g in zip(found, factor, strict=True)]
    return found


class Grounds(NamedTuple):
    """What an outcome's estimates are made of: expectations and sums of every set, and the expectations' spreads."""

    expected: Sequence[tuple[Floats, Floats]] | None
    sums: Sequence[Sums]
    spread: Spreads | None


def _estimates(release: Release, cells: Cells, grounds: Grounds) -> dict[str, list[Interval]]:
    """Counts, means and totals by estimator, the default one first."""
    expected, sums, spread = grounds
    parameters = None if expected is None else _from_parameters(release, cells, expected, spread)
    model = release.job.model
    fixed = (
        model.synthesis == "fbp"
        or model.synthetic_weights == "expected"
        or model.family in ("cell_sums", "reference_cells")
    )
    floor = parameters if fixed else None
    estimates = {"records": _from_records(release, cells, sums, floor)}
    if parameters is not None:
        estimates = {"parameters": parameters, **estimates}
    return estimates


def table(release: Release, said: Table, grounds: Mapping[str, Grounds]) -> pa.Table:
    """One row per cell × statistic × estimator, cells in the declared order of levels; `grounds` by outcome."""
    cells = cross(release.frame, said.by, said.margins)
    first = release.job.model.outcomes[0]
    wanted = {statistic.variable or first for statistic in said.statistics}
    estimates = {outcome: _estimates(release, cells, each) for outcome, each in grounds.items() if outcome in wanted}
    names = {name: k for k, name in enumerate(STATISTICS)}
    columns: dict[str, list[object]] = {name: [] for name in said.by}
    figures: dict[str, list[object]] = {
        name: []
        for name in (
            "statistic",
            "variable",
            "estimator",
            "estimate",
            "standard_error",
            "df",
            "lower",
            "upper",
            "suppressed",
        )
    }
    for cell, label in enumerate(cells.labels):
        for statistic in said.statistics:
            for estimator, found in estimates[statistic.variable or first].items():
                interval = found[names[statistic.name]]
                row = [float(values[cell]) for values in interval]
                empty = not np.isfinite(row[0])
                row = row if np.isfinite(row[1]) else [row[0], np.nan, np.nan, np.nan, np.nan]
                for name, level in zip(said.by, label, strict=True):
                    columns[name].append(level)
                shown = [None if empty or np.isnan(v) else v for v in row]
                values = (statistic.name, statistic.variable, estimator, *shown, empty)
                for name, value in zip(figures, values, strict=True):
                    figures[name].append(value)
    text = [(name, pa.string()) for name in (*said.by, "statistic", "variable", "estimator")]
    number = [(name, pa.float64()) for name in ("estimate", "standard_error", "df", "lower", "upper")]
    return pa.table(columns | figures, schema=pa.schema([*text, *number, ("suppressed", pa.bool_())]))


def _from_parameters(
    release: Release, cells: Cells, expected: Sequence[tuple[Floats, Floats]], spread: Spreads | None
) -> list[Interval]:
    n = release.frame.count.astype(float)
    weight, product = (np.array([pair[i] for pair in expected]) for i in range(2))
    points = [values.mean(axis=0) for values in cell_estimates(cells, n, weight, product)]
    spreads = variances(release, cells, expected, spread)
    df = np.full(len(cells), np.inf if spread is not None else len(release.sets) - 1)
    return [t_interval(p, v, df) for p, v in zip(points, spreads, strict=True)]


def _from_records(release: Release, cells: Cells, sums: Sequence[Sums], floor: Sequence[Interval] | None) -> list[Interval]:
    """T = B/m + W; under FBP weights are constant given x and W misses the error of E(w|x): T is at least `floor`'s."""
    frame = release.frame
    df = float(frame.count.sum() - len(np.unique(frame.design_stratum)))
    stage = Stage.of(stratum_sizes(frame), lonely=release.job.survey.lonely_record)
    rake = margins_of(release.job, frame)
    per_set = [
        raked_counts_and_means(each, frame, cells, rake, stage) if rake else counts_and_means(each, frame, cells, stage)
        for each in sums
    ]
    found = []
    for i in range(len(STATISTICS)):
        combined = combine_sets(np.array([p[i].value for p in per_set]), np.array([p[i].variance for p in per_set]), df)
        if floor is not None:
            larger = np.fmax(combined.standard_error, floor[i].standard_error) ** 2
            combined = t_interval(combined.value, larger, np.full(len(cells), np.inf))
        found.append(combined)
    return found
