"""For `weight_regularisation.query` and `post`: sensitivity, the split of ε over stages, the choice of λ.

A record has a weight w ∈ [0, U] and an outcome y ∈ [L, H], with public bounds. Let u = (y − c)/R ∈ [−1, 1], where c and R
are the middle and the half width of [L, H]. The weight becomes w_λ = (1 − λ)w + λt, where t is a common weight. It is at
most U_λ = (1 − λ)U + λt. All sums are of whole multiples of 1/UNIT. Δ is the L1 sensitivity of a stage's sums.

Stage 1 releases Σ w/U for the choice of t, if the job does not name t. A record contributes a value in [0, 1], so Δ =
1. The noisy sum over the public number of records, times U, is the mean weight. It is clipped to the weight's bounds
and to at least U/REGULARISATION_STEPS, so that t > 0 and U_λ > 0.

Stage 2 releases two distances for the choice of λ, if the job does not name λ. With a = (w − t)/U and b = au, the
distances A and B are the sums over cells of |Σa| and |Σb|. By the triangle inequality, A and B change by at most the L1
norm of the change of (a, b). Switching off, adding or removing a record changes them by |a| + |b| ≤ 2 max(t, U − t)/U ≤
2. An exchange with both weights on one side of t changes them by |a − a'| + |b − b'| ≤ 2 max(|a|, |a'|) ≤ 2. With
weights on both sides of t it changes them by at most 2(|a| + |a'|) ≤ 2 (t + U − t)/U = 2. So Δ = 2 for both sums
together. An exchange of weight U for weight 0 attains this, with u = 1, in a cell whose other records have Σa and Σb of
at least t/U.

Stage 3 gives the cells' sums of (w_λ, w_λ u) over U_λ. For any t > 0 and λ these are a strict Laplace table's pairs, so Δ
= 2.

Stages are released in turn and cost the sum of their parts of ε (adaptive composition). A record that moves to another
cell changes the sums by twice as much, so half of ε is used where such moves are covered. The choice of λ is a function
of released figures.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dpdist.core.records import UNIT, Floats
from dpdist.job import Job
from dpdist.mechanisms.weight_regularisation.spec import WeightRegularisation
from dpdist.privacy.cell_sums import SENSITIVITY
from dpdist.privacy.queries import Moved, NoisyQuery, moves, record_epsilon

MOVED_BY = (1, SENSITIVITY, SENSITIVITY)
"""Largest change by one record before multiplication by UNIT, for each stage."""
STAGES = ("sum of weights", "distances from the common weight", "sums of base cells")


def stage(number: int, scale: Fraction) -> NoisyQuery:
    """The query of a stage, counted from 1. A record that moves to another cell moves twice as much."""
    distance = MOVED_BY[number - 1] * UNIT
    return NoisyQuery(STAGES[number - 1], Moved(*map(Fraction, (distance, distance, 2 * distance))), scale)


MEAN, CHOICE = Fraction(1, 20), Fraction(1, 10)
"""Parts of ε for the common weight and for the choice of λ, where the job does not fix them."""
REGULARISATION_STEPS = 100
"""λ is a multiple of 1/REGULARISATION_STEPS."""


def left(mean: bool, choice: bool) -> Fraction:
    """The part of ε for the cells' sums; `mean` and `choice` say which earlier stages are run."""
    return 1 - MEAN * mean - CHOICE * choice


def scale_of(part: Fraction, sensitivity: int, epsilon: Fraction) -> Fraction:
    """Scale of the noise, in units of 1/UNIT, of a stage that has a part of ε."""
    return Fraction(sensitivity * UNIT) / (part * epsilon)


def scales_of(job: Job, settings: WeightRegularisation) -> tuple[Fraction | None, Fraction | None, Fraction]:
    """Scales of the noise of the three stages, in units of 1/UNIT; None for a stage that the job fixes."""
    epsilon = record_epsilon(job, job.epsilon_per_set) / moves(job)
    mean, choice = settings.towards is None, settings.regularisation is None
    return (
        scale_of(MEAN, MOVED_BY[0], epsilon) if mean else None,
        scale_of(CHOICE, MOVED_BY[1], epsilon) if choice else None,
        scale_of(left(mean, choice), MOVED_BY[2], epsilon),
    )


def least_error(squares: float, shares: Floats, noise: float, common: float) -> float:
    """The λ with the least predicted squared error over all cells.

    `squares` is A² + B², in squared units of U. `shares` is each cell's share of the sample. `noise` is the noise scale
    of both sums of a cell at λ = 0, in units of U. `common` is t/U. A cell's bias is predicted as λ times A or B times
    its share of the sample, as if all records had equal bias. The noise on each of the two sums has the variance 2
    (noise · U_λ/U)².
    """
    step = np.arange(REGULARISATION_STEPS + 1) / REGULARISATION_STEPS
    spread = 4.0 * len(shares) * (noise * (1.0 - step * (1.0 - common))) ** 2
    return float(step[int(np.argmin(step**2 * squares * float((shares**2).sum()) + spread))])
