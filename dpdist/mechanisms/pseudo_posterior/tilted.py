"""The pseudo posterior π(θ) ∏ p(record_i | θ)^α_i, where privacy weights α bound influence, and the clamped posterior.

f is a record's log likelihood. F is its bound: the largest |f| over the draws of the fit with α = 1. F(α) is the largest
|f| over the draws of the fit with weights α. Δ is the largest α F(α) over records, and Δ* is the target of Δ.

For one stratum ([T] steps 1–5; METHODS §3), the first fit has α = 1: statistics, draws of θ, bounds F. Further fits
follow until Δ ≤ Δ*: α, statistics under α, draws of θ, bounds F(α). The released θ_1..θ_m are further draws from
the last posterior, with a separate random key.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
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


class Gather(NamedTuple):
    """Kernel, which runs on each block of records: rows (crosstab row, outcome, weight, α, offset), to be concatenated.

    The offset is log p(record | θ_ref), a function of the record alone. It is 0 without a θ_ref, and where the density is
    not finite.
    """

    model: StratumModel
    step: Weighing
    reference: Draws | None = None

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        alpha = weigh(self.model, self.step, records, carry)
        offset = np.zeros(len(records))
        if self.reference is not None:
            offset = np.nan_to_num(self.model.log_lik(self.reference, records)[0], nan=0.0, posinf=0.0, neginf=0.0)
        carry["offset"] = offset
        return np.column_stack([records.row, records.outcome, records.weight, alpha, offset])


class Censor(NamedTuple):
    """Kernel, which runs on each block of records: how strongly the clamp M limits records under the present draws; one
    row (1, 3).

    The row has three figures: records with |α(f − g)| > M in any draw, the largest |clamp(α(f − g))|, and its largest
    range over draws.
    """

    model: StratumModel
    draws: Draws
    clamp: float

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        extremes = self.model.extremes(self.draws, records)
        carry["bound"] = extremes.bound
        high, low = (product(carry["alpha"], f - carry["offset"]) for f in (extremes.highest, extremes.lowest))
        censored = int(((high > self.clamp) | (low < -self.clamp)).sum())
        high, low = np.clip(high, -self.clamp, self.clamp), np.clip(low, -self.clamp, self.clamp)
        carry["clamped"] = np.maximum(high, -low)
        return np.array([[censored, carry["clamped"].max(initial=0.0), (high - low).max(initial=0.0)]])


def protect(model: StratumModel, steps: Weighings, target: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Protects one stratum by the pseudo posterior, with weights from a search; raises `Improper` or `NotReached`."""
    searched, number = yield from fits(model, steps)
    first, final = searched[0], searched[-1]
    bound = final.summary.database_bound
    if not bound <= target:
        raise NotReached("the bound of the final fit is above the target")
    total, truncated = yield Pass(Byproducts(model, final.draws, final.step), "sum")
    weighting = searched[-2] if number > 1 else first
    _record(recorder, [first, weighting], final.draws, (bound, final.range_bound), total, truncated, number)
    return (yield from _release(final.statistics, sets))


def protect_clamped(
    model: StratumModel,
    clamp: float,
    sets: int,
    recorder: StratumRecorder,
    step: Weighing | None = None,
    earlier: tuple[StepFit, ...] = (),
    reference: Draws | None = None,
) -> Rounds:
    """Protects one stratum by the clamped posterior, π(θ) ∏ exp(clamp(α_i(f_i(θ) − g_i), ±M)) ([G] eq. 3.5–3.6).

    g_i is the log likelihood at `reference`, one draw θ_ref that was fixed before the records were seen, or 0. Every
    record's factor lies in [e^−M, e^M] for any data. So the clamp M enforces the limit at which privacy weights aim. `step`
    gives α from the last of the `earlier` fits; without a step α = 1.
    """
    rows = yield Pass(Gather(model, Ones() if step is None else step, reference), "concat")
    posterior = Clamped(rows, clamp)
    theta = yield Sample(posterior, "posterior")
    censored, bounds, ranges = (yield Pass(Censor(model, theta, clamp), "concat")).T
    total, _ = yield Pass(Byproducts(model, theta), "sum")
    figures = float(bounds.max()), float(ranges.max())
    _record(recorder, [*earlier[:1], *earlier[-1:]], theta, figures, total, censored.sum(), len(earlier) + 1)
    return (yield from _release(posterior, sets))


def _record(
    recorder: StratumRecorder,
    earlier: Sequence[StepFit],
    final: Draws,
    bounds: tuple[float, float],
    weights: float,
    censored: float,
    fits: int,
) -> None:
    """Gives the draws of the first fit, of the last weighted one, and the final ones, with their figures, to the recorder.

    `bounds` are the bound and the range of the final draws, `weights` is Σα, and `fits` the number of fits.
    """
    for name, fit in zip(("unweighted", "weighting"), earlier, strict=False):
        recorder.posterior(name, Confidential(fit.draws))
    recorder.posterior("final", Confidential(final))
    diagnostics = {
        **({"unweighted_database_bound": earlier[0].summary.database_bound} if earlier else {}),
        **{"privacy_weight_total": float(weights), "records_censored": float(censored), "fits": float(fits)},
        **final.diagnostics,
    }
    local = {"database_bound": bounds[0], "epsilon_local": 2.0 * bounds[0], "epsilon_local_range": bounds[1]}
    recorder.summary(Confidential({**local, "diagnostics": diagnostics}))


def _release(posterior: Floats | Clamped, sets: int) -> Rounds:
    """One released draw for each synthetic set, independent of the draws over which bounds were taken."""
    released = []
    for number in range(1, sets + 1):
        theta = yield Sample(posterior, "release", number)
        released.append(theta)
    return Released(tuple(released))
