"""For `table_package.query` and `post`: sensitivity of sums over groups of base cells, by several measurements.

A record of a base cell has v = min(w, U)/U and a = 1 − v. Every outcome k has c_k, centred and clipped to ±1, and q_k = v
c_k, so that |q_k| ≤ v. In whole units of 1/UNIT all of this holds exactly. A measurement takes f a and, for every outcome,
λ_k(g_k q_k + h_k v), with whole factors in units of 1/FACTOR_STEPS. Here 0 ≤ f ≤ 1, g_k + |h_k| ≤ 1 and Σ λ_k = 1. A record
is in one group of each measurement. So its L1 norm is at most a + Σ λ_k(g_k + |h_k|) v ≤ a + v = 1, and its L2 norm is not
larger. Switching a record off moves a measurement by at most 1. Other values at the same x move it by at most 2, attained
in L1 by all c_k = 1 and all c_k = −1 at w ≥ U where all g_k = 1. So does any other record, in another group.

Without weights, and where they are public (`survey.design_weights`), no record's weight is read: U is the base cell's
weight, v = 1 and a = 0. There is no sum of a, and no λ_k h_k v, which would be public. A measurement is λ_k g_k c_k of
every outcome. Its L1 norm is at most Σ λ_k g_k ≤ 1. So the distances stay 1 and 2, attained by the same pair at any weight:
all c_k = 1 against none, or against all c_k = −1.

Where numbers of records are secret, a measurement takes f a and, for every outcome, λ_k(f v + s_k)/2 and λ_k(f v −
s_k)/2 with s_k = g_k q_k + h_k v. Their L1 norm is f a + Σ λ_k max(f v, |s_k|) ≤ a + v = 1. So adding or removing a
record moves a measurement by at most 1, attained by w ≥ U where f = 1. Any other record in its place moves it by at most
2, attained in two groups (docs/methods.md, §9c).

Protected predictors (`predictors: {protect: {}}`) are these neighbours: a whole record there or not, or any other in its
place, table columns included. Nothing else depends on the file: limits, expected numbers and parts follow from the
reference, and every cross of levels is a cell. So the declaration costs nothing beside the sums. A subset of columns would
leave counts by the others exact. These are constant over its neighbours, but this release estimates them. It is refused.
Under a privacy unit of k records, sums move by k times as much, attained by k like records.

With one outcome the pair of public sizes attains 2 in L2, too. With several, Σ λ_k² = 1 would do under Gaussian noise,
and would leave less noise on outcomes. The parts λ of the L1 norm serve both laws.

All measurements share one budget: each loses its part, and the parts sum to 1 (`NoisyQuery.share`). The parts, and the
number of measurements, follow from the reference and public sizes. The joint loss does not depend on them: it is that
of one measurement with the whole budget (docs/methods.md, §9c). One pair of records attains it, where its base cell has
g = 1 in every measurement.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dpdist.core.records import UNIT
from dpdist.job import Job, NoiseName
from dpdist.packages.shares import Law
from dpdist.packages.strategy import FACTOR_STEPS
from dpdist.privacy.queries import Moved, NoisyQuery, neighbour_of, record_epsilon, record_rho

WHOLE = UNIT * FACTOR_STEPS
"""Measurements are whole multiples of 1/WHOLE."""
MOVED = Moved(*(Fraction(distance * WHOLE) for distance in (1, 2, 2)))
"""Distance by which neighbouring files change a measurement in L1; the L2 distance is no larger."""
NAME = "sums over groups of base cells"


def joint_query(job: Job, law: NoiseName) -> NoisyQuery:
    """The query for all measurements together, as one measurement with the whole budget."""
    if law == "gaussian":
        whole = NoisyQuery.losing_rho(NAME, MOVED, record_rho(job, job.rho_of_tables), neighbour_of(job))
    else:
        whole = NoisyQuery.losing(NAME, MOVED, record_epsilon(job, job.epsilon_of_tables), neighbour_of(job))
    return replace(whole, in_parts=True)


def law_of(joint: NoisyQuery) -> Law:
    """The facts on noise that the choice of measurements needs: its variance, in squared records, by part of the
    budget.
    """
    exponent = 1.0 / 3.0 if joint.law == "laplace" else 0.5
    return Law(lambda part: joint.share(joint.name, part).variance / WHOLE**2, exponent)
