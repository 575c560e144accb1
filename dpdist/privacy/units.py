"""Divides the budget of a privacy unit that has several records: computes the part of one record (`privacy_unit`).

A unit has at most k records that count. A file with a larger unit is refused, or records of the unit beyond the first k
in the file's order are left out. No other unit has a part in these records. Neighbours then differ in at most k records.
Mechanisms are calibrated to one record, at ε/k or ρ/k²:

- Sums with discrete Laplace noise. One record moves the sums by at most D in the mechanism's norm. So k records move them
  by at most kD (triangle inequality). Noise of scale D/(ε/k) = kD/ε has sensitivity kD and gives ε. It makes no
  difference in which cells, bins, strata or tables the k records are. Attained: k records on one ray.
- Sums with discrete Gaussian noise. The same in L2: at most kD, and σ² = D²/(2ρ/k²) = (kD)²/2ρ: ρ-zCDP.
- Clamped posteriors. One record's factor lies in [e^−M, e^M], switched off it is 1: k records change a likelihood by a
  factor within e^(±kM), and with it the normalising constant: 2kM = ε at M = ε/2k. Exchanged, each changes by e^(±2M):
  4kM = ε at M = ε/4k.
- Stages and sets that each cost a part of ε for one file cost that part for a unit, because each budget is divided by k.

Weights computed from the file itself have no such bound for one record, let alone k: jobs of asymptotic mechanisms are
refused a unit (dpdist.job.checks.units).
"""

from __future__ import annotations

from fractions import Fraction

from dpdist.job import Job


def record_epsilon(job: Job, epsilon: Fraction) -> Fraction:
    """Returns the ε that one record may lose, from a part of the release's ε, which bounds a unit's loss."""
    return epsilon / job.most_records


def moves(job: Job) -> int:
    """Returns how often a neighbour changes the sums of a record's cells.

    A record exchanged for any other leaves one cell and enters another, so there are two changes. Otherwise it stays in
    one cell, whatever its values.
    """
    return 2 if job.budget.exchange == "anywhere" else 1


def record_rho(job: Job, rho: Fraction) -> Fraction:
    """Returns the ρ that one record may lose, from the release's ρ, which bounds a unit's loss."""
    return rho / job.most_records**2
