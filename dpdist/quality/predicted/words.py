"""Texts on predicted errors: alarms of a plan, and the ε at which a release's median error is as small as wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, exp, floor, isnan, log, log10
from pathlib import Path

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.errors import JobError
from dpdist.core.progress import Listener, silent
from dpdist.core.records import first_named
from dpdist.job import budget_text
from dpdist.planning.plan import Plan
from dpdist.publish.predicted_errors import FAR_NAMED
from dpdist.quality.errors import FAR_RECORDS
from dpdist.quality.predicted.prediction import BETTER, ErrorPrediction, predicted, predicted_before
from dpdist.quality.predicted.scores import Statistics
from dpdist.quality.summary import errors_in_words, percent

LARGEST_FACTOR = 64
"""Largest factor on the job's ε, and largest divisor, that is tried."""


def epsilon_for(
    plan: Plan, error: float, table: str | None = None, listener: Listener = silent, public: Path | None = None
) -> Fraction:
    """The smallest ε, to two digits, at which every statistic's median error is at most `error` direct standard errors.

    Statistics are those of one table, or of all. Raises `JobError` if errors are not known before the run, if the table
    does not exist, or if no ε within the factor LARGEST_FACTOR suffices.
    """
    job = plan.job
    names = [spec.name for spec in job.tables]
    if table is not None and table not in names:
        raise JobError.of(job.dataset, "--table", f"no table '{table}'", ", ".join(names), "name one of them")

    def worst(times: Fraction) -> float:
        prediction = predicted(plan, listener, public, (times,))
        if not prediction.computed:
            remedy = "use dpdist rehearse"
            fault = f"errors are not known before the run, because {prediction.why}"
            raise JobError.of(job.dataset, "--for-error", fault, "a job whose errors can be predicted", remedy)
        epsilon = float(job.budget.epsilon * times)
        medians = [row.median for row in prediction.statistics(epsilon) if table in (None, row.table)]
        largest = float(np.nanmax(medians)) if not all(map(isnan, medians)) else np.nan
        if isnan(largest):
            fault, remedy = "the design fixes every figure: there is no direct standard error", "state public totals: rake"
            raise JobError.of(job.dataset, "--for-error", fault, "figures with a direct error", remedy)
        return largest

    times = Fraction(1)
    tried = {times: worst(times)}
    step = Fraction(2) if tried[times] > error else Fraction(1, 2)
    while (tried[times] > error) == (step > 1):
        if not Fraction(1, LARGEST_FACTOR) < times < LARGEST_FACTOR:
            if step < 1:
                return _two_digits(job.budget.epsilon * times)
            fault = f"the median error is {tried[times]:.2g} even at ε = {budget_text(job.budget.epsilon * times)}"
            remedy = "use larger cells, or a reference with more records"
            raise JobError.of(job.dataset, "--for-error", fault, "an error that some ε reaches", remedy)
        times *= step
        tried[times] = worst(times)
    low, high = sorted((times / step, times))
    at_low, at_high = tried[low], tried[high]
    share = (log(at_low) - log(error)) / (log(at_low) - log(at_high)) if at_low > at_high > 0.0 else 1.0
    between = exp(log(low) + min(max(share, 0.0), 1.0) * (log(high) - log(low)))
    return _two_digits(job.budget.epsilon * Fraction(between))


def _two_digits(epsilon: Fraction) -> Fraction:
    """Rounds up to two significant digits."""
    step = Fraction(10) ** (floor(log10(epsilon)) - 1)
    return ceil(epsilon / step) * step


MANY = 8
"""Number of statistics of tables from which on a plan has a line for each kind alone."""
UNIT = (
    "predicted errors are |published − direct estimate|, in standard errors of the direct estimate, as in a run's "
    "verdict. They are computed from public records only; drift since the reference would add to them. Except for "
    f"medians, only cells with at least {FAR_RECORDS} records are considered"
)

UNKNOWN = "no direct standard error to compare with, for example because all public records have the same value"


def in_words(prediction: ErrorPrediction) -> Iterator[str]:
    """Yields a plan's lines on its statistics, at the job's ε and at others, or the reason why nothing is known.

    Of more than MANY statistics there is a line for each kind, with ranges over tables.
    """
    if not prediction.computed:
        yield not_known(prediction)
        return
    yield UNIT
    rows, curves = prediction.statistics(), list(zip(*map(prediction.statistics, prediction.epsilons), strict=True))
    if len(rows) > MANY:
        for statistic in dict.fromkeys(row.statistic for row in rows):
            mine = [k for k, row in enumerate(rows) if row.statistic == statistic]
            yield _over_tables(statistic, [rows[k] for k in mine], [curves[k] for k in mine], prediction.epsilons)
        yield "`dpdist plan JOB --open` shows every table"
    else:
        for row, points in zip(rows, curves, strict=True):
            if isnan(_size(row)):
                yield f"{row.table}, {row.statistic}: {UNKNOWN}"
                continue
            medians = ", ".join(
                f"{_figure(point)} at ε = {e:g}" for e, point in zip(prediction.epsilons, points, strict=True)
            )
            yield f"{row.table}, {row.statistic}: {_of_statistic(row)}. Median error: {medians}"
    yield from not_predicted(prediction)


def _over_tables(
    statistic: str, rows: Sequence[Statistics], curves: Sequence[Sequence[Statistics]], epsilons: Sequence[float]
) -> str:
    """One statistic in several tables: the tables with the smallest and the largest median, and the largest cell."""
    known = [k for k, row in enumerate(rows) if not isnan(_size(row))]
    if not known:
        return f"{statistic} ({_tables(rows)}): {UNKNOWN}"
    rank = sorted(known, key=lambda k: _size(rows[k]))
    low, high = rows[rank[0]], rows[rank[-1]]
    one, of = len(rows) == 1, "" if len(rows) == 1 else f" in table {high.table}"
    parts = [f"median error between {_figure(low)} (table {low.table}) and {_figure(high)} (table {high.table})"]
    if len(known) == 1:
        parts = [f"median error {_figure(high)}{'' if one else f' (table {high.table})'}"]
    if judged := [row for row in rows if not isnan(row.largest)]:
        most = max(judged, key=lambda row: row.largest)
        parts.append(f"largest error in any cell {most.largest:.2g}{'' if one else f' (table {most.table})'}")
    if alone := sorted(row.reference_alone for row in rows if not isnan(row.reference_alone)):
        several = f"between {alone[0]:.2g} and {alone[-1]:.2g}"
        parts.append(f"the reference alone: median error {several if len(alone) > 1 else f'{alone[0]:.2g}'}")
    medians = ", ".join(f"{_figure(point)} at ε = {e:g}" for e, point in zip(epsilons, curves[rank[-1]], strict=True))
    if few := len(rows) - len(known):
        parts.append(f"{few} {'table has' if few == 1 else 'tables have'} {UNKNOWN}")
    return f"{statistic} ({_tables(rows)}): {'; '.join(parts)}. Median error{of}: {medians}"


def _tables(rows: Sequence[Statistics]) -> str:
    return f"1 table, {rows[0].table}" if len(rows) == 1 else f"{len(rows)} tables"


def not_known(prediction: ErrorPrediction) -> str:
    return f"not known before the run, because {prediction.why}"


def not_predicted(prediction: ErrorPrediction) -> Iterator[str]:
    """Yields a line with the statistics of which no error is predicted, if there are any."""
    if without := list(dict.fromkeys(statistic.text for _, statistic in prediction.without)):
        yield f"not predicted: {', '.join(without)}"


def _of_statistic(row: Statistics) -> str:
    parts = [sizes] if (sizes := errors_in_words(row.name, row.errors)) else []
    if row.cells > row.fixed and not isnan(row.reference_alone):
        alone, largest = f"{row.reference_alone:.2g}", f"{row.largest_alone:.2g}"
        several = f"median {alone}, largest {largest}"
        parts.append(f"the reference alone: {several if row.errors.cells != 1 else alone}")
    if not isnan(row.coverage):
        parts.append(f"90 % intervals cover {100 * row.coverage:.0f} % of the population's figures")
    return "; ".join(parts)


def _size(row: Statistics) -> float:
    """The median error in direct standard errors, relative if the design fixes every cell; NaN if neither is known."""
    return row.median if row.cells > row.fixed else row.relative


def _figure(row: Statistics) -> str:
    return f"{row.median:.2g}" if row.cells > row.fixed else percent(row.relative)


def worth(prediction: ErrorPrediction) -> Iterator[str]:
    """Yields a plan's first line: whether the release beats its reference at the job's ε, and from which ε on it would.

    There is none for a job without a reference, and if nothing is predicted.
    """
    epsilon, least = float(prediction.job.budget.epsilon), prediction.least_worth
    if not prediction.job.has_reference or not prediction.computed or isnan(prediction.better(epsilon)):
        return
    nearer, needed = (f"{100.0 * share:.0f} %" for share in (prediction.better(epsilon), BETTER))
    now = f"at ε = {epsilon:g} the release is closer to direct estimates than the reference in {nearer} of the cells"
    none = f"no ε up to {max(prediction.epsilons):g} reaches {needed}"
    then = none if least is None else f"at ε = {least:g} or more, it is closer in at least {needed} of them"
    if least is not None and least <= epsilon:
        yield f"yes: {now}, and {then}"
    else:
        yield f"not clearly, if the survey has not changed: {now}, and {then}"


def alarms(prediction: ErrorPrediction) -> Iterator[Caution]:
    """Yields a caution for every statistic with published cells that are predicted to be far off, with their names.

    If no error is above 1 direct standard error, a line appears with a probability of at most `prediction.FALSE_ALARM`.
    """
    for row in prediction.statistics():
        if row.far:
            number = f"{len(row.far):,} {'cell' if len(row.far) == 1 else 'cells'}"
            facts = {"table": row.table, "statistic": row.statistic, "cells": number, "names": first_named(row.far)}
            yield Caution.of("predicted_far_off", factor=f"{FAR_NAMED:g}", **facts)


def proposals(prediction: ErrorPrediction) -> Iterator[Caution]:
    """Yields a caution for every table whose counts the design fixes but no declared public total does."""
    job = prediction.job
    if job.survey.weight is None or job.sizes_secret or job.noisy_crosstab:
        return  # such a job may not rake
    by = {table.name: table.by for table in job.tables}
    for row in prediction.statistics():
        columns = by[row.table]
        if row.name != "count" or not row.fixed or any({*columns} <= {*rake.by} for rake in job.rake):
            continue
        totals = f"rake: [{{by: [{', '.join(columns)}], totals: {{…}}}}]"
        numbers = {"fixed": f"{row.fixed:,}", "cells": f"{row.cells:,}"}
        yield Caution.of("public_totals_proposed", table=row.table, rake=totals, **numbers)


def alarms_before(plan: Plan) -> Iterator[Caution]:
    """Yields the alarms of a stored prediction, because a run does not wait for a new one."""
    prediction = predicted_before(plan)
    if prediction is not None:
        yield from alarms(prediction)
