"""Named mechanisms: presets of the forms, with what each promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpdist.job import Job, MechanismName
from dpdist.mechanisms import tilted
from dpdist.mechanisms.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.models.protocol import StratumModel
from dpdist.privacy.guarantees import Asymptotic, NoGuarantee, Promise, bound_target

PUBLIC_X = (
    "predictors, strata, design strata, table columns and the number of sample records in each combination are public"
)
WEIGHTS_ARE_ATTRIBUTES = (
    "a record's sampling weight is taken as its own attribute: where weights were calibrated or adjusted for nonresponse "
    "from the same sample, one person moves others' weights, and no record-level claim covers that"
)
LINEAR_EXCEEDS = (
    "with linear or re-weighted privacy weights, exact leave-one-out losses with the weights computed anew exceeded ε on "
    "about half of the samples tried"
)
USERS_PART = (
    "the user's program: its target is a log prior plus Σ alpha·log_lik, the prior is proper, and neither it nor "
    "transformed data that enter it use y, w or alpha",
    "the user's program: log_lik of a record depends on that record and the parameters alone, and a Python log_lik is the "
    "density that the program weighs",
    "the user's program: the rounding error of its log_lik is assumed, not known",
)
FALLBACK_SHOWS = "whether the declared fallback was taken depends on the records and can be seen in the release"
NO_AMPLIFICATION = "no amplification by subsampling is claimed"


@dataclass(frozen=True)
class Weighted:
    """Pseudo posterior with privacy weights tuned to Δ ≤ Δ* on the file itself: asymptotic ([T], [V])."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        public = tuple(
            f"number of records after a rule that depends on the outcome: {r}" for r in job.outcome_dependent_rules
        )
        weights = (WEIGHTS_ARE_ATTRIBUTES,) if job.survey.weight else ()
        users = USERS_PART if job.model.family == "user" else ()
        assumptions = (PUBLIC_X, *public, *weights, *users, NO_AMPLIFICATION)
        composition = (
            f"sequential over {job.synthetic_sets} synthetic sets; parallel over strata, whose membership is public"
        )
        if job.mechanism.weights.rule == "none":
            return Promise(NoGuarantee(), NoGuarantee(), composition, assumptions, None)
        per_set = Asymptotic(job.budget.adjacency, job.epsilon_per_set)
        asymptotic: tuple[str, ...] = (
            "the bound is the one observed on this file over S posterior draws; it is not a bound over every file",
            "privacy weights are computed from the confidential file",
        )
        if job.mechanism.weights.rule == "linear" or job.mechanism.weights.reweight is not None:
            asymptotic += (LINEAR_EXCEEDS,)
        if job.mechanism.fallback != "refuse":
            asymptotic += (FALLBACK_SHOWS,)
        return Promise(
            per_set.sets(job.synthetic_sets),
            per_set,
            composition,
            (*assumptions, *asymptotic),
            bound_target(job.epsilon_per_set, job.budget.adjacency),
        )

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder) -> Rounds:
        target = self.promise(job).target
        bound = float("inf") if target is None else target
        return tilted.protect(model, job.mechanism.weights, bound, job.synthetic_sets, recorder)


MECHANISMS: dict[MechanismName, Mechanism] = {"weighted": Weighted()}
