"""Finds public totals that no weights of the sample can meet, so that a run is refused before it spends anything."""

from __future__ import annotations

import numpy as np

from dpdist.core.errors import Problem
from dpdist.core.records import TOTAL, Frame
from dpdist.core.table_cells import cross
from dpdist.estimation.raking import Margin, NotMet, factors, margins_of
from dpdist.job import Job
from dpdist.job.tables import Rake


def rake_problems(job: Job, frame: Frame) -> list[Problem]:
    """Problems of raking totals: cells without a record, totals beyond public bounds, totals that contradict each other."""
    margins, problems = margins_of(job, frame), []
    for rake, margin in zip(job.rake, margins, strict=True):
        empty = [
            label
            for label, n in zip(cross(frame, rake.by, False).labels, margin.membership @ frame.count, strict=True)
            if not n
        ]
        if empty:
            found, remedy = "totals of cells without a sample record", "merge levels, or rake to coarser totals"
            where = f"rake {', '.join(rake.by) or 'all records'}"
            places = tuple(" / ".join(label) for label in empty[:3])
            problems.append(Problem(where, found, "a record in every cell that has a total", remedy, len(empty), places))
        problems += _beyond_bounds(job, frame, rake, margin)
    if not problems and margins:
        try:
            factors(frame.count.astype(np.float64), margins)
        except NotMet:
            found, remedy = "no weights of this sample meet all totals", "merge levels, or leave one margin out"
            problems.append(Problem("rake", found, "totals that the sample's combinations can reach", remedy))
    return problems


def _beyond_bounds(job: Job, frame: Frame, rake: Rake, margin: Margin) -> list[Problem]:
    """Problems of totals that no weights within the public bounds can meet; clipped weights could not meet them either."""
    column = job.columns.get(job.survey.weight or "")
    if column is None or column.bounds is None:
        return []
    count = margin.membership @ frame.count.astype(np.float64)
    low, high = (count * bound for bound in column.bounds)
    labels = [" / ".join(label) or TOTAL for label in cross(frame, rake.by, False).labels]
    beyond = (count > 0) & ((margin.totals < low * (1.0 - 1e-9)) | (margin.totals > high * (1.0 + 1e-9)))
    if not beyond.any():
        return []
    found = f"totals beyond what weights from {column.bounds[0]:.10g} to {column.bounds[1]:.10g} can add up to"
    remedy = "give totals of the population that the weights are of, or state wider bounds"
    places = tuple(label for label, outside in zip(labels, beyond, strict=True) if outside)[:3]
    where = f"rake {', '.join(rake.by) or 'all records'}"
    return [Problem(where, found, "records times the weight's public bounds", remedy, int(beyond.sum()), places)]
