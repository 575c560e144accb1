"""For plans in `cli`: texts on predicted errors, alarms, and the ε for a wanted error."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from dpdist.core.cautions import Caution
from dpdist.core.table_cells import first_named
from dpdist.planning.plan import Plan
from dpdist.publish.predicted_errors import FAR_NAMED
from dpdist.quality.predicted.prediction import BETTER, Prediction, Statistics, predicted_before
from dpdist.quality.summary import errors_in_words
from dpdist.quality.verdict import FAR_RECORDS

UNIT = (
    "errors are |published − direct estimate| in direct standard errors, as in a run's verdict, predicted from "
    "public records "
    "only. Drift since the reference would add to them. All except medians are for cells of "
    f"{FAR_RECORDS} records or more"
)


def in_words(prediction: Prediction) -> Iterator[str]:
    """Yields a plan's lines on every statistic and on other ε, or the reason why nothing is known."""
    if not prediction.computed:
        yield not_known(prediction)
        return
    yield UNIT
    for one in prediction.statistics():
        yield f"{one.table}, {one.statistic}: {_of_statistic(one)}"
    yield from not_predicted(prediction)
    curves = zip(*map(prediction.statistics, prediction.epsilons), strict=True)
    for points in curves:
        listed = ", ".join(
            f"{_figure(one)} at ε = {epsilon:g}" for epsilon, one in zip(prediction.epsilons, points, strict=True)
        )
        yield f"{points[0].table}, {points[0].statistic}: median {listed}"


def not_known(prediction: Prediction) -> str:
    return f"not known before the run, because {prediction.why}"


def not_predicted(prediction: Prediction) -> Iterator[str]:
    """Yields a line with the statistics of which no error is predicted, if there are any."""
    if without := list(dict.fromkeys(statistic.text for _, statistic in prediction.without)):
        yield f"not predicted: {', '.join(without)}"


def _of_statistic(one: Statistics) -> str:
    parts = [sizes] if (sizes := errors_in_words(one.name, one.errors)) else []
    if one.cells > one.fixed and not isnan(one.reference_alone):
        parts.append(f"the reference alone {one.reference_alone:.2g} and {one.largest_alone:.2g}")
    if not isnan(one.coverage):
        parts.append(f"90 % intervals cover {100 * one.coverage:.0f} % of the population's figures")
    return "; ".join(parts)


def _figure(one: Statistics) -> str:
    return f"{one.median:.2g}" if one.cells > one.fixed else f"{100 * one.relative:.2g} %"


def worth(prediction: Prediction) -> Iterator[str]:
    """Yields a plan's first line: whether the release beats its reference at the job's ε, and from which ε on it would.

    There is none for a job without a reference, and if nothing is predicted.
    """
    epsilon, least = float(prediction.job.budget.epsilon), prediction.least_worth
    if not prediction.job.has_reference or not prediction.computed or isnan(prediction.better(epsilon)):
        return
    nearer, needed = (f"{100.0 * share:.0f} %" for share in (prediction.better(epsilon), BETTER))
    now = f"at ε = {epsilon:g} the release is closer to direct estimates than the reference in {nearer} of the cells"
    none = f"no ε up to {max(prediction.epsilons):g} reaches {needed}"
    then = none if least is None else f"from ε = {least:g} on it is in {needed} or more"
    if least is not None and least <= epsilon:
        yield f"yes: {now}, and {then}"
    else:
        yield f"unless the survey has changed, the reference serves you as well as this release: {now}, and {then}"


def alarms(prediction: Prediction) -> Iterator[Caution]:
    """Yields a caution for every statistic with published cells that are predicted to be far off, with their names.

    If no error is above 1 direct standard error, a line appears with a probability of at most `prediction.FALSE_ALARM`.
    """
    for one in prediction.statistics():
        if one.far:
            number = f"{len(one.far):,} {'cell' if len(one.far) == 1 else 'cells'}"
            facts = {"table": one.table, "statistic": one.statistic, "cells": number, "names": first_named(one.far)}
            yield Caution.of("predicted_far_off", factor=f"{FAR_NAMED:g}", **facts)


def proposals(prediction: Prediction) -> Iterator[Caution]:
    """Yields a caution for every table whose counts the design fixes but no declared public total does."""
    job = prediction.job
    if job.survey.weight is None or job.sizes_secret or job.noisy_frame:
        return  # such a job may not rake
    by = {table.name: table.by for table in job.tables}
    for one in prediction.statistics():
        columns = by[one.table]
        if one.name != "count" or not one.fixed or any({*columns} <= {*rake.by} for rake in job.rake):
            continue
        totals = f"rake: [{{by: [{', '.join(columns)}], totals: {{…}}}}]"
        numbers = {"fixed": f"{one.fixed:,}", "cells": f"{one.cells:,}"}
        yield Caution.of("public_totals_proposed", table=one.table, rake=totals, **numbers)


def alarms_before(plan: Plan) -> Iterator[Caution]:
    """Yields the alarms of a stored prediction, because a run does not wait for a new one."""
    prediction = predicted_before(plan)
    if prediction is not None:
        yield from alarms(prediction)
