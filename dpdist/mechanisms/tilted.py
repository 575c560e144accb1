"""The tilted posterior: draw θ from π(θ) ∏ p(record_i | θ)^α_i, with weights α that bring every record's bound under Δ*.

Rounds of one stratum ([T] steps 1–5; METHODS §3): statistics → θ draws → F; then, until Δ ≤ Δ*: α → statistics(α) → θ draws
→ F(α). The released θ_1..θ_m are further exact draws from the last posterior, with a key of their own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential import Confidential
from dpdist.job import Weights
from dpdist.mechanisms.protocol import BlockRecorder, Carry, Pass, Released, Rounds, Sample, StratumRecorder
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.weights import NotReached, Ones, Step, Summary, search
from dpdist.records import Floats, Records


class Weigh(NamedTuple):
    """Kernel: new α from the carry, statistics of the α-weighted records. Partial: the statistics."""

    model: StratumModel
    step: Step

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        if isinstance(self.step, Ones):
            carry.clear()
            carry["alpha"] = np.ones(len(records))
        else:
            carry["alpha"] = self.step(carry["unweighted"], carry["alpha"], carry["bound"])
        return self.model.statistics(records, carry["alpha"])


class Bound(NamedTuple):
    """Kernel: F(α) under the present draws. Partial: (Δ, max F, −min F, largest range), to be combined by max."""

    model: StratumModel
    draws: Draws

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        extremes = self.model.extremes(self.draws, records)
        carry["bound"] = extremes.bound
        unweighted = carry.setdefault("unweighted", extremes.bound)
        finite = unweighted[np.isfinite(unweighted)]
        with np.errstate(invalid="ignore"):
            weighted = np.where(carry["alpha"] > 0, carry["alpha"] * extremes.bound, 0.0)
            ranges = np.where(carry["alpha"] > 0, carry["alpha"] * extremes.range, 0.0)
        largest = finite.max(initial=0.0)
        return np.array([weighted.max(initial=0.0), largest, -finite.min(initial=np.inf), ranges.max(initial=0.0)])


class Byproducts(NamedTuple):
    """Kernel: hands the block's weights, bounds and log likelihood under the final draws to the recorder."""

    model: StratumModel
    draws: Draws

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        recorder.bounds(
            Confidential(
                {
                    "record": records.record,
                    "sampling_weight": records.weight,
                    "unweighted_record_bound": carry["unweighted"],
                    "privacy_weight": carry["alpha"],
                    "record_bound": carry["bound"],
                    "weighted_record_bound": np.where(carry["alpha"] > 0, carry["alpha"] * carry["bound"], 0.0),
                }
            )
        )
        if recorder.wants_log_lik:
            recorder.log_lik(Confidential(self.model.log_lik(self.draws, records)))
        return np.array([carry["alpha"].sum()])


class Fit(NamedTuple):
    """A fit under the weights of the last step: its statistics, draws and bounds."""

    statistics: Floats
    draws: Draws
    summary: Summary
    range_bound: float


def fits(model: StratumModel, weights: Weights, target: float) -> Generator[Pass | Sample, Any, tuple[list[Fit], int]]:
    """Run a weight search, one fit a step; returns the first, the last two fits and the number of fits."""
    steps = search(weights, target)
    step = next(steps)
    kept: list[Fit] = []
    number = 0
    while True:
        statistics = yield Pass(Weigh(model, step), model.combine)
        theta = yield Sample(statistics, "posterior")
        bound, largest, negative_smallest, range_bound = yield Pass(Bound(model, theta), "max")
        summary = Summary(float(bound), float(largest), -float(negative_smallest))
        kept = [*kept[:1], *kept[1:][-1:], Fit(statistics, theta, summary, float(range_bound))]
        number += 1
        try:
            step = steps.send(summary)
        except StopIteration:
            return kept, number


def protect(model: StratumModel, weights: Weights, target: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """The tilted posterior over one stratum; raises `Improper` or `NotReached`."""
    kept, number = yield from fits(model, weights, target)
    first, final = kept[0], kept[-1]
    if not final.summary.database_bound <= target:
        raise NotReached("the bound of the final fit is over the target")
    total = yield Pass(Byproducts(model, final.draws), "sum")
    recorder.posterior("unweighted", Confidential(first.draws))
    recorder.posterior("weighting", Confidential(kept[-2].draws if number > 1 else first.draws))
    recorder.posterior("final", Confidential(final.draws))
    bound = final.summary.database_bound
    diagnostics = {
        "unweighted_database_bound": first.summary.database_bound,
        "privacy_weight_total": float(total[0]),
        "fits": float(number),
        **final.draws.diagnostics,
    }
    recorder.summary(
        Confidential(
            {
                "database_bound": bound,
                "epsilon_local": 2.0 * bound,
                "epsilon_local_range": final.range_bound,
                "diagnostics": diagnostics,
            }
        )
    )
    released = []
    for number in range(1, sets + 1):
        theta = yield Sample(final.statistics, "release", number)
        released.append(theta)
    return Released(tuple(released))
