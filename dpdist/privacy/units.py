"""Divides the budget of a privacy unit that has several records: computes the part of one record (`privacy_unit`).

A unit has at most k records that count; a file with a larger one is refused, or its records beyond the first k in the
file's order are left out, in which no other unit has a part. Neighbours then differ in at most k records. Mechanisms are
calibrated to one record, at ε/k or ρ/k²:

- Sums with discrete Laplace noise. One record moves them by at most D in the mechanism's norm, so k of them by at most kD
  (triangle inequality), and noise of scale D/(ε/k) = kD/ε is that of sensitivity kD: ε. It makes no difference in which
  cells, bins, strata or tables the k records are. Attained: k records on one ray.
- Sums with discrete Gaussian noise. The same in L2: at most kD, and σ² = D²/(2ρ/k²) = (kD)²/2ρ: ρ-zCDP.
- Clamped posteriors. One record's factor lies in [e^−M, e^M], switched off it is 1: k records change a likelihood by a
  factor within e^(±kM), and with it the normalising constant: 2kM = ε at M = ε/2k. Exchanged, each changes by e^(±2M):
  4kM = ε at M = ε/4k.
- Stages, and sets, that each cost a part of ε for one file cost that part for a unit: their budgets are all divided by k.

Weights computed from the file itself have no such bound for one record, let alone k: jobs of asymptotic mechanisms are
refused a unit (dpdist.job.checks.units).
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job


def record_epsilon(job: Job, epsilon: Fraction) -> Fraction:
    """The ε that one record may lose, from a part of the release's ε, which bounds a unit's loss."""
    return epsilon / job.most_records


def moves(job: Job) -> int:
    """How often a neighbour changes the sums of a cell that a record is in: it leaves one and enters another if it is
    exchanged for any other, and else it is in one, whatever its values."""
    return 2 if job.budget.exchange == "anywhere" else 1


def record_rho(job: Job, rho: Fraction) -> Fraction:
    """The ρ that one record may lose, from the release's ρ, which bounds a unit's loss."""
    return rho / job.most_records**2
