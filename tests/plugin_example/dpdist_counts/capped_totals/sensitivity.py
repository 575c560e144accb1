"""Sensitivity of sums of capped weights, by cell and value.

A record adds min(w, cap)/cap, at most 1, to one sum. Switched off, it changes that sum by at most 1. Exchanged, it leaves
one sum and enters another. This is 2 in L1, and two records at the cap with 0 and with 1 attain it.
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job
from dpdist.privacy.guarantees import Moved, NoisyQuery, neighbour_of, record_epsilon

UNIT = 2**20
"""Sums are whole multiples of cap/UNIT."""
OF_ONE = Moved(off=Fraction(1), same_x=Fraction(2), anywhere=Fraction(2))


def totals(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for all sums of a stratum."""
    return NoisyQuery("sums of capped weights", OF_ONE.times(UNIT), scale, times=times)


def scale_of(job: Job) -> Fraction:
    """Scale of the noise on a set's sums, in units."""
    return UNIT * OF_ONE.by(neighbour_of(job)) / record_epsilon(job, job.epsilon_per_set)
