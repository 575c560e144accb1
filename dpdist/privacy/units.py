"""Computes what one record may lose, where the budget bounds the loss of a privacy unit with several records.

At most k records of a unit count. A file with a larger unit is refused, or records after the unit's first k in the file's
order are left out, which changes no other unit's records. So neighbours differ in at most k records. Mechanisms are
calibrated to one record, at ε/k or ρ/k²:

- Sums with discrete Laplace noise. One record moves the sums by at most D in the mechanism's norm, so k records move them
  by at most kD (triangle inequality). Noise of scale D/(ε/k) = kD/ε therefore gives ε, in whichever cells, bins, strata or
  tables the records are. k records that move the sums in one direction attain it.
- Sums with discrete Gaussian noise. Likewise, k records move the sums by at most kD in L2. With σ² = D²/(2ρ/k²) = (kD)²/2ρ
  this gives ρ-zCDP.
- Clamped posteriors. One record's factor lies in [e^−M, e^M], and is 1 if it is switched off. So k records change the
  likelihood, and the normalising constant, by a factor within e^(±kM): 2kM = ε at M = ε/2k. Exchanged records change it by
  up to e^(±2M) each: 4kM = ε at M = ε/4k.
- Stages and sets that each cost a part of ε cost the same part for a unit, because each part is divided by k.

If weights are computed from the file itself, no such bound holds even for one record. So jobs of asymptotic mechanisms may
have no unit (dpdist.job.checks.columns).
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job


def record_epsilon(job: Job, epsilon: Fraction) -> Fraction:
    """The ε that one record may lose, from a part of the release's ε, which bounds a unit's loss."""
    return epsilon / job.most_records


def moves(job: Job) -> int:
    """How many cells a neighbour may change for each record.

    An exchange for any other record changes two, the one that is left and the one that is entered. Otherwise a record stays
    in one cell, whatever its values.
    """
    return 2 if job.budget.exchange == "anywhere" else 1


def record_rho(job: Job, rho: Fraction) -> Fraction:
    """The ρ that one record may lose, from a part of the release's ρ, which bounds a unit's loss."""
    return rho / job.most_records**2
