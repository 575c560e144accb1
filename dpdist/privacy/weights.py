"""Privacy weights: rules that turn record bounds into weights, and the search for weights whose bounds meet a target.

A *step* maps a record's (F, α, F(α)) to its new weight. F is the record bound max_s |f_i(θ_s)|, the largest absolute
log likelihood of record i over draws θ_s of the unweighted fit. F(α) is the record bound of the fit with the present
weights.

A *search* is a generator. It yields a step and receives a summary of the fit with the new weights. A search with a
target ends with Δ = max_i α_i F_i(α) at most the target. Weight rules have such searches. The caller
decides how fits are made. Only `informed`, `weigh` and `bounded` apply steps to records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from dpdist.core.cautions import Caution
from dpdist.core.records import Floats, quotient_or
from dpdist.job import Mechanism, Weights
from dpdist.job.weights import WEIGHT_RULES, RuleFacts

# A *rule* searches for privacy weights whose database bound meets a target. A plug-in's rule derives from `WeightRule`
# too. It states `CONTRACT`, and has a step for a constant c or a search of its own.
MARGIN = 0.999
"""The fixed point aims at this share of the target, and so meets the target in finitely many steps."""
PATIENCE, LOWERED = 8, 0.97
"""After PATIENCE steps, each step aims lower by the factor LOWERED.

Between fits by Markov chains, a record's bound varies by more than MARGIN.
"""
MAX_STEPS = 40
HALF_EXCEED = (
    "exact leave-one-out losses, with weights computed again, exceeded ε in about half of the samples that were tried"
)
OF_AN_OUTLIER = (
    "an outlier can change the weights of all records; in a test with 1,000 records at ε = 3.6, leaving out an outlier "
    "changed the log density of draws by up to {}"
)


def above_epsilon(rule: str, evidence: str) -> str:
    """The caution that a record can lose more than ε, with the losses that were measured."""
    return str(Caution.of("loss_above_epsilon", rule=rule, evidence=evidence))


class WeightRule(RuleFacts):
    """A rule whose step has a constant c, which is scanned unless a job states it. Other rules replace `search`."""

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        """The step under c. It may depend on the job's constants and on the summary of the unweighted fit."""
        raise NotImplementedError(f"{type(self).__name__} has neither a step nor a search: write step(c, weights, first)")

    def start(self, target: float, first: Summary) -> float:
        """The largest c, where the scan starts, given the target Δ*."""
        return 1.0

    def search(self, weights: Weights, target: float) -> Search:
        """The search for weights with Δ at most the target. It may raise `NotReached`, whose text has no figure of a file.

        If a job states c, it is used. Otherwise c is scanned downwards, because Δ is not monotone in c, and the last
        interval is bisected.
        """
        first = yield Ones()

        def attempt(c: float) -> Generator[Step, Summary, float]:
            return (yield from adjusted(self.step(c, weights, first), weights)).database_bound

        if weights.c is not None:
            if not (yield from attempt(weights.c)) <= target:
                raise NotReached(f"with c = {weights.c:g}, the bound stays above the target")
            return
        high, low = None, self.start(target, first)
        floor = 1e-3 * low
        while not (yield from attempt(low)) <= target:
            high, low = low, low * 0.85
            if low < floor:
                raise NotReached("no constant c brings the bound below the target")
        if high is None:
            return
        for _ in range(8):
            middle = (low + high) / 2.0
            if (yield from attempt(middle)) <= target:
                low = middle
            else:
                high = middle
        yield from attempt(low)


class NoRule(WeightRule):
    """Leaves every weight at 1."""

    def search(self, weights: Weights, target: float) -> Search:
        yield Ones()


class LinearRule(WeightRule):
    """Weights that fall in a straight line from the smallest bound to the largest."""

    constants: ClassVar[frozenset[str]] = frozenset({"c", "g"})
    exceeds: ClassVar[str] = above_epsilon("linear", HALF_EXCEED)

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Linear(c, weights.g, first.smallest, first.largest)


class InverseRule(WeightRule):
    """Weights that are a constant over the bound."""

    constants: ClassVar[frozenset[str]] = frozenset({"c"})
    exceeds: ClassVar[str] = above_epsilon("inverse", OF_AN_OUTLIER.format(87))

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Inverse(c)

    def start(self, target: float, first: Summary) -> float:
        return target


class ScalarRule(WeightRule):
    """One weight for all records."""

    uniform: ClassVar[bool] = True
    exceeds: ClassVar[str] = above_epsilon("scalar", OF_AN_OUTLIER.format(155))

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Scalar(c)

    def start(self, target: float, first: Summary) -> float:
        return target / first.largest if first.largest > 0 else 1.0


class ClusterRule(WeightRule):
    """Weights that fall with the share of records whose outcome lies far from the record's."""

    constants: ClassVar[frozenset[str]] = frozenset({"c", "g", "radius"})
    uses_outcomes: ClassVar[bool] = True
    exceeds: ClassVar[str] = above_epsilon(
        "cluster",
        (
            "when each of 48 records was left out of a simulated survey and weights were computed again, two records lost "
            "up to 1.2 times ε"
        ),
    )

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Cluster(c, weights.g, weights.radius)


class FixedPointRule(WeightRule):
    """α ← min(1, .999 Δ*/F(α)) until Δ ≤ Δ*, with the same random numbers in every fit (METHODS §3, ours).

    One record can change the result of the search, and so the weights of all others. Its loss on the file then exceeds
    2Δ, because the search has no bounded sensitivity (tests/studies/test_contaminated_weights). If scale, shift or
    re-weighting apply, the adjusted weights are fitted and must meet the target.
    """

    exceeds: ClassVar[str] = above_epsilon(
        "fixed-point",
        "in simulated files with outliers, the exact loss exceeded the bound in 17 of 516 strata; in one small stratum "
        "it was 6.5 times ε",
    )

    def search(self, weights: Weights, target: float) -> Search:
        summary = yield Ones()
        for step in range(MAX_STEPS):
            if summary.database_bound <= target:
                return
            aim = MARGIN * LOWERED ** max(0, step - PATIENCE) * target
            summary = yield from adjusted(Cap(aim), weights)
        if not summary.database_bound <= target:
            raise NotReached(f"the fixed point did not reach the target in {MAX_STEPS} steps")


def rule_of(weights: Weights) -> WeightRule:
    """The rule that a job names, dpdist's or a plug-in's."""
    rule: WeightRule = WEIGHT_RULES.named(weights.rule)()
    return rule


def search(weights: Weights, target: float) -> Search:
    """The search for the weights that a job states. The generator may raise `NotReached`."""
    return rule_of(weights).search(weights, target)


def search_of(mechanism: Mechanism, target: float) -> Search:
    """The search that a job's mechanism makes for its privacy weights."""
    return fixed(mechanism.weights, target) if mechanism.weighting == "cut" else search(mechanism.weights, target)


def reference_search(mechanism: Mechanism, target: float) -> Search:
    """The search for weights on a reference, in which tuned weights aim below the target."""
    aim = mechanism.aim_on_reference(target)
    return search(mechanism.weights, aim) if mechanism.weighting == "tuned" else fixed(mechanism.weights, aim)


def reference_counts(mechanism: Mechanism) -> Counted:
    """How much a reference's record counts in fits of `reference_search`, by its weight.

    Tuned weights must keep the bound for later files too, so records count less.
    """
    return for_later_files if mechanism.weighting == "tuned" else as_weighted


def fixed(weights: Weights, limit: float = np.inf) -> Search:
    """Yields the unweighted fit, then one with weights by the rule's constants, or 0 where α F > limit."""
    first = yield Ones()
    assert weights.c is not None
    step = _scaled(rule_of(weights).step(weights.c, weights, first), weights)
    yield step if np.isinf(limit) else TruncatedWeights(step, limit)


def _scaled(step: Step, weights: Weights) -> Step:
    unchanged = (weights.scale, weights.shift) == (1.0, 0.0)
    return step if unchanged else ScaleShift(step, weights.scale, weights.shift)


def adjusted(step: Step, weights: Weights) -> Generator[Step, Summary, Summary]:
    """Yields a step with the job's changes of all weights; every search makes its fits in this way."""
    summary = yield _scaled(step, weights)
    if weights.reweight is not None:
        summary = yield Reweight(weights.reweight, summary.database_bound)
    return summary


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
    """α = min(1, c / F(α)), a step of the fixed point.
    In the first step after the unweighted fit, it is the rule `inverse`.
    """

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

    `outcomes` are the sorted outcomes of all records of the stratum, and `weighed` those of the records to weight.
    """

    c: float
    g: float
    radius: float
    outcomes: Floats = NO_OUTCOMES
    weighed: Floats = NO_OUTCOMES

    def isolation(self) -> Floats:
        """IR of every record."""
        reach = self.radius * np.abs(self.weighed)
        inside = np.searchsorted(self.outcomes, self.weighed + reach, side="right")
        inside -= np.searchsorted(self.outcomes, self.weighed - reach, side="left")
        return np.asarray(1.0 - inside / len(self.outcomes))

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.clip(self.c * (1.0 - self.isolation()) + self.g, 0.0, 1.0))


class Scalar(NamedTuple):
    """One α for all records [V].

    The search goes downwards from Δ*/Δ, the target over the database bound of the unweighted fit.
    """

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return _finite(unweighted, np.full_like(unweighted, min(1.0, self.alpha)))


class ScaleShift(NamedTuple):
    """α̃ = clip(c₁ α + c₂, 0, 1) after another step [G]."""

    inner: Step
    scale: float
    shift: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return _finite(unweighted, np.clip(self.scale * inner + self.shift, 0.0, 1.0))


class TruncatedWeights(NamedTuple):
    """Weighted-e [G]: the weight α of another step, but 0 where α F > limit, with F of the unweighted fit (METHODS §4)."""

    inner: Step
    limit: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        inner = self.inner(unweighted, alpha, bound)
        return np.where(product(inner, unweighted) > self.limit, 0.0, inner)

    def truncated(self, unweighted: Floats) -> int:
        """Number of records whose weight this step sets to 0."""
        inner = self.inner(unweighted, np.ones_like(unweighted), unweighted)
        return int((product(inner, unweighted) > self.limit).sum())


class Constant(NamedTuple):
    """The same α for all records, whatever their bounds. It does not depend on the file."""

    alpha: float

    def __call__(self, unweighted: Floats, alpha: Floats, bound: Floats) -> Floats:
        return np.full(len(alpha), self.alpha)


class UnchangedWeights(NamedTuple):
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
        weighted = product(alpha, bound)
        raised = quotient_or(0.0, self.k * alpha * self.database_bound, weighted)
        return _finite(unweighted, np.minimum(1.0, np.where((weighted == 0) & (alpha > 0), alpha, raised)))


def needs_outcomes(step: object) -> bool:
    """True if the step, or a step inside it, has fields for the outcomes of all records."""
    return needs_outcomes(step.inner) if isinstance(step, ScaleShift | TruncatedWeights) else hasattr(step, "outcomes")


def with_outcomes(step: S, outcomes: Floats) -> S:
    """The step with the sorted outcomes of the stratum, if it needs them."""
    complete_step: S = _replaced(step, outcomes=outcomes)
    return complete_step


def applied_to(step: S, outcomes: Floats) -> S:
    """The step with the outcomes (record, outcome) of the records to weight, if it needs them."""
    complete_step: S = _replaced(step, weighed=outcomes[:, 0])
    return complete_step


def _replaced(step: Any, **outcomes: Any) -> Any:
    if isinstance(step, ScaleShift | TruncatedWeights):
        return step._replace(inner=_replaced(step.inner, **outcomes))
    return step._replace(**outcomes) if needs_outcomes(step) else step


Counted = Callable[[Floats], Floats]
"""The weight of a record in a fit, as a function of its privacy weight: (record,) → (record,)."""


def as_weighted(alpha: Floats) -> Floats:
    """A record counts by its privacy weight."""
    return alpha


def for_later_files(alpha: Floats) -> Floats:
    """Weights of a reference's records, (record,), in a wider fit that allows for a later file's fit."""
    # Draws for a later file have the posterior's variance, 1/(nα), and twice the sampling variance of a fit, 2/n.
    return alpha / (1.0 + 2.0 * alpha)


def product(alpha: Floats, bound: Floats) -> Floats:
    """α F, which is 0 where α = 0, even if F is infinite."""
    return np.multiply(alpha, bound, out=np.zeros_like(bound), where=alpha > 0)


def _capped_ratio(c: float, bound: Floats) -> Floats:
    return np.minimum(1.0, quotient_or(1.0, c, bound))


def _finite(bound: Floats, alpha: Floats) -> Floats:
    return np.where(np.isfinite(bound), alpha, 0.0)


Search = Generator[Step, Summary, None]
Carry = dict[str, Floats]
"""Per-record values that fits of a search pass on, (record,) each: alpha, unweighted (F) and bound (F(α))."""
W = TypeVar("W")


class NotReached(Exception):
    """Raised if a search finds no weights of the rule with a bound of at most the target."""


class AllOutcomes(NamedTuple):
    """A search's request for the outcomes of all records, (record,), instead of a fit."""


def informed(steps: Generator[W, Summary, None]) -> Generator[W | AllOutcomes, Any, None]:
    """Returns the search, whose steps get the outcomes of all records if they need them."""
    step, outcomes = next(steps), None
    while True:
        if needs_outcomes(step):
            if outcomes is None:
                outcomes = np.sort((yield AllOutcomes()))
            step = with_outcomes(step, outcomes)
        summary = yield step
        try:
            step = steps.send(summary)
        except StopIteration:
            return


def weigh(step: Step, outcomes: Floats, carry: Carry) -> Floats:
    """Computes new weights α from the carry's values, and stores them in it.

    A step that needs no earlier fit first clears the carry. `outcomes` (record, outcome) are those of the carry's
    records.
    """
    if isinstance(step, Ones | Constant):
        carry.clear()
        carry["alpha"] = step(*3 * (np.ones(len(outcomes)),))
    else:
        carry["alpha"] = applied_to(step, outcomes)(carry["unweighted"], carry["alpha"], carry["bound"])
    alpha = carry["alpha"]
    if alpha.shape != (len(outcomes),):
        raise ValueError(f"{type(step).__name__}: its privacy weights are not as many as the records")
    if not (alpha.min(initial=0.0) >= 0.0 and alpha.max(initial=0.0) <= 1.0):
        raise ValueError(f"{type(step).__name__}: privacy weights must lie in [0, 1]; a larger one has no bound")
    return alpha


def bounded(carry: Carry, bound: Floats) -> Floats:
    """Stores a fit's F(α) in the carry. Returns (Δ, max F, −min F). Over several blocks, the maximum of each is taken."""
    carry["bound"] = bound
    unweighted = carry.setdefault("unweighted", bound)
    finite = unweighted[np.isfinite(unweighted)]
    weighted = product(carry["alpha"], bound)
    return np.array([weighted.max(initial=0.0), finite.max(initial=0.0), -finite.min(initial=np.inf)])


def summary_of(extremes: Floats) -> Summary:
    """The summary of a fit, from extremes over its records as `bounded` returns them."""
    bound, largest, negative_smallest = extremes[:3]
    return Summary(float(bound), float(largest), -float(negative_smallest))
