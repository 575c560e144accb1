"""Known faults of earlier versions: releases of which versions and jobs lose more than they claim.

An advisory is about claims that were wrong when a release was made. Making its tables or pages again does not mend it. So
the version that counts is the one that protected the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dpdist.job import Job, Modips


class Advisory(NamedTuple):
    """A fault, and which releases have it."""

    name: str
    last: str
    """The last version with the fault; all earlier ones have it too."""
    concerns: Callable[[Job], bool]
    """True for jobs whose releases have it."""
    words: str
    """What does not hold, and what to do."""


def _light_weights(job: Job) -> bool:
    """True if sums are drawn within a domain that takes the weight's lower bound as true, and the file need not meet it."""
    column = job.columns.get(job.survey.weight or "")
    if column is None or column.bounds is None or column.outside != "clip" or column.bounds[0] <= 0:
        return False
    return isinstance(job.mechanism, Modips) and job.mechanism.truncation == "bounded" and not job.mechanism.counted


ADVISORIES = (
    Advisory(
        "2026-01",
        "0.1.0",
        _light_weights,
        "the claim of this release does not hold if its file had a weight below the weight's lower public bound. Noisy "
        "sums were then drawn from a range that follows from the records, and no ε bounds what they tell. The publisher "
        "knows whether the file had such weights, and can release it again with a later version, at a new cost",
    ),
)
"""All advisories, the oldest first."""


def advisories(job: Job, protected_by: str | None) -> list[Advisory]:
    """The advisories that concern a release of this job, whose records this version protected.

    None stands for the versions that did not record it, which are 0.1.0 and earlier.
    """
    made_by = _numbers(protected_by or "0")
    return [each for each in ADVISORIES if made_by <= _numbers(each.last) and each.concerns(job)]


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare; a text without numbers is before all others."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:3])
