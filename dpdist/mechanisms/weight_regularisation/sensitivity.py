"""Weight regularisation: what one record moves, how ε is shared, and how far weights are moved.

Public: bounds w ∈ [0, U] and y ∈ [L, H], u = (y − c)/R ∈ [−1, 1] as for strict Laplace tables. A record's weight becomes
w_λ = (1 − λ)w + λt, t a common weight, at most U_λ = (1 − λ)U + λt. All sums are of whole multiples of 1/UNIT.

1. t, if the job names none: Σ w/U, of which a record has a part in [0, 1]: Δ = 1. Over the public number of records it is a
   mean, which is set into the weight's bounds.
2. λ, if the job names none. With a = (w − t)/U and b = au, A and B are the sums over cells of |Σa| and |Σb|. By the
   triangle inequality a record moves A and B together by no more than (a, b) in L1. Switched off, added or removed:
   |a| + |b| ≤ 2 max(t, U − t)/U ≤ 2. Exchanged: if both weights lie on one side of t, |a − a'| + |b − b'| ≤
   2 max(|a|, |a'|) ≤ 2; otherwise at most 2(|a| + |a'|) ≤ 2 (t + U − t)/U = 2. So Δ = 2 for both sums together. Attained
   by weights U and 0 with u = 1, in a cell of its own.
3. The cells' sums of (w_λ, w_λ u) over U_λ: for any t and λ these are a strict Laplace table's pairs, so Δ = 2.

The stages are released one after another and cost the sum of their parts of ε (adaptive composition). A move to another
cell doubles what a record moves: ε comes halved where it is covered. The choice of λ is a function of what was released.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from dpdist.core.records import Floats
from dpdist.mechanisms.laplace_cells.sensitivity import SENSITIVITY, UNIT

MOVED_BY = (1, SENSITIVITY, SENSITIVITY)
"""What a record moves the sum of weights by, and both distances together, in units."""
MEAN, CHOICE = Fraction(1, 20), Fraction(1, 10)
"""Parts of ε for the common weight and for the choice of λ, where the job leaves them open."""
REGULARISATION_STEPS = 100
"""λ is a multiple of 1/REGULARISATION_STEPS."""


def left(mean: bool, choice: bool) -> Fraction:
    """The part of ε that is left for the cells' sums."""
    return 1 - MEAN * mean - CHOICE * choice


def scale_of(part: Fraction, sensitivity: int, epsilon: Fraction) -> Fraction:
    """Scale of the noise, in units, of a stage that has a part of ε."""
    return Fraction(sensitivity * UNIT) / (part * epsilon)


def least_error(squares: float, shares: Floats, noise: float, common: float) -> float:
    """λ of the least predicted squared error over all cells.

    `squares`: A² + B², in units of U; `shares`: each cell's share of the sample; `noise`: the scale that both sums of a
    cell have at λ = 0, in units of U; `common`: t/U. A cell's bias is taken to be λ times A or B times its share, as if
    every record had the same. Noise has variance 2 (noise · U_λ/U)² on each of two sums.
    """
    step = np.arange(REGULARISATION_STEPS + 1) / REGULARISATION_STEPS
    spread = 4.0 * len(shares) * (noise * (1.0 - step * (1.0 - common))) ** 2
    return float(step[int(np.argmin(step**2 * squares * float((shares**2).sum()) + spread))])
