"""The clamped posterior, π(θ) ∏ exp(clamp(α_i(f_i(θ) − g_i), ±M)) ([G] eq. 3.5–3.6).

f_i is a record's log likelihood, α_i its privacy weight, and g_i its log likelihood at a fixed parameter θ_ref, or 0.
Every record's factor lies in [e^−M, e^M] for any data. So the clamp M enforces the limit at which privacy weights aim.

For one stratum there are four steps. The first computes α, with the fits that it needs. The second gathers the records
with α and g. The third draws S parameters for confidential by-products. The last draws the released θ_1..θ_m.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Pass, Rounds, Sample, StratumRecorder
from dpdist.mechanisms.pseudo_posterior.tilted import Byproducts, StepFit, Weighing, release, weigh
from dpdist.models.protocol import Clamped, Draws, StratumModel
from dpdist.privacy.weights import Ones, product


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


def protect(
    model: StratumModel,
    clamp: float,
    sets: int,
    recorder: StratumRecorder,
    step: Weighing | None = None,
    earlier: tuple[StepFit, ...] = (),
    reference: Draws | None = None,
) -> Rounds:
    """Protects one stratum by the clamped posterior.

    `step` gives α from the last of the `earlier` fits; without a step α = 1. `reference` is one draw θ_ref, fixed
    before the records were seen, at which log likelihoods are centred.
    """
    rows = yield Pass(Gather(model, Ones() if step is None else step, reference), "concat")
    posterior = Clamped(rows, clamp)
    theta = yield Sample(posterior, "posterior")
    partials = yield Pass(Censor(model, theta, clamp), "concat")
    total, _ = yield Pass(Byproducts(model, theta), "sum")
    for name, fit in zip(("unweighted", "weighting"), (*earlier[:1], *earlier[-1:]), strict=False):
        recorder.posterior(name, Confidential(fit.draws))
    recorder.posterior("final", Confidential(theta))
    bound = float(partials[:, 1].max())
    diagnostics = {
        **({"unweighted_database_bound": earlier[0].summary.database_bound} if earlier else {}),
        "privacy_weight_total": float(total),
        "records_censored": float(partials[:, 0].sum()),
        "fits": float(len(earlier) + 1),
        **theta.diagnostics,
    }
    recorder.summary(
        Confidential(
            {
                "database_bound": bound,
                "epsilon_local": 2.0 * bound,
                "epsilon_local_range": float(partials[:, 2].max()),
                "diagnostics": diagnostics,
            }
        )
    )
    return (yield from release(posterior, sets))
