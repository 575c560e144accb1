"""Defines the rules for privacy weights α: steps that compute new weights from record bounds (METHODS §3).

A *step* maps a record's (F, α, F(α)) to its new weight. F is the record bound max_s |f_i(θ_s)|, the largest absolute log
likelihood of record i over draws θ_s of the unweighted fit. F(α) is the same for the fit with the present weights. On a
reference, records may count less in both fits (`for_later_files`). `weight_search` applies the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import WeightRule, Weights


class Summary(NamedTuple):
    """What a search learns about a fit: three figures over the stratum's records."""

    database_bound: float
    """Δ = max_i α_i F_i(α)."""
    largest: float
    """max_i F_i under the unweighted fit, over finite values."""
    smallest: float
    """min_i F_i under the unweighted fit."""


class Step(Protocol):
    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        """New privacy weights, (record,), from 0 to 1."""
        ...


S = TypeVar("S")
NO_OUTCOMES: Floats = np.empty(0)


class Ones(NamedTuple):
    """α = 1 for all records, the unweighted fit, with which every search starts."""

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return np.ones_like(alpha)


class Cap(NamedTuple):
    """α = min(1, c / F(α)), a step of the fixed point. From the unweighted fit it is the rule `inverse`."""

    c: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, _finite(bound, _capped_ratio(self.c, bound)))


class Inverse(NamedTuple):
    """α = min(1, c / F) [T]."""

    c: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, _capped_ratio(self.c, unweighted))


class Linear(NamedTuple):
    """α = clip(c (1 − (F − min F)/(max F − min F)) + g, 0, 1) [V], with constants c and g. If all F are equal, the fraction
    is 0.
    """

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
    """α = clip(c (1 − IR) + g, 0, 1) [V]. IR_i is the share of records j with |y_j − y_i| > r |y_i|, with `radius` r.

    `outcomes` are the sorted outcomes of all records of the stratum, and `own` the outcomes of the records to weight. The
    cost is O(n log n) in all.
    """

    c: float
    g: float
    radius: float
    outcomes: Floats = NO_OUTCOMES
    own: Floats = NO_OUTCOMES

    def isolation(self) -> Floats:
        """IR of every record."""
        reach = self.radius * np.abs(self.own)
        inside = np.searchsorted(self.outcomes, self.own + reach, side="right")
        inside -= np.searchsorted(self.outcomes, self.own - reach, side="left")
        return np.asarray(1.0 - inside / len(self.outcomes))

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.clip(self.c * (1.0 - self.isolation()) + self.g, 0.0, 1.0))


class Scalar(NamedTuple):
    """One α for all records [V].

    The search starts at Δ*/Δ, the target over the database bound of the unweighted fit, and goes downwards. A small α
    widens the posterior, and with it the record bounds.
    """

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.full_like(unweighted, min(1.0, self.alpha)))


class Rule(NamedTuple):
    """A rule with a constant c: its step, and where the scan for c starts, given the target Δ*."""

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
"""Rules with a constant c. The search tunes c unless a job states it."""


class ScaleShift(NamedTuple):
    """α̃ = clip(c₁ α + c₂, 0, 1) after another step [G]."""

    inner: Step
    scale: float
    shift: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return _finite(unweighted, np.clip(self.scale * inner + self.shift, 0.0, 1.0))


class Truncated(NamedTuple):
    """Weighted-e [G]: the weight α of another step, but 0 where α F > limit, with F of the unweighted fit (METHODS §4)."""

    inner: Step
    limit: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return np.where(product(inner, unweighted) > self.limit, 0.0, inner)

    def truncated(self, unweighted: Floats) -> int:
        """Number of records whose weight becomes 0 in this way."""
        inner = self.inner(unweighted, np.ones_like(unweighted), unweighted)
        return int((product(inner, unweighted) > self.limit).sum())


class Constant(NamedTuple):
    """The same α for all records, whatever their bounds. It does not depend on the file."""

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return np.full(len(alpha), self.alpha)


class Kept(NamedTuple):
    """Leaves the weights unchanged."""

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return alpha


class Reweight(NamedTuple):
    """Re-weights to α^w = min(1, k α Δ/Δ_i), with Δ_i = α_i F_i(α) and the database bound Δ [V]. α = 0 stays 0.

    Every record's weighted bound is raised towards k Δ.
    """

    k: float
    database_bound: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        own = product(alpha, bound)
        raised = np.divide(self.k * alpha * self.database_bound, own, out=np.zeros_like(alpha), where=own > 0)
        return _finite(unweighted, np.minimum(1.0, np.where((own == 0) & (alpha > 0), alpha, raised)))


def asks_for_outcomes(step: object) -> bool:
    """True if the step, or a step inside it, needs the outcomes of all records."""
    return asks_for_outcomes(step.inner) if isinstance(step, ScaleShift | Truncated) else isinstance(step, Cluster)


def among(step: S, outcomes: Floats) -> S:
    """The step with the sorted outcomes of the stratum, if it needs them."""
    told: S = _with_cluster(step, lambda cluster: cluster._replace(outcomes=outcomes))
    return told


def at(step: S, outcomes: Floats) -> S:
    """The step with the outcomes (record, outcome) of the records that it is applied to, if it needs them."""
    told: S = _with_cluster(step, lambda cluster: cluster._replace(own=outcomes[:, 0]))
    return told


def _with_cluster(step: Any, tell: Callable[[Cluster], Cluster]) -> Any:
    if isinstance(step, ScaleShift | Truncated):
        return step._replace(inner=_with_cluster(step.inner, tell))
    return tell(step) if isinstance(step, Cluster) else step


Counted = Callable[[Floats], Floats]
"""How much a record counts in a fit, as a function of its privacy weight: (record,) → (record,)."""


def itself(alpha: Floats) -> Floats:
    """A record counts its privacy weight."""
    return alpha


def for_later_files(alpha: Floats) -> Floats:
    """How much a reference's records count, (record,), in a wider fit that allows for a later file's fit.

    Seen from the reference, draws for a later file have the posterior's variance, 1/(nα), and twice the sampling variance
    of a fit about the truth, 2/n. The wider fit has the sum.
    """
    return alpha / (1.0 + 2.0 * alpha)


def product(alpha: Floats, bound: Floats) -> Floats:
    """α F, which is 0 where α = 0, even if F is infinite."""
    return np.multiply(alpha, bound, out=np.zeros_like(bound), where=alpha > 0)


def _capped_ratio(c: float, bound: Floats) -> Floats:
    return np.minimum(1.0, np.divide(c, bound, out=np.ones_like(bound), where=bound > 0))


def _finite(bound: Floats, alpha: Floats) -> Floats:
    """Sets the weight to 0 where a record's bound is not finite."""
    return np.where(np.isfinite(bound), alpha, 0.0)
