"""Sensitivity of counts by cell and value.

A record is in one cell and has one value, so it is in one count. Switched off, it changes that count by 1. Exchanged, it
leaves one count and enters another. This is 2 in L1, and two records with 0 and with 1 attain it.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job
from dpdist.privacy.guarantees import Moved, NoisyQuery, neighbour_of, record_epsilon

MOVED = Moved(off=Fraction(1), same_x=Fraction(2), anywhere=Fraction(2))


def counts(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for all counts of a stratum."""
    return NoisyQuery("counts of zeros and ones", MOVED, scale, times=times)


def scale_of(job: Job) -> Fraction:
    """Scale of the noise on a set's counts."""
    return MOVED.by(neighbour_of(job)) / record_epsilon(job, job.epsilon_per_set)
