"""Sensitivity of sums of residuals over the cells of several tables, with its proof.

In every measured table a record is in one cell, and adds u = ((r − c)/L, ρ_1/H_1, …, ρ_K/H_K) to its sums, times min(1,
1/‖u‖₁). r, ρ, c, L and H follow from its own values and public numbers: the prediction, the limits, and for tables
after the first the noisy sums of all records, which are released. So the L1 norm of what it adds is at most 1, whatever
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

from dpdist.core.records import UNIT
from dpdist.job import Job, NoiseName
from dpdist.privacy.guarantees import Moved, NoisyQuery, neighbour_of, record_epsilon, record_rho, root_above

MOVED = Moved.of(UNIT)
"""Distance by which neighbouring files change a measurement in L1; the L2 distance is no larger."""
NAME = "sums of residuals by tables' cells"
COUNTS = "counts of bins"


def counts_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for counts of bins of every column, with the part of the budget that the job gives them."""
    assert job.reference is not None
    assert job.reference.histograms is not None
    columns = (job.survey.measured_weight is not None) + len(job.outcomes)
    distances = Moved.of(columns)
    if law == "laplace":
        epsilon = record_epsilon(job, job.reference.histograms.epsilon)
        return NoisyQuery.losing(COUNTS, distances, epsilon, neighbour_of(job))
    roots = Moved(*map(root_above, distances))
    return NoisyQuery.losing_rho(COUNTS, roots, record_rho(job, job.rho.histograms), neighbour_of(job))


def joint_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for all measurements together, as one measurement with the whole budget."""
    if law == "gaussian":
        query = NoisyQuery.losing_rho(NAME, MOVED, record_rho(job, job.rho.tables), neighbour_of(job))
    else:
        query = NoisyQuery.losing(NAME, MOVED, record_epsilon(job, job.epsilon.tables), neighbour_of(job))
    return replace(query, in_parts=True)
