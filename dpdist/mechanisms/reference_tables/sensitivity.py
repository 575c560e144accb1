"""For `reference_tables` and `sanitized_lognormal`: sensitivity of clipped sums of disjoint cells, and of histogram counts.

A record of a base cell has a weight w and outcomes y_k, k = 1 … K. Its contribution depends on v = clip(w, 0, U)/U ∈
[0, 1] and c_k = clip((y_k − μ_k)/R_k, −1, 1). The limits μ, U and R come from the reference and public sizes alone.
If weights are public, no record's weight is read, and v = 1.

Cone (public sizes): the statistics are (1 − v, vc_1, …, vc_K). Because |vc_k| ≤ v, the L1 norm is at most (1 − v) + v =
1, if each vc_k is divided by K. This is attained if all |c_k| = 1, and if v = 0. A record that is switched off
contributes 0, and so has distance at most 1. So zero_out costs at most ε, with Laplace noise of scale 1/ε on the first
sum and K/ε on the others. An exchange of (w, y) at the same x is two such changes, attained by opposite signs, so
substitution needs twice the scales.

Simplex (secret sizes): the statistics are (1 − v, v(1 + c_k)/2, v(1 − c_k)/2) ≥ 0. For every k the last two sum to v.
Adding or removing a record moves the sums by 1 in the same norm, so the scales stay the same. Exchanging a record for
any other, in any cell, is one removal and one addition. This is at most 2, attained between two cells and within one,
and needs twice these scales (`exchange: anywhere`).

A record enters one of the disjoint cells. Margins are sums of cells, so a whole table costs one ε. Rounding to
multiples of 1/UNIT preserves these bounds. Discrete noise on exact whole-number sums then has no floating-point error.

Histograms may replace a reference. Groups of cells share histograms; the groups partition the cells, by public sizes. A
record is in one bin of each of its group's h histograms, whatever its values. Switching it off changes h counts by 1,
so noise of scale h/ε costs ε. Exchanging it changes 2h counts by 1, so the scale is 2h/ε. The later table costs at most
the remaining budget, whatever the histograms show (adaptive composition).

Before the histograms, typical weights may be learned. The bin of a record's weight gives the weight a position p ∈ [−½,
½]. Switching a record off moves sums of positions, over all records or by level, by at most ½, attained at p = ±½.
Exchanging it moves them by at most 1, attained by opposite ends, or by p = ½ at two levels. The score of a set of
columns is Σ |S_l − n_l m|, less a public constant. S_l are sums of positions by level l, n_l are public sizes, and m
was released. By the triangle inequality, a score changes by as much as the sums, attained where S_l ≥ n_l m in both
files. Only the index of the largest noisy score is released. Differences of scores change by twice as much, so noise of
scale 2Δ/ε costs ε (proof: `weighted_marginals/sensitivity.py`).

Under Gaussian noise L2 norms count. Counts of h histograms move by √h, or by √(2h) where a record is exchanged. Sums of
positions move as above: one level changes. C scores move by at most Δ each, so by √C Δ together. The noisy scores have
that loss, and the chosen index follows from them.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dpdist.core.records import UNIT, Codes, Floats, Ints
from dpdist.job import Adjacency, Job, NoiseName
from dpdist.privacy.queries import Moved, Neighbour, NoisyQuery, record_epsilon, record_rho, root_above
from dpdist.reference.limits import Limits

SENSITIVITY: dict[Adjacency, int] = {"zero_out": 1, "add_remove": 1, "substitution": 2}
"""L1 distance of the sums of neighbouring files, before multiplication by UNIT.

The cone serves zero_out and substitution at the same x. The simplex serves add_remove, and substitution in any cell.
"""


MOVED = Moved(*(Fraction(SENSITIVITY[adjacency] * UNIT) for adjacency in ("zero_out", "substitution", "substitution")))
"""The distances by kind of neighbour, times UNIT."""


def clipped_sums(scale: Fraction) -> NoisyQuery:
    """The query for all sums of cells; `scale` is the noise scale of Σ(1 − v)."""
    return NoisyQuery("clipped sums of base cells", MOVED, scale)


def _parts(limits: Limits, cell: Codes | Ints, weight: Floats, outcome: Floats) -> tuple[Floats, Floats, Floats]:
    """1 − v in whole units of 1/UNIT, (record, 1); v, (record, 1); and c, (record, outcome)."""
    v, c = limits.clipped(cell, weight, outcome)
    return np.rint(UNIT * (1.0 - v))[:, None], v[:, None], c if c.ndim == 2 else c[:, None]


def cone(limits: Limits, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
    """(1 − v, vc_1, …) of every record in whole units of 1/UNIT, (record, 1 + outcome)."""
    left, v, c = _parts(limits, cell, weight, outcome)
    return np.column_stack([left, np.clip(np.rint(UNIT * v * c), left - UNIT, UNIT - left)])


def simplex(limits: Limits, cell: Codes | Ints, weight: Floats, outcome: Floats) -> Floats:
    """(1 − v, v(1 + c_1)/2, …, v(1 − c_1)/2, …) of every record in whole units of 1/UNIT, (record, 1 + 2 outcome)."""
    left, v, c = _parts(limits, cell, weight, outcome)
    above = np.clip(np.rint(UNIT * v * (1.0 + c) / 2.0), 0.0, UNIT - left)
    return np.column_stack([left, above, UNIT - left - above])


def noise_scales(epsilon: Fraction, adjacency: Adjacency, outcomes: int = 1) -> tuple[Fraction, Fraction]:
    """Scales of the noise, in units of 1/UNIT, on Σ(1 − v) and on every other sum; one budget covers the whole table."""
    scale = Fraction(SENSITIVITY[adjacency] * UNIT) / epsilon
    return scale, outcomes * scale


def noise_scale(epsilon: Fraction, adjacency: Adjacency) -> Fraction:
    """The scale of the noise on every sum, where there is one outcome."""
    return noise_scales(epsilon, adjacency)[0]


def histograms_of(job: Job) -> int:
    """Number of histograms that a record enters: of the weight, and of each outcome.

    If they update an earlier release, an outcome with two values has none.
    """
    outcomes = job.outcome_columns.values()
    shaped = [column for column in outcomes if not column.two_valued] if job.refreshes else list(outcomes)
    return (job.survey.measured_weight is not None) + len(shaped)


def histogram_counts(number: int, amount: Fraction, adjacency: Adjacency, law: NoiseName = "laplace") -> NoisyQuery:
    """The query for the counts of that many histograms, which loses this ε, or ρ under Gaussian noise.

    A record is in one bin of each histogram: its change has the L1 norm of the number of changed counts, and the L2 norm
    of its root, rounded up.
    """
    changed = Moved(*map(Fraction, (number, 2 * number, 2 * number)))
    return _losing("counts of histograms", changed, Moved(*map(root_above, changed)), amount, adjacency, law)


def _losing(name: str, l1: Moved, l2: Moved, amount: Fraction, adjacency: Adjacency, law: NoiseName) -> NoisyQuery:
    neighbour: Neighbour = "same_x" if adjacency == "substitution" else "off"
    if law == "laplace":
        return NoisyQuery.losing(name, l1, amount, neighbour)
    return NoisyQuery.losing_rho(name, l2, amount, neighbour)


def first_stage(job: Job) -> tuple[NoisyQuery, ...]:
    """All that histograms of the current file ask of a stratum, with the steps before them."""
    before, rest = shares_of_histograms(job)
    counts = histogram_counts(histograms_of(job), rest, job.budget.adjacency, law_of(job))
    return (*typical_weights(job), counts) if all(before) else (counts,)


def typical_weights(job: Job) -> tuple[NoisyQuery, NoisyQuery, NoisyQuery]:
    """The queries for the total of positions, for the choice of columns, and for sums by their levels."""
    (of_total, of_choice, of_levels), _ = shares_of_histograms(job)
    adjacency, law, columns = job.budget.adjacency, law_of(job), len(job.cell_columns)
    candidates = 1 + columns + columns * (columns - 1) // 2
    choice = best_columns(of_choice, adjacency, law, candidates)
    return positions(of_total, adjacency, law), choice, positions(of_levels, adjacency, law)


def law_of(job: Job) -> NoiseName:
    """The law of the noise on histograms, and on what comes before them."""
    return "gaussian" if job.mechanism.gaussian else "laplace"


OF_TYPICAL_WEIGHTS = (Fraction(1, 60), Fraction(1, 30), Fraction(1, 5))
"""Shares of the histograms' ε for the total of positions, for the choice of columns, and for sums by their levels."""


def shares_of_histograms(job: Job) -> tuple[tuple[Fraction, Fraction, Fraction], Fraction]:
    """The ε of one record for each step of typical weights, and for the counts of histograms; ρ under Gaussian noise.

    Nothing is learned without a protected weight, if every stratum is one cell, or if histograms update an earlier release.
    """
    assert job.reference is not None
    assert job.reference.paid is not None
    gaussian = job.mechanism.gaussian
    epsilon = record_rho(job, job.rho_of_histograms) if gaussian else record_epsilon(job, job.reference.paid.epsilon)
    if not job.on_histograms or job.survey.measured_weight is None or set(job.cell_columns) <= set(job.strata):
        return (Fraction(0), Fraction(0), Fraction(0)), epsilon
    of_total, of_choice, of_levels = (epsilon * share for share in OF_TYPICAL_WEIGHTS)
    return (of_total, of_choice, of_levels), epsilon - of_total - of_choice - of_levels


POSITION = Moved(Fraction(UNIT, 2), Fraction(UNIT), Fraction(UNIT))
"""L1 distance of sums of positions of neighbouring files, in units of 1/UNIT."""


def positions(amount: Fraction, adjacency: Adjacency, law: NoiseName = "laplace") -> NoisyQuery:
    """The query for sums of positions of weights, which loses this ε, or ρ. A record changes one sum."""
    return _losing("positions of weights", POSITION, POSITION, amount, adjacency, law)


def best_columns(amount: Fraction, adjacency: Adjacency, law: NoiseName = "laplace", candidates: int = 1) -> NoisyQuery:
    """The query for the columns that explain the weight, which loses this ε, or ρ.

    A neighbour changes differences of scores by twice as much as a score. Under Gaussian noise all noisy scores together
    have the loss: their L2 distance is that of a score times the root of their number, rounded up.
    """
    root = root_above(Fraction(candidates))
    away = Moved(*(root * distance for distance in POSITION))
    return _losing("columns of typical weights", POSITION.times(2), away, amount, adjacency, law)
