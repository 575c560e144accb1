"""The pseudo posterior π(θ) ∏ p(record_i | θ)^α_i, where privacy weights α bound influence.

f is a record's log likelihood. F is its bound: the largest |f| over the draws of the fit with α = 1. F(α) is the largest
|f| over the draws of the fit with weights α. Δ is the largest α F(α) over records, and Δ* is the target of Δ.

For one stratum ([T] steps 1–5; METHODS §3), the first fit has α = 1: statistics, draws of θ, bounds F. Further fits
follow until Δ ≤ Δ*: α, statistics under α, draws of θ, bounds F(α). The released θ_1..θ_m are further draws from
the last posterior, with a separate random key.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats
from dpdist.engine.protocol import (
    BlockRecorder,
    Carry,
    Columns,
    Pass,
    Released,
    Rounds,
    Sample,
    StratumRecorder,
)
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.privacy.weights import (
    AllOutcomes,
    Counted,
    NotReached,
    Ones,
    Step,
    Summary,
    TruncatedWeights,
    applied_to,
    as_weighted,
    bounded,
    informed,
    product,
    summary_of,
    weigh as weigh_by,
)


class FixedPrivacyWeights(NamedTuple):
    """Privacy weights fixed on a reference, by weight rules whose fits use the reference alone.

    `unweighted` are draws of the fit with α = 1, under which F is computed. `steps` are the rules, each with the draws
    of the previous fit; without one, α = 1.
    """

    unweighted: Draws
    steps: tuple[tuple[Step, Draws], ...]

    @property
    def last(self) -> Step:
        """The last rule, or α = 1."""
        return self.steps[-1][0] if self.steps else Ones()

    def weigh(self, model: StratumModel, records: Records) -> tuple[Floats, Floats]:
        """The unweighted record bounds F and the privacy weights α, (record,) each."""
        unweighted = model.extremes(self.unweighted, records).bound
        alpha = np.ones(len(records))
        for step, draws in self.steps:
            bound = unweighted if draws is self.unweighted else model.extremes(draws, records).bound
            alpha = applied_to(step, records.outcomes)(unweighted, alpha, bound)
        return unweighted, alpha


Weighing = Step | FixedPrivacyWeights
"""A step of the weight search, or weights fixed on a reference."""
Weighings = Generator[Weighing, Summary, None]
"""A search for weights: it yields steps, and is sent the summary of the fit under each."""


def weigh(model: StratumModel, step: Weighing, records: Records, carry: Carry) -> Floats:
    """Computes new α from the block's per-record state of earlier rounds, and stores α in this state.

    Weights fixed on a reference start a new state.
    """
    if not isinstance(step, FixedPrivacyWeights):
        return weigh_by(step, records.outcomes, carry)
    carry.clear()
    carry["unweighted"], carry["alpha"] = step.weigh(model, records)
    return carry["alpha"]


class Outcomes(NamedTuple):
    """Kernel, which runs on each block of records: the outcomes, to be concatenated."""

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        return records.outcome.copy()  # a column of a block keeps the whole block in memory


class Weigh(NamedTuple):
    """Kernel: computes new α from the block's state, and returns statistics of the records with these weights."""

    model: StratumModel
    step: Weighing
    counted: Counted = as_weighted

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        return self.model.statistics(records, self.counted(weigh(self.model, self.step, records, carry)))


class Bound(NamedTuple):
    """Kernel: F(α) under the present draws.

    Returns (Δ, max F, −min F, largest range of α f), to be combined by the maximum.
    """

    model: StratumModel
    draws: Draws

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        extremes = self.model.extremes(self.draws, records)
        return np.array([*bounded(carry, extremes.bound), product(carry["alpha"], extremes.range).max(initial=0.0)])


class Byproducts(NamedTuple):
    """Kernel: gives the block's weights, bounds and log likelihood under the final draws to the recorder.

    Returns Σα and the number of records that the last step truncated. Without an unweighted fit the unweighted bounds are
    NaN.
    """

    model: StratumModel
    draws: Draws
    step: Weighing | None = None

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        alpha, unweighted = carry["alpha"], carry.get("unweighted", np.full(len(records), np.nan))
        columns: Columns = {
            "record": records.record,
            "sampling_weight": records.weight,
            "unweighted_record_bound": unweighted,
            "privacy_weight": alpha,
            "record_bound": carry["bound"],
            "weighted_record_bound": carry.get("clamped", product(alpha, carry["bound"])),
        }
        recorder.bounds(Confidential(columns))
        if recorder.wants_log_lik:
            recorder.log_lik(Confidential(self.model.log_lik(self.draws, records)))
        last = self.step.last if isinstance(self.step, FixedPrivacyWeights) else self.step
        step = applied_to(last, records.outcomes) if last is not None else None
        truncated = step.truncated(unweighted) if isinstance(step, TruncatedWeights) else 0
        return np.array([alpha.sum(), truncated])


class StepFit(NamedTuple):
    """A fit under the weights of one step: its statistics, draws and bounds."""

    step: Weighing
    statistics: Floats
    draws: Draws
    summary: Summary
    range_bound: float


def fits(
    model: StratumModel, steps: Weighings, counted: Counted = as_weighted
) -> Generator[Pass | Sample, Any, tuple[list[StepFit], int]]:
    """Runs a weight search, with one fit for each step; returns the first fit, the last three fits and the number of fits.

    `counted` converts a privacy weight to the record's weight in a fit.
    """
    search = informed(steps)
    step = next(search)
    found_fits: list[StepFit] = []
    number = 0
    while True:
        if isinstance(step, AllOutcomes):
            step = search.send((yield Pass(Outcomes(), "concat")))
            continue
        statistics = yield Pass(Weigh(model, step, counted), model.combine)
        theta = yield Sample(statistics, "posterior")
        extremes = yield Pass(Bound(model, theta), "max")
        summary, range_bound = summary_of(extremes), float(extremes[3])
        found_fits = [*found_fits[:1], *found_fits[1:][-2:], StepFit(step, statistics, theta, summary, range_bound)]
        number += 1
        try:
            step = search.send(summary)
        except StopIteration:
            return found_fits, number


def fixed_on_reference(frozen: FixedPrivacyWeights) -> Weighings:
    """A search of one step: the weights that a reference fixed."""
    yield frozen


def protect(model: StratumModel, steps: Weighings, target: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Protects one stratum by the pseudo posterior, with weights from a search; raises `Improper` or `NotReached`."""
    searched, number = yield from fits(model, steps)
    first, final = searched[0], searched[-1]
    if not final.summary.database_bound <= target:
        raise NotReached("the bound of the final fit is above the target")
    total, truncated = yield Pass(Byproducts(model, final.draws, final.step), "sum")
    recorder.posterior("unweighted", Confidential(first.draws))
    recorder.posterior("weighting", Confidential(searched[-2].draws if number > 1 else first.draws))
    recorder.posterior("final", Confidential(final.draws))
    bound = final.summary.database_bound
    diagnostics = {
        "unweighted_database_bound": first.summary.database_bound,
        "privacy_weight_total": float(total),
        "records_censored": float(truncated),
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
    return (yield from release(final.statistics, sets))


def release(posterior: Floats | Clamped, sets: int) -> Rounds:
    """One released draw for each synthetic set, independent of the draws over which bounds were taken."""
    released = []
    for number in range(1, sets + 1):
        theta = yield Sample(posterior, "release", number)
        released.append(theta)
    return Released(tuple(released))
