"""Distance by which neighbouring files move counts of bins, and the noise needed."""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job
from dpdist.privacy.guarantees import Moved, NoisyQuery, count_scale, record_epsilon


def bin_counts(scale: Fraction, times: int = 1) -> NoisyQuery:
    """The query for the counts of all bins.

    A record is in one bin. Switched off, it changes that count by 1. Exchanged, it leaves one bin and enters another: two
    records with outcomes in different bins attain 2.
    """
    return NoisyQuery("counts of bins", Moved(Fraction(1), Fraction(2), Fraction(2)), scale, times=times)


def scale_of(job: Job) -> Fraction:
    """Scale of the noise on the counts of a set."""
    return count_scale(record_epsilon(job, job.epsilon_per_set), job.budget.adjacency)
