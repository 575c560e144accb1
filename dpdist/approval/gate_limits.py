"""Computes before a run, from public facts, which published figures a job's gates need so that their noise is small.

The noise of a gate follows from the release: it is inversely proportional to the smallest published count, and for means to
that count times the mean. A plan states how large these figures must be. A gate is refused if its noise exceeds its limit
even in the most favourable case. Gates on coverage, and all gates under secret sizes, are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdist.approval.acceptance import bounds_of, gated_tables, noise_scale
from dpdist.core.errors import JobError, Problem
from dpdist.core.records import UNIT, Frame
from dpdist.core.table_cells import cross
from dpdist.job import Gate, Job


def numerator(job: Job, gate: Gate) -> float:
    """Returns the gate's noise sd times the figure that divides it.

    That figure is the smallest published count; for means the smallest count times |mean|. For coverage it is the smallest
    half width of an interval; for means times the count.
    """
    bounds = bounds_of(job)[gate.of.variable or job.outcomes[0]]
    length = bounds.weight * (1.0 if gate.of.name == "count" else 2.0 * bounds.half_width)
    return float(np.sqrt(2.0) * float(noise_scale(job)) * length / UNIT)


def cautions(job: Job) -> Iterator[str]:
    """Says of every gate which figures its noise needs."""
    if job.accept is None:
        return
    for gate in job.accept.gates:
        limit = 1.0 if gate.measure == "coverage" else gate.limit
        yield (
            f"gate '{gate.text}': its noise has a standard deviation of {numerator(job, gate):,.0f} over "
            f"{_smallest(gate)}. It is within the limit only where that is over {numerator(job, gate) / limit:,.0f}"
        )


def refuse_unreachable(job: Job, frame: Frame) -> None:
    """Raises `JobError` for gates whose noise exceeds their limit at all weights and means that public bounds allow."""
    if job.accept is None or job.sizes_secret:
        return
    problems = []
    for i, gate in enumerate(job.accept.gates):
        if gate.measure != "coverage" and (least := _least_sd(job, gate, frame)) > gate.limit:
            fault = (
                f"noise with a standard deviation of at least {least:.2g}, which the limit {gate.limit:g} does not allow"
            )
            remedy = "list tables of larger cells, take fewer gates, narrower bounds or more of the budget for them"
            problems.append(Problem(f"accept.gates[{i}]", fault, "a limit a few times the noise", remedy))
    if problems:
        raise JobError(job.dataset, problems)


def _least_sd(job: Job, gate: Gate, frame: Frame) -> float:
    """Returns the noise sd if every weight were its upper bound, and every mean its bound farthest from 0."""
    bounds = bounds_of(job)[gate.of.variable or job.outcomes[0]]
    counts = [cross(frame, table.by, table.margins).membership @ frame.count for table in gated_tables(job)]
    records = np.concatenate(counts)
    most = float(records[records > 0].min(initial=np.inf)) * bounds.weight
    if gate.of.name == "mean":
        most *= abs(bounds.centre) + bounds.half_width
    return numerator(job, gate) / most


def _smallest(gate: Gate) -> str:
    if gate.measure == "coverage":
        return f"the smallest half width of an interval{'' if gate.of.name == 'count' else ', times the count'}"
    return f"the smallest listed count{'' if gate.of.name == 'count' else ' times its |mean|'}"
