"""Rules for privacy weights; each step computes new weights α from record bounds F and the present α (METHODS §3).

A *step* maps a record's (F, α, F(α)) to its new α, where F is the record bound max_s |f_i(θ_s)| under the unweighted fit
and F(α) the same under the fit with the present α; on a reference records may count less in both (`for_later_files`).
`searches` applies the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import WeightRule, Weights


class Summary(NamedTuple):
    """Summary of a fit for a search: scalars over the stratum's records."""

    database_bound: float
    """Δ = max_i α_i F_i(α)."""
    largest: float
    """max_i F_i under the unweighted fit, over finite values."""
    smallest: float
    """min_i F_i under the unweighted fit."""


class Step(Protocol):
    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        """Returns new privacy weights, shape (record,), in [0, 1]."""
        ...


S = TypeVar("S")
NO_OUTCOMES: Floats = np.empty(0)


class Ones(NamedTuple):
    """Step α = 1, the unweighted fit, with which every search starts."""

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return np.ones_like(alpha)


class Cap(NamedTuple):
    """α = min(1, c / F(α)): one step of the fixed point; from the unweighted fit, the `inverse` rule."""

    c: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, _finite(bound, _capped_ratio(self.c, bound)))


class Inverse(NamedTuple):
    """α = min(1, c / F) [T]."""

    c: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, _capped_ratio(self.c, unweighted))


class Linear(NamedTuple):
    """α = clip(c (1 − (F − min F)/(max F − min F)) + g, 0, 1) [V]; all F equal: the scaled F is 0."""

    c: float
    g: float
    smallest: float
    largest: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        spread = self.largest - self.smallest
        with np.errstate(invalid="ignore"):
            scaled = (unweighted - self.smallest) / spread if spread > 0 else np.zeros_like(unweighted)
        return _finite(unweighted, np.clip(self.c * (1.0 - scaled) + self.g, 0.0, 1.0))


class Cluster(NamedTuple):
    """α = clip(c (1 − IR) + g, 0, 1) [V], IR_i the share of the records with |y_j − y_i| > r |y_i|, itself inside.

    `outcomes` are those of the stratum, sorted; `own` those of the records to be weighted: O(n log n) in all.
    """

    c: float
    g: float
    radius: float
    outcomes: Floats = NO_OUTCOMES
    own: Floats = NO_OUTCOMES

    def isolation(self) -> Floats:
        """Computes IR of every record."""
        reach = self.radius * np.abs(self.own)
        inside = np.searchsorted(self.outcomes, self.own + reach, side="right")
        inside -= np.searchsorted(self.outcomes, self.own - reach, side="left")
        return np.asarray(1.0 - inside / len(self.outcomes))

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.clip(self.c * (1.0 - self.isolation()) + self.g, 0.0, 1.0))


class Scalar(NamedTuple):
    """The same α for every record: Δ*/Δ of the unweighted fit [V], scanned down from there (a small α widens the bound)."""

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.full_like(unweighted, min(1.0, self.alpha)))


class Rule(NamedTuple):
    """Rule with a constant c: the step under it, and the start of the scan for c, for a target Δ*."""

    step: Callable[[float, Weights, Summary], Step]
    start: Callable[[float, Summary], float] = lambda target, first: 1.0


RULES: dict[WeightRule, Rule] = {
    "linear": Rule(lambda c, weights, first: Linear(c, weights.g, first.smallest, first.largest)),
    "cluster": Rule(lambda c, weights, first: Cluster(c, weights.g, weights.radius)),
    "inverse": Rule(lambda c, weights, first: Inverse(c), lambda target, first: target),
    "scalar": Rule(
        lambda c, weights, first: Scalar(c),
        lambda target, first: target / first.largest if first.largest > 0 else 1.0,
    ),
}
"""Rules with a constant c, which the search tunes unless a job states it."""


class ScaleShift(NamedTuple):
    """α̃ = clip(c₁ α + c₂, 0, 1) after another step [G]."""

    inner: Step
    scale: float
    shift: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return _finite(unweighted, np.clip(self.scale * inner + self.shift, 0.0, 1.0))


class Truncated(NamedTuple):
    """α = 0 where another step's α has α F > limit: Weighted-e [G], with F of the unweighted fit (METHODS §4)."""

    inner: Step
    limit: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return np.where(product(inner, unweighted) > self.limit, 0.0, inner)

    def truncated(self, unweighted: Floats) -> int:
        """Returns how many records lose their weight by truncation."""
        inner = self.inner(unweighted, np.ones_like(unweighted), unweighted)
        return int((product(inner, unweighted) > self.limit).sum())


class Constant(NamedTuple):
    """The same α for every record, whatever its bound: a fixed function of the record."""

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return np.full(len(alpha), self.alpha)


class Kept(NamedTuple):
    """Step that leaves the weights unchanged."""

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return alpha


class Reweight(NamedTuple):
    """α^w = min(1, k α Δ / Δ_i) with Δ_i = α_i F_i(α): every record's bound is brought up to k Δ [V]; α = 0 stays 0."""

    k: float
    database_bound: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        own = product(alpha, bound)
        raised = np.divide(self.k * alpha * self.database_bound, own, out=np.zeros_like(alpha), where=own > 0)
        return _finite(unweighted, np.minimum(1.0, np.where((own == 0) & (alpha > 0), alpha, raised)))


def asks_for_outcomes(step: object) -> bool:
    """True if the step, or the step before it in a composition, needs the outcomes of all records."""
    return asks_for_outcomes(step.inner) if isinstance(step, ScaleShift | Truncated) else isinstance(step, Cluster)


def among(step: S, outcomes: Floats) -> S:
    """Returns the step, with all outcomes of the stratum, sorted, if it asks for them."""
    told: S = _with_cluster(step, lambda cluster: cluster._replace(outcomes=outcomes))
    return told


def at(step: S, outcomes: Floats) -> S:
    """Returns the step for one call, with the outcomes (record, outcome) of its records, if it asks for them."""
    told: S = _with_cluster(step, lambda cluster: cluster._replace(own=outcomes[:, 0]))
    return told


def _with_cluster(step: Any, tell: Callable[[Cluster], Cluster]) -> Any:
    if isinstance(step, ScaleShift | Truncated):
        return step._replace(inner=_with_cluster(step.inner, tell))
    return tell(step) if isinstance(step, Cluster) else step


Counted = Callable[[Floats], Floats]
"""Function that gives how much a record counts in a fit by its privacy weight, (record,) → (record,)."""


def itself(alpha: Floats) -> Floats:
    """Returns the privacy weight itself."""
    return alpha


def for_later_files(alpha: Floats) -> Floats:
    """Returns how much a reference's records count, (record,), in a wider fit that allows for a later file.

    Its width is that of a current file's draws seen from the reference. It has a posterior's variance, 1/(nα), and the
    sampling variance of both files' fits about the truth, 2/n.
    """
    return alpha / (1.0 + 2.0 * alpha)


def product(alpha: Floats, bound: Floats) -> Floats:
    """Returns α F, which is 0 where α = 0 for every F, also −∞ and ∞."""
    return np.multiply(alpha, bound, out=np.zeros_like(bound), where=alpha > 0)


def _capped_ratio(c: float, bound: Floats) -> Floats:
    return np.minimum(1.0, np.divide(c, bound, out=np.ones_like(bound), where=bound > 0))


def _finite(bound: Floats, alpha: Floats) -> Floats:
    """Sets the weight of a record to 0 where its bound is not finite."""
    return np.where(np.isfinite(bound), alpha, 0.0)
