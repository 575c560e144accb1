"""Distance by which neighbouring files move counts of bins, and the noise needed."""

from __future__ import annotations

from dpdist.job import Job
from dpdist.privacy.guarantees import Moved, NoisyQuery, neighbour_of, record_epsilon


def bin_counts(job: Job) -> NoisyQuery:
    """The query for the counts of all bins, once for each set.

    A record is in one bin. Switched off, it changes that count by 1. Exchanged, it leaves one bin and enters another: two
    records with outcomes in different bins attain 2.
    """
    epsilon = record_epsilon(job, job.epsilon_per_set)
    return NoisyQuery.losing("counts of bins", Moved.of(1), epsilon, neighbour_of(job), job.synthetic_sets)
