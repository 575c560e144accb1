"""Searches for privacy weights α under which the database bound Δ meets its target (METHODS §3).

A *search* is a generator. It yields a step, which gives new weights, and receives a summary of the fit with these weights.
A search with a target ends with Δ = max_i α_i F_i(α) at most the target. F_i(α) is the record bound under that fit. The
caller decides how fits are made, on a cluster or in memory. Steps are applied to records in this module alone
(`informed`, `weigh`, `bounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from dpdist.core.records import Floats
from dpdist.job import Mechanism, WeightRule, Weights
from dpdist.job.names import complete
from dpdist.privacy.weights import (
    RULES,
    Cap,
    Constant,
    Counted,
    Ones,
    Reweight,
    Rule,
    ScaleShift,
    Step,
    Summary,
    Truncated,
    among,
    asks_for_outcomes,
    at,
    for_later_files,
    itself,
    product,
)

MARGIN = 0.999
"""The fixed point aims at this share of the target, so that it meets the target in finitely many steps."""
PATIENCE, LOWERED = 8, 0.97
"""After PATIENCE steps, each step aims lower by the factor LOWERED.

Between fits by Markov chains a record's bound varies by more than MARGIN allows for.
"""
MAX_STEPS = 40

Search = Generator[Step, Summary, None]


Carry = dict[str, Floats]
"""Per-record values that fits of a search pass on, (record,) each: alpha, unweighted (F) and bound (F(α))."""
W = TypeVar("W")


class NotReached(Exception):
    """Raised if a search finds no weights of the rule with a bound of at most the target."""


class AllOutcomes(NamedTuple):
    """A search's request for the outcomes of all records, (record,), instead of a fit."""


def informed(steps: Generator[W, Summary, None]) -> Generator[W | AllOutcomes, Any, None]:
    """Returns the search, with the outcomes of all records given to those steps that need them."""
    step, outcomes = next(steps), None
    while True:
        if asks_for_outcomes(step):
            if outcomes is None:
                outcomes = np.sort((yield AllOutcomes()))
            step = among(step, outcomes)
        summary = yield step
        try:
            step = steps.send(summary)
        except StopIteration:
            return


def weigh(step: Step, outcomes: Floats, carry: Carry) -> Floats:
    """Computes new weights α from the carry's values, and stores them in it.

    A step that needs no earlier fit clears the carry first. `outcomes` (record, outcome) are those of the carry's records.
    """
    if isinstance(step, Ones | Constant):
        carry.clear()
        carry["alpha"] = step(*3 * (np.ones(len(outcomes)),))
    else:
        carry["alpha"] = at(step, outcomes)(carry["unweighted"], carry["alpha"], carry["bound"])
    alpha = carry["alpha"]
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
    """The summary of a fit, from the first three extremes over its records, as `bounded` returns them."""
    bound, largest, negative_smallest = extremes[:3]
    return Summary(float(bound), float(largest), -float(negative_smallest))


def search(weights: Weights, target: float) -> Search:
    """The search for the weights that a job states. The generator may raise `NotReached`."""
    return _SEARCHES[weights.rule](weights, target)


def search_of(mechanism: Mechanism, target: float) -> Search:
    """The search that a job's mechanism makes for its privacy weights."""
    return fixed(mechanism.weights, target) if mechanism.cuts_weights else search(mechanism.weights, target)


def reference_search(mechanism: Mechanism, target: float) -> Search:
    """The search for weights on a reference, in which tuned weights aim below the target."""
    aim = mechanism.aim_on_reference(target)
    return search(mechanism.weights, aim) if mechanism.tunes_weights else fixed(mechanism.weights, aim)


def reference_counts(mechanism: Mechanism) -> Counted:
    """How much a reference's record counts in the fits of `reference_search`, as a function of its weight.

    Tuned weights must keep the bound for later files too, so records count less. If constants are fixed ([G]), a record
    counts as much as its weight.
    """
    return for_later_files if mechanism.tunes_weights else itself


def fixed(weights: Weights, limit: float = np.inf) -> Search:
    """Yields the unweighted fit, then one with weights by the rule's constants, or 0 where α F > limit."""
    first = yield Ones()
    assert weights.c is not None
    step = _scaled(RULES[weights.rule].step(weights.c, weights, first), weights)
    yield step if np.isinf(limit) else Truncated(step, limit)


def _no_weights(weights: Weights, target: float) -> Search:
    yield Ones()


def _fixed_point(weights: Weights, target: float) -> Search:
    """α ← min(1, .999 Δ*/F(α)) until Δ ≤ Δ*, with the same random numbers in every fit (METHODS §3, ours).

    A single record rarely has a large loss. But one record can change the result of the search, and so all other weights.
    It can where few records determine many parameters, or where a tenth of the records are outliers. Then its loss on
    the file itself exceeds 2Δ (tests/studies/test_contaminated_weights). The search has no bounded sensitivity. With scale,
    shift or re-weighting, the adjusted weights are fitted and bounded, and they must meet the target.
    """
    summary = yield Ones()
    for step in range(MAX_STEPS):
        if summary.database_bound <= target:
            return
        aim = MARGIN * LOWERED ** max(0, step - PATIENCE) * target
        summary = yield from _adjusted(Cap(aim), weights)
    if not summary.database_bound <= target:
        raise NotReached(f"the fixed point did not reach the target in {MAX_STEPS} steps")


def _scan(rule: Rule) -> Callable[[Weights, float], Search]:
    """The search by a rule with a constant c.

    If a job states c, it is used. Otherwise c is scanned downwards from its start, and the last interval is bisected. A
    scan is needed because Δ is not monotone in c: small weights widen the posterior, and with it F(α).
    """

    def tuned(weights: Weights, target: float) -> Search:
        first = yield Ones()

        def attempt(c: float) -> Generator[Step, Summary, float]:
            return (yield from _adjusted(rule.step(c, weights, first), weights)).database_bound

        if weights.c is not None:
            if not (yield from attempt(weights.c)) <= target:
                raise NotReached(f"with c = {weights.c:g} the bound stays over the target")
            return
        high, low = None, rule.start(target, first)
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

    return tuned


def _scaled(step: Step, weights: Weights) -> Step:
    unchanged = (weights.scale, weights.shift) == (1.0, 0.0)
    return step if unchanged else ScaleShift(step, weights.scale, weights.shift)


def _adjusted(step: Step, weights: Weights) -> Generator[Step, Summary, Summary]:
    summary = yield _scaled(step, weights)
    if weights.reweight is not None:
        summary = yield Reweight(weights.reweight, summary.database_bound)
    return summary


_SEARCHES: dict[WeightRule, Callable[[Weights, float], Search]] = {
    "none": _no_weights,
    "fixed_point": _fixed_point,
    **{name: _scan(rule) for name, rule in RULES.items()},
}
complete(
    "weight rule",
    get_args(WeightRule),
    _SEARCHES,
    "RULES in dpdist/privacy/weights.py (or, for a rule that searches in another way, _SEARCHES in weight_search.py)",
)
