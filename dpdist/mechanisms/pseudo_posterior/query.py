"""Confidential half of pseudo and clamped posteriors: each mechanism with its draws and guarantee.

f is a record's log likelihood and α its privacy weight. F is the largest |f| over the draws of the fit with α = 1. Δ is
the largest α |f| over records and over the draws of the fit with weights α, and Δ* is the target of Δ. M is the clamp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpdist.engine.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.job import Job, family_facts
from dpdist.mechanisms.promises import exactness, promise_of, referred, strict, target_of
from dpdist.mechanisms.pseudo_posterior import tilted
from dpdist.mechanisms.pseudo_posterior.on_reference import Centre, RecordWeights, ReferenceDistributions
from dpdist.mechanisms.pseudo_posterior.post import (
    CENTRED,
    CLAMPED,
    FALLBACK_SHOWS,
    FROZEN,
    OBSERVED,
    ON_THIS_FILE,
    REFUSAL_SHOWS,
    REWEIGHTED_EXCEEDS,
    SCORED,
    UNMEASURED,
    WEIGHTS_MOVE,
)
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Asymptotic, NoGuarantee, Promise
from dpdist.privacy.weights import Constant, Reweight, UnchangedWeights, fixed, search_of


def cautioned(job: Job, promise: Promise) -> Promise:
    """Adds the exact losses measured for a weight rule, if weights come from the confidential file."""
    weights = job.mechanism.weights
    exceeds = [] if job.frozen else [weights.facts.exceeds or UNMEASURED.format(weights.rule)]
    exceeds += [REWEIGHTED_EXCEEDS] if weights.reweight is not None and not job.frozen else []
    return replace(promise, cautions=(*exceeds, *promise.cautions))


@dataclass(frozen=True)
class WeightedMechanism(Mechanism):
    """Pseudo posterior whose privacy weights are tuned on the file itself until Δ ≤ Δ*: asymptotic ([T], [V]).

    Under weighted_e [G], weights have the rule's fixed constants, and are 0 where α F > Δ*: asymptotic. There the final
    fit's bound may be above Δ*. Here such a release is refused.

    Without weights this is the ordinary posterior, with no guarantee. With `enforced` False, a bound above Δ* is
    accepted, as in the papers. Only studies use this form, which has no guarantee.
    """

    enforced: bool = True

    def promise(self, job: Job) -> Promise:
        weights = job.mechanism.weights
        if weights.rule == "none" or not self.enforced:
            return promise_of(job, NoGuarantee())
        assumptions = [
            OBSERVED.format(draws=job.sampler.total),
            *((FROZEN, *referred(job)) if job.frozen else (ON_THIS_FILE,)),
        ]
        assumptions += [SCORED] if family_facts(job).on_reference else []
        assumptions.append(REFUSAL_SHOWS if job.mechanism.fallback == "refuse" else FALLBACK_SHOWS)
        return cautioned(job, promise_of(job, Asymptotic(job.budget.adjacency, job.epsilon_per_set), *assumptions))

    def protect(
        self,
        job: Job,
        model: StratumModel,
        recorder: StratumRecorder,
        learned: RecordWeights | ReferenceDistributions | None = None,
    ) -> Rounds:
        target = self.promise(job).target
        bound = float("inf") if target is None else target
        if isinstance(learned, RecordWeights):
            steps = tilted.fixed_on_reference(learned.frozen)
        else:
            steps = search_of(job.mechanism, target_of(job) if job.mechanism.weighting == "cut" else bound)
        return tilted.protect(model, steps, bound, job.synthetic_sets, recorder)


class CensorUWMechanism(Mechanism):
    """Mechanism censor_uw [G]: the likelihood is clamped, with α = 1: strict."""

    def promise(self, job: Job) -> Promise:
        return promise_of(job, strict(job), CLAMPED, exactness(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: None = None) -> Rounds:
        return tilted.protect_clamped(model, target_of(job), job.synthetic_sets, recorder)


class CentredMechanism(Mechanism):
    """The centred clamp (METHODS §4b): a record's log factor is clamp(a(f − f at θ_ref), ±M): strict.

    θ_ref and a are fixed in advance. A θ_ref from the current file would have no bound at all. The prior must be proper.
    """

    def promise(self, job: Job) -> Promise:
        return promise_of(job, strict(job), CLAMPED, CENTRED, *referred(job), exactness(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Centre | None = None) -> Rounds:
        assert learned is not None
        constant, sets = Constant(learned.power), job.synthetic_sets
        return tilted.protect_clamped(model, target_of(job), sets, recorder, constant, reference=learned.theta)


class CensorWMechanism(Mechanism):
    """Mechanism censor_w [G]: the likelihood is clamped and has *re-weighted* privacy weights (METHODS §4).

    With a reference, α is a fixed function of a record, and the guarantee is strict. Without one, α is learned on the
    confidential file, and the guarantee is asymptotic. The steps without a reference are: fit with α = 1; bounds F; α;
    fit with α; bounds Δ_i; re-weighted α; clamped fit.
    """

    def promise(self, job: Job) -> Promise:
        if job.frozen:
            return promise_of(job, strict(job), CLAMPED, FROZEN, *referred(job), exactness(job))
        assumptions = (CLAMPED, WEIGHTS_MOVE, REFUSAL_SHOWS if job.mechanism.fallback == "refuse" else FALLBACK_SHOWS)
        return cautioned(job, promise_of(job, Asymptotic(job.budget.adjacency, job.epsilon_per_set), *assumptions))

    def protect(
        self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: RecordWeights | None = None
    ) -> Rounds:
        weights, sets = job.mechanism.weights, job.synthetic_sets
        if learned is not None:
            return (yield from tilted.protect_clamped(model, target_of(job), sets, recorder, learned.frozen))
        steps_done, _ = yield from tilted.fits(model, fixed(weights))
        bound = steps_done[-1].summary.database_bound
        step = UnchangedWeights() if weights.reweight is None else Reweight(weights.reweight, bound)
        return (yield from tilted.protect_clamped(model, target_of(job), sets, recorder, step, tuple(steps_done)))


MECHANISMS: dict[str, Mechanism] = {
    **dict.fromkeys(("weighted", "unweighted", "weighted_e"), WeightedMechanism()),
    "censor_w": CensorWMechanism(),
    "censor_uw": CensorUWMechanism(),
    "centred": CentredMechanism(),
}
