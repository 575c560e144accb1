"""The weight rules that `pseudo_posterior` applies: constants, search, and the losses measured (METHODS §3).

A *rule* searches for privacy weights whose database bound meets a target. A plug-in's rule derives from `WeightRule`
too. It states `CONTRACT`, and has a step for a constant c or a search of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import numpy as np

from dpdist.job import Mechanism, Weights
from dpdist.job.weights import WEIGHT_RULES, RuleFacts
from dpdist.privacy.weights import (
    Cap,
    Cluster,
    Counted,
    Inverse,
    Linear,
    NotReached,
    Ones,
    Reweight,
    Scalar,
    ScaleShift,
    Search,
    Step,
    Summary,
    Truncated,
    as_weighted,
    for_later_files,
)

MARGIN = 0.999
"""The fixed point aims at this share of the target, and so meets the target in finitely many steps."""
PATIENCE, LOWERED = 8, 0.97
"""After PATIENCE steps, each step aims lower by the factor LOWERED.

Between fits by Markov chains, a record's bound varies by more than MARGIN.
"""
MAX_STEPS = 40
HALF_EXCEED = "exact leave-one-out losses with the weights computed anew exceeded ε on about half of the samples tried"


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
                raise NotReached(f"with c = {weights.c:g} the bound stays over the target")
            return
        high, low = None, self.start(target, first)
        floor = 1e-3 * low
        while not (yield from attempt(low)) <= target:
            high, low = low, low * 0.85
            if low < floor:
                raise NotReached("no constant c brings the bound under the target")
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
    exceeds: ClassVar[str] = f"Under linear privacy weights a record can lose more than ε: {HALF_EXCEED}."

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Linear(c, weights.g, first.smallest, first.largest)


class InverseRule(WeightRule):
    """Weights that are a constant over the bound."""

    constants: ClassVar[frozenset[str]] = frozenset({"c"})
    exceeds: ClassVar[str] = (
        "Under inverse privacy weights one outlier can change the weights of all records, and a record can lose more than "
        "ε: with and without an outlier among 1,000 records the log ratio of draws reached 87 at ε = 3.6."
    )

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Inverse(c)

    def start(self, target: float, first: Summary) -> float:
        return target


class ScalarRule(WeightRule):
    """One weight for all records."""

    uniform: ClassVar[bool] = True
    exceeds: ClassVar[str] = (
        "Under scalar privacy weights one outlier can change the weights of all records, and a record can lose more than "
        "ε: with and without an outlier among 1,000 records the log ratio of draws reached 155 at ε = 3.6."
    )

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Scalar(c)

    def start(self, target: float, first: Summary) -> float:
        return target / first.largest if first.largest > 0 else 1.0


class ClusterRule(WeightRule):
    """Weights that fall with the share of records whose outcome lies far from the record's."""

    constants: ClassVar[frozenset[str]] = frozenset({"c", "g", "radius"})
    uses_outcomes: ClassVar[bool] = True
    exceeds: ClassVar[str] = (
        "Under cluster privacy weights a record can lose more than ε: 2 of 48 records left out of a simulated survey, with "
        "the weights computed anew, lost up to 1.2 ε."
    )

    def step(self, c: float, weights: Weights, first: Summary) -> Step:
        return Cluster(c, weights.g, weights.radius)


class FixedPointRule(WeightRule):
    """α ← min(1, .999 Δ*/F(α)) until Δ ≤ Δ*, with the same random numbers in every fit (METHODS §3, ours).

    One record can change the result of the search, and so the weights of all others. Its loss on the file then exceeds
    2Δ, because the search has no bounded sensitivity (tests/studies/test_contaminated_weights). If scale, shift or
    re-weighting apply, the adjusted weights are fitted and must meet the target.
    """

    exceeds: ClassVar[str] = (
        "Under fixed-point privacy weights a record can lose more than ε: in simulated files with outliers the exact loss "
        "exceeded the bound in 17 of 516 strata, and reached 6.5 times ε in a small one."
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
    return fixed(mechanism.weights, target) if mechanism.cuts_weights else search(mechanism.weights, target)


def reference_search(mechanism: Mechanism, target: float) -> Search:
    """The search for weights on a reference, in which tuned weights aim below the target."""
    aim = mechanism.aim_on_reference(target)
    return search(mechanism.weights, aim) if mechanism.tunes_weights else fixed(mechanism.weights, aim)


def reference_counts(mechanism: Mechanism) -> Counted:
    """How much a reference's record counts in fits of `reference_search`, by its weight.

    Tuned weights must keep the bound for later files too, so records count less.
    """
    return for_later_files if mechanism.tunes_weights else as_weighted


def fixed(weights: Weights, limit: float = np.inf) -> Search:
    """Yields the unweighted fit, then one with weights by the rule's constants, or 0 where α F > limit."""
    first = yield Ones()
    assert weights.c is not None
    step = _scaled(rule_of(weights).step(weights.c, weights, first), weights)
    yield step if np.isinf(limit) else Truncated(step, limit)


def _scaled(step: Step, weights: Weights) -> Step:
    unchanged = (weights.scale, weights.shift) == (1.0, 0.0)
    return step if unchanged else ScaleShift(step, weights.scale, weights.shift)


def adjusted(step: Step, weights: Weights) -> Generator[Step, Summary, Summary]:
    """Yields a step with the job's changes of all weights; every search makes its fits in this way."""
    summary = yield _scaled(step, weights)
    if weights.reweight is not None:
        summary = yield Reweight(weights.reweight, summary.database_bound)
    return summary
