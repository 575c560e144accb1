"""For `cli.plan_text`: finds the ε at which a release's predicted median error is as small as wanted."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, exp, floor, isnan, log, log10
from pathlib import Path

import numpy as np

from dpdist.core.errors import JobError, Problem
from dpdist.core.progress import Listener, silent
from dpdist.job import budget_text
from dpdist.planning.plan import Plan
from dpdist.quality.predicted.prediction import predicted

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
        raise JobError(job.dataset, [Problem("--table", f"no table '{table}'", ", ".join(names), "name one of them")])

    def worst(times: Fraction) -> float:
        prediction = predicted(plan, listener, public, (times,))
        if not prediction.computed:
            remedy = "use dpdist rehearse"
            fault = f"errors are not known before the run, because {prediction.why}"
            raise JobError(job.dataset, [Problem("--for-error", fault, "a job whose errors can be predicted", remedy)])
        epsilon = float(job.budget.epsilon * times)
        medians = [one.median for one in prediction.statistics(epsilon) if table in (None, one.table)]
        largest = float(np.nanmax(medians)) if not all(map(isnan, medians)) else np.nan
        if isnan(largest):
            fault, remedy = "the design fixes every figure: there is no direct standard error", "state public totals: rake"
            raise JobError(job.dataset, [Problem("--for-error", fault, "figures with a direct error", remedy)])
        return largest

    times = Fraction(1)
    there = worst(times)
    step = Fraction(2) if there > error else Fraction(1, 2)
    before, at_before = times, there
    while (there > error) == (step > 1):
        if not Fraction(1, LARGEST_FACTOR) < times < LARGEST_FACTOR:
            if step < 1:
                return _two_digits(job.budget.epsilon * times)
            fault = f"the median error is {there:.2g} even at ε = {budget_text(job.budget.epsilon * times)}"
            remedy = "name larger cells, or a reference with more records"
            raise JobError(job.dataset, [Problem("--for-error", fault, "an error that some ε brings", remedy)])
        before, at_before = times, there
        times *= step
        there = worst(times)
    (low, at_low), (high, at_high) = sorted([(before, at_before), (times, there)])
    share = (log(at_low) - log(error)) / (log(at_low) - log(at_high)) if at_low > at_high > 0.0 else 1.0
    between = exp(log(low) + min(max(share, 0.0), 1.0) * (log(high) - log(low)))
    return _two_digits(job.budget.epsilon * Fraction(between))


def _two_digits(epsilon: Fraction) -> Fraction:
    """Rounds up to two significant digits."""
    step = Fraction(10) ** (floor(log10(epsilon)) - 1)
    return ceil(epsilon / step) * step
