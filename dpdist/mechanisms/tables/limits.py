"""Limits of residual sums by table cell, from public residual laws and sizes.

In a cell a record adds u = ((r − c)/L, ρ_k/H_k), scaled into the L1 unit ball: u · min(1, 1/‖u‖₁). Here r = w − m_w,
and ρ_k = w(y_k − μ_k) − m_w(m_k − μ_k) with the cell's predicted mean μ_k. `table_law` chooses c, L and H.

Where numbers of records are secret, m_w is left out of r and ρ, and c is 0: a record that is not there adds nothing. What
is clipped of n records is n times its mean. n is secret, but goes with the count: the part of the expected clipped sums
over the count, `hidden`, is taken from rows of the posterior (`system`), and only what is left of it is an error. Weights
are there in every record, so that u is measured in pairs (u_0/K + u_k)/2 and (u_0/K − u_k)/2. Their L1 norm is Σ_k
max(|u_0|/K, |u_k|), below ‖u‖₁: with one outcome this leaves half the variance of noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from dpdist.core.records import UNIT, Codes, Floats, Ints, Singles
from dpdist.mechanisms.tables.prediction import Prediction
from dpdist.mechanisms.tables.workload import AddedCells

WIDER, STEPS_WIDER = 4.0, 12
"""Factor and number of the sizes by which records beyond limits are counted under a large budget."""


@dataclass(frozen=True)
class TableLimits:
    """Limits of a table's cells. `centre` and `weight` are c and L, (cell,); `outcome` is H, (cell, outcome).

    `mean` is μ, (cell, outcome). `beyond` is the expected clipped part of a record's residuals, (cell, 1 + outcome), and
    `loss` the variance of the clipped part of the cell's sums about it.
    """

    cell: Codes
    """The cell of every base cell."""
    size: Floats
    """Public numbers of records, (cell,)."""
    mean: Floats
    centre: Floats
    weight: Floats
    outcome: Floats
    beyond: Floats
    loss: Floats
    hidden: Floats
    """`beyond` over the predicted weight where numbers of records are secret, otherwise 0, (cell, 1 + outcome); without a
    reference the part of an error of the predicted mean weight that is clipped."""
    slope: Floats
    """Parts of errors of predicted means that are clipped without a reference, otherwise 0, (cell, 1 + outcome)."""
    expected: Floats | float = 0.0
    """Residual sums about which parts of errors are clipped, (cell, 1 + outcome)."""
    unequal: Singles | None = None
    """What limits leave of a change of a base cell over what they leave of one of the whole cell, (base cell, 1 + outcome),
    where some base cells have moved far."""
    lacking: Floats | float = 0.0
    """What limits leave more of the expected sums of base cells than of whole cells, (cell, 1 + outcome)."""
    clipped_by_inequality: Floats | float = 0.0
    """What is clipped more of sums where weights are more unequal, by 1 in the logarithm of their exponent (`inequality`),
    (cell, 1 + outcome)."""
    widest: Floats | None = None
    """Limits that clip no record of the public range, (cell, 1 + outcome), where counts of records may widen them."""
    counted: NDArray[np.bool_] | bool = False
    """Whether such counts have widened limits, (cell, 1 + outcome): a record has a quarter to all of the even part."""

    @property
    def scale(self) -> Floats:
        """L and H side by side, (cell, 1 + outcome)."""
        return np.column_stack([self.weight, self.outcome])

    @property
    def clips_none(self) -> bool:
        """True if counts of records beyond limits widen them."""
        return self.widest is not None

    @property
    def clipped_of_record(self) -> Floats:
        """Standard deviation of the clipped part of a record, over what slopes leave, (cell, 1 + outcome)."""
        return np.asarray(np.sqrt(self.loss / self.size[:, None]) / (1.0 - self.slope))

    @property
    def added_by_inequality(self) -> Floats:
        """What more unequal weights add to sums, over what slopes leave, (cell, 1 + outcome)."""
        return np.asarray(-self.clipped_by_inequality / (1.0 - self.slope))

    def contributions(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """u of every record in whole units of 1/UNIT, (record, sum); the L1 norm is at most UNIT.

        Rounding is towards 0. Any weights and outcomes are allowed, except NaN. Where weights are public, none is read.
        """
        u = self._residuals(base, weight, outcomes, prediction)
        u = sums_and_differences(u) if prediction.adds_weight else u
        scaled: Floats = np.trunc(u * (UNIT / np.maximum(np.abs(u).sum(axis=1), 1.0))[:, None])
        # Division may round a norm up to a last digit above 1; one unit less in the largest coordinate mends it.
        above = np.flatnonzero(np.abs(scaled).sum(axis=1) > UNIT)
        largest = np.abs(scaled[above]).argmax(axis=1)
        scaled[above, largest] -= np.sign(scaled[above, largest])
        return scaled

    def _residuals(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """u of every record before it is scaled, (record, 1 + outcome)."""
        cell, means, subtracted = self.cell[base], prediction.means[base], prediction.subtracted[base]
        about, weight = self.mean[cell], means[:, 0] if prediction.weights_known else weight
        with np.errstate(over="ignore", invalid="ignore"):
            r = weight - subtracted
            rho = weight[:, None] * (outcomes - about) - subtracted[:, None] * (means[:, 1:] - about)
            u = np.column_stack([r - self.centre[cell], rho]) / self.scale[cell]
            # Values beyond this are at the ball's surface, whatever the others are.
            return np.clip(np.nan_to_num(u, nan=0.0), -1e9, 1e9)

    def counts_beyond(self, base: Ints, weight: Floats, outcomes: Floats, prediction: Prediction) -> Floats:
        """Numbers of records by cell, coordinate of u and its size, (cell, coordinate × step), in whole units.

        A record counts in one step of every coordinate that is beyond its even part of the ball: step k is from 4^(k−1) to
        4^k times this part, and the last one all above. It adds UNIT over the number of coordinates to each.
        """
        first = int(prediction.weights_known)
        size = np.abs(self._residuals(base, weight, outcomes, prediction))[:, first:]
        coordinates = size.shape[1]
        even = even_parts(prediction)[first:]
        step = np.searchsorted(WIDER ** np.arange(STEPS_WIDER), size * even)
        record, coordinate = np.nonzero(step)
        columns = coordinates * STEPS_WIDER
        place = self.cell[base][record].astype(np.int64) * columns + coordinate * STEPS_WIDER + step[record, coordinate] - 1
        counts = np.bincount(place, minlength=len(self.size) * columns).reshape(-1, columns)
        return np.asarray(UNIT // coordinates * counts, dtype=np.float64)

    def widened(self, counts: Floats) -> TableLimits:
        """Limits wide enough for all records that noisy counts show, (cell, coordinate × step), in units of 1/UNIT.

        The last step is of all records that may be. None needs limits beyond those of the public range.
        """
        coordinates = counts.shape[1] // STEPS_WIDER
        has_records = counts.reshape(len(counts), coordinates, STEPS_WIDER) > UNIT / coordinates / 2.0
        step = np.zeros(self.scale.shape, dtype=np.int64)
        step[:, -coordinates:] = (np.arange(1, STEPS_WIDER + 1) * has_records).max(axis=2)
        most = np.full(step.shape, np.inf) if self.widest is None else self.widest
        scale = np.where(step < STEPS_WIDER, np.minimum(self.scale * WIDER**step, most), most)
        return replace(self, weight=scale[:, 0], outcome=scale[:, 1:], counted=step > 0)

    def added(self, values: Floats) -> Floats:
        """Sums over base cells, (cell, 1 + outcome), of values (base cell, 1 + outcome)."""
        return np.column_stack([np.bincount(self.cell, weights=part, minlength=len(self.size)) for part in values.T])

    def observed(self, sums: Floats) -> Floats:
        """Residual sums of cells from sums of contributions, (cell, 1 + outcome), with the expected clipped part."""
        residuals = sums * self.scale + self.size[:, None] * self.beyond
        residuals[:, 0] += self.size * self.centre
        return residuals


def even_parts(prediction: Prediction) -> Floats:
    """Inverse parts of the ball that every coordinate of u has if all have the same, (1 + outcome,)."""
    outcomes = prediction.means.shape[1] - 1
    if prediction.adds_weight:
        # The norm of pairs is 1 where |u_0| is 1 and every |u_k| is 1/K.
        return np.array([1.0, *[float(outcomes)] * outcomes])
    return np.full(1 + outcomes, float(outcomes + (not prediction.weights_known)))


def sums_and_differences(u: Floats) -> Floats:
    """(u_0/K + u_k)/2 of all K outcomes, then (u_0/K − u_k)/2, (record, 2 × outcome)."""
    part = u[:, :1] / (u.shape[1] - 1)
    return np.concatenate([part + u[:, 1:], part - u[:, 1:]], axis=1) / 2.0


def unpaired(sums: Floats) -> Floats:
    """u_0 and u_k from sums of pairs, (row, 1 + outcome). Noise of variance σ² in each pair is 2Kσ² and 2σ² in these."""
    above, below = np.split(sums, 2, axis=1)
    return np.column_stack([sums.sum(axis=1), above - below])


def predicted_means(cell: Ints | Codes, size: Floats, prediction: Prediction) -> Floats:
    """Predicted means of outcomes by cell of a table, (cell, outcome)."""
    weight = size * prediction.means[:, 0]
    cell_weight = np.bincount(cell, weights=weight)
    sums = [np.bincount(cell, weights=weight * mean) for mean in prediction.means[:, 1:].T]
    return np.asarray(np.column_stack([total / cell_weight for total in sums]))


def direct_variances(
    adding: scipy.sparse.csr_array | AddedCells, size: Floats, mean: Floats, prediction: Prediction
) -> Floats:
    """Variances of direct counts and of means times counts of rows of base cells, given numbers of records if these are
    public.

    `adding` is (row, cell), `mean` are predicted means (row, outcome); the result is (row, 1 + outcome). Records of a
    row differ by their residuals, and by what is predicted of them.
    """
    weight, spread, number = prediction.means[:, 0], prediction.spread, np.maximum(adding @ size, 1e-300)
    average = adding @ (size * weight) / number
    of_numbers = (1.0 - prediction.adds_weight) * number * average**2
    columns = [adding @ (size * (spread[:, 0] ** 2 + weight**2)) - of_numbers]
    square = spread[:, 0] ** 2 + weight**2
    for k in range(1, 1 + mean.shape[1]):
        m, about = prediction.means[:, k], mean[:, k - 1]
        both = prediction.correlation[0, k] * spread[:, 0] * spread[:, k]
        # The square of R + (m - μ) w, whose terms are constant, linear and quadratic in μ.
        constant = adding @ (size * (spread[:, k] ** 2 + 2.0 * both * m + square * m**2))
        linear = adding @ (size * (both + square * m))
        columns.append(constant - 2.0 * about * linear + about**2 * (adding @ (size * square)))
    return np.asarray(np.maximum(np.column_stack(columns), 0.0))


def sampled_variances(adding: scipy.sparse.csr_array | AddedCells, size: Floats, prediction: Prediction) -> Floats:
    """Variances of direct counts with those of numbers of records, of rows of base cells, (row,)."""
    weight = prediction.means[:, 0]
    squares, sums = adding @ (size * (prediction.spread[:, 0] ** 2 + weight**2)), adding @ (size * weight)
    return np.asarray(np.maximum(squares - sums**2 / size.sum(), 0.0))
