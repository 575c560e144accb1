"""Estimates, from a reference, of what the weights' bound U cuts off (METHODS §9b).

All weights of the reference are multiplied by one factor, so that their mean clipped weight equals the current file's.
A cell's clipped count V is multiplied by the reference's ratio ρ = Σw/Σmin(w, U). Cells with few records use the whole
table's ratio in part.

The error of V ρ has two parts: sampling, and drift since the reference. With S = Σ(w − ρ min(w, U))² over the
reference's records, sampling of the current file adds the variance S V/V_ref. Sampling of the reference adds S
(V/V_ref)². Drift has the standard deviation `DRIFT` times V (ρ − 1), the weight that is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.models.protocol import Draws

DRIFT = 0.25
"""Standard deviation of the drift, relative to the reference's weight beyond the bound."""
LEANING = 20
"""Number of records of the whole table that are mixed with a cell's reference records."""
SCALINGS = 50
"""Rounds of scaling the reference's weights to the current file's mean clipped weight."""
LARGEST_SCALE = 4.0
"""The reference's weights are multiplied by a factor between 1/4 and 4."""
RELEASED = ("factors", "factor_errors", "variance_per_weight")
"""Released figures on weights beyond their public bound, where the job has a reference."""


class ReferenceWeights(NamedTuple):
    """The reference's records of one stratum: positions of levels (record, column), and weights (record,)."""

    codes: Ints
    weight: Floats

    def scaled(self, mean: float, cap: float) -> ReferenceWeights:
        """The records, with weights multiplied by the factor that gives the mean clipped weight `mean`."""
        factor = 1.0
        for _ in range(SCALINGS):
            clipped_mean = np.minimum(factor * self.weight, cap).mean()
            factor = float(np.clip(factor * mean / max(clipped_mean, 1e-300), 1.0 / LARGEST_SCALE, LARGEST_SCALE))
        return self._replace(weight=factor * self.weight)

    @property
    def heaviness(self) -> float:
        """Σw²/Σw: the variance of a sum of weights, for each unit of the sum."""
        return float((self.weight**2).sum() / max(self.weight.sum(), 1e-300))


class Beyond(NamedTuple):
    """For each cell the factor ρ on its clipped count, and the relative error of the product from sampling."""

    factor: Floats
    error: Floats


def beyond(reference: ReferenceWeights, cell: Ints, clipped: Floats, cap: float) -> Beyond:
    """What lies beyond the bound `cap` in each cell of a table; `cell` (record,) has the reference's records' cells.

    `clipped` are the current file's clipped counts, in weights, (cell,).
    """
    weights, below = reference.weight, np.minimum(reference.weight, cap)
    size, overall = len(clipped), weights.sum() / max(below.sum(), 1e-300)
    joined = LEANING * below.mean()
    of_cell = np.bincount(cell, weights=below, minlength=size) + joined
    factor = np.maximum((np.bincount(cell, weights=weights, minlength=size) + overall * joined) / of_cell, 1.0)
    residual, typical = (weights - factor[cell] * below) ** 2, float(((weights - overall * below) ** 2).mean())
    spread = np.bincount(cell, weights=residual, minlength=size) + LEANING * typical
    now = np.maximum(clipped, below.mean())
    return Beyond(factor, np.sqrt(spread / of_cell * (1.0 / now + 1.0 / of_cell)) / factor)


def extend(theta: Draws, tables: Sequence[Beyond], reference: ReferenceWeights, cap: float) -> Draws:
    """Adds ρ and its error for all tables, one after another, to the released parameters."""
    factors, errors = (np.concatenate([table[k] for table in tables])[None] for k in (0, 1))
    heaviest = np.array([[max(cap, reference.heaviness)]])
    return Draws({**theta.values, **dict(zip(RELEASED, (factors, errors, heaviest), strict=True))})


def has_reference(theta: Draws) -> bool:
    """True if the released parameters hold what lies beyond the bound."""
    return "factors" in theta.values


def factors_of(theta: Draws) -> Floats:
    """The factor ρ of every sum, (cell,); 1 without a reference."""
    return theta["factors"][0] if "factors" in theta.values else np.ones(theta["sums"].shape[1])


def largest_factor(theta: Draws) -> float:
    """The largest factor of any cell; 1 without a reference."""
    return float(theta["factors"].max()) if "factors" in theta.values else 1.0


def errors_of(theta: Draws) -> tuple[Floats, Floats]:
    """Relative errors of all cells' counts from sampling and from drift beyond the bound, (cell,) each."""
    factor = factors_of(theta)
    sampling = theta["factor_errors"][0] if "factor_errors" in theta.values else np.zeros_like(factor)
    return sampling, DRIFT * (1.0 - 1.0 / factor)


def variance_per_weight(theta: Draws, cap: float) -> float:
    """Estimates the variance of a sum of weights, for each unit of the sum.

    It is the bound `cap`, or the reference's figure Σw²/Σw if that figure is larger. Without a reference, the variance
    cannot be larger than `cap`.
    """
    return float(theta["variance_per_weight"][0, 0]) if "variance_per_weight" in theta.values else cap
