"""Checks, before anything is spent, that a job meets the needs of the comparators that it names."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from dpdist.job import Column, Job
from dpdist.job.contradiction import Contradiction, declared
from dpdist.job.families import FAMILIES


def comparators(job: Job) -> Iterator[Contradiction]:
    """The comparators FBS and FBP need a weight, and an outcome that can be lognormal."""
    wanted = " and ".join(how for how in ("fbs", "fbp") if how in job.compare)
    if not wanted:
        return
    remedy = f"leave {wanted} out"
    if job.survey.weight is None:
        yield Contradiction(
            ("compare",), f"{wanted} would fit outcome and weight together", f"name survey.weight, or {remedy}"
        )
    if len(job.outcomes) > 1:
        found = f"{wanted} would be fitted to one outcome, and {len(job.outcomes)} are named"
        yield Contradiction(("compare",), found, f"{remedy}, or name one outcome")
    for outcome in declared(job):
        if why := _never_lognormal(job.columns[outcome]):
            yield Contradiction(("compare",), f"{wanted} would fit a lognormal law, and '{outcome}' {why}", remedy)


def _never_lognormal(column: Column) -> str | None:
    """The reason why no column with these bounds or codes can be lognormal, zeros apart; None if it can."""
    low, high = column.bounds or (0.0, float("inf"))
    support = FAMILIES["lognormal"].support
    if low < support.low or high <= support.low:
        return f"has bounds outside what it takes, {support.text} (zeros are left out of the fit)"
    above = {value for value in (column.codes or {}).values() if value > 0}
    if column.codes is not None and len(above) < 2:
        return "is coded by a single value above 0"
    if column.whole and high - max(1, ceil(low)) < 1:
        return "has a single whole value above 0"
    return None
