"""Sensitivity of sums of residuals over the cells of several tables, with its proof.

In every measured table a record is in one cell, and adds u = ((r − c)/L, ρ_1/H_1, …, ρ_K/H_K) to its sums, times min(1,
1/‖u‖₁). r, ρ, c, L and H follow from its own values and public numbers: the prediction, the limits, and for tables
after the first the noisy sums before them, which are released. So the L1 norm of what it adds is at most 1, whatever
its values are, and in whole units of 1/UNIT exactly so: coordinates are rounded towards 0. Switching the record off
leaves nothing, and moves a measurement by at most 1 in L1: attained by w so large that |r − c| ≥ L with ρ = 0 (the
outcome whose w(y − μ) is m_w(m − μ)). Other values at the same x move it by at most 2, attained by r − c ≥ L and r − c
≤ −L, or by outcomes on both sides whose ‖u‖₁ ≥ 1 comes from ρ alone. The L2 norm is not larger than the L1 norm, so the
distances hold under Gaussian noise as well. A privacy unit of k records moves sums by k times as much.

Without weights, and where they are public (`survey.design_weights`), no record's weight is read and r − c = 0, so that
only ρ adds to u. The distances stay 1 and 2: attained by outcomes whose |ρ| ≥ H, against none, or on both sides.

Where numbers of records are secret, u_0 = w/L and u_k = w(y_k − μ_k)/H_k: prediction and c are left out, so that a record
that is not there adds what one of weight 0 adds, nothing. What is measured is (u_0/K ± u_k)/2 of each of K outcomes, scaled
until its L1 norm, Σ_k max(|u_0|/K, |u_k|), is at most 1. Adding or removing a record moves a measurement by at most 1,
attained by w ≥ L with y = μ. Any other record in its place is one removed and one added: at most 2, attained in L1 by two
such records of different cells, or in one cell by w = L with all u_k = 1/K and all u_k = −1/K, as for other values at the
same x. The L2 distance is no larger. The number of records is measured on its own, and moved by 1, or by 0. Cells,
expected numbers and limits follow from job, reference and earlier noisy sums.

Without a reference, noisy counts of bins come first. A record adds 1 to one bin of each of h columns, whatever its values
are: the weight, if it is measured, and every outcome. Switching it off moves h counts by 1, so the L1 distance is h and
the L2 distance √h. Other values move at most 2h counts by 1, attained by values in other bins of every column: 2h and
√(2h). Bins follow from public bounds alone. The counts have a part of the budget of their own (`reference.histogram`).

If weights are measured, quadrant sums follow. For each of K outcomes, a record adds 1 if its weight and its outcome are on
the same side of thresholds that the noisy counts fix, and −1 if not. So it adds ±1 to K sums: without it they move by K in
L1 and √K in L2, and under other values by at most 2K and 2√K, attained by a weight on the other side.

Without a reference, every table's sums of scores come before its residuals. Each of J scores of a record is a function
of one of its values, from −1 to 1, that the noisy counts fix, and is divided by J. So the L1 norm of what a record adds is
at most 1, and the distances are 1 and 2: attained by values with all scores at 1, against none, and where every column
has one score, against values with all at −1.

Under a large budget, records beyond each table's limits are counted before its sums. A record is in one cell of a table,
and adds 1/J to one count of each of J coordinates of u, by the coordinate's size, or to none. So the L1 norm of what it
adds is at most 1, and the distances are 1 and 2, as those of sums: attained where all coordinates are beyond limits, and by
two values of which all have different sizes.

Where numbers of records are public and limits clip, the number of records with large weights is measured. A record adds 1
if its weight is above a public threshold, and −1 if it is not. Switching it off moves the number by 1, and another weight
moves it by at most 2, attained by weights on both sides of the threshold.

All other measurements share one budget: each loses its part, and the parts sum to 1 (`NoisyQuery.share`). Limits of later
tables depend on the first noisy sums: sequential composition allows that, since the distance is 1 under any limits.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Job, NoiseName
from dpdist.privacy.guarantees import (
    Moved,
    NoisyQuery,
    neighbour_of,
    query_of_tables,
    record_epsilon,
    record_rho,
    root_above,
)

MOVED = Moved.of(UNIT)
"""Distance by which neighbouring files change a measurement in L1; the L2 distance is no larger."""
NAME = "sums of residuals by tables' cells"
COUNTS, QUADRANTS = "counts of bins", "quadrant sums"
PART_OF_QUADRANTS = Fraction(1, 10)
"""Part of the budget of noisy counts that quadrant sums have."""


def counts_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for counts of bins of every column."""
    weighted = job.survey.measured_weight is not None
    distances = Moved.of(weighted + len(job.outcomes))
    part = 1 - PART_OF_QUADRANTS * weighted
    return _before_tables(job, law, COUNTS, distances, Moved(*map(root_above, distances)), part)


def quadrants_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for quadrant sums of the weight and every outcome."""
    outcomes = len(job.outcomes)
    return _before_tables(
        job, law, QUADRANTS, Moved.of(outcomes), Moved.of(root_above(Fraction(outcomes))), PART_OF_QUADRANTS
    )


def _before_tables(job: Job, law: NoiseName, name: str, moved: Moved, in_l2: Moved, part: Fraction) -> NoisyQuery:
    """A query with this part of the budget that the job gives to noisy counts, by its distances in L1 and in L2."""
    assert job.reference is not None
    assert job.reference.histograms is not None
    if law == "laplace":
        return NoisyQuery.losing(
            name, moved, part * record_epsilon(job, job.reference.histograms.epsilon), neighbour_of(job)
        )
    return NoisyQuery.losing_rho(name, in_l2, part * record_rho(job, job.rho.histograms), neighbour_of(job))


def joint_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for all measurements together, as one measurement with the whole budget."""
    return replace(query_of_tables(job, NAME, MOVED, law), in_parts=True)
