"""Named mechanisms: presets of the forms, with what each promises."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpdist.job import CLAMPED as CLAMPED_NAMES
from dpdist.job import Job, MechanismName
from dpdist.mechanisms import clamped, statistics, tilted
from dpdist.mechanisms.learned import Learned
from dpdist.mechanisms.protocol import Mechanism, Rounds, StratumRecorder
from dpdist.models.cell_sums import CellSums
from dpdist.models.histogram import Histogram
from dpdist.models.protocol import StratumModel
from dpdist.models.reference_cells import ReferenceCells
from dpdist.privacy.guarantees import Asymptotic, Guarantee, NoGuarantee, Promise, Strict, bound_target
from dpdist.privacy.weights import Constant, Kept, Reweight, Search, fixed, search
from dpdist.sampling.clamped import VARIATION

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
USERS_CLAMP = (
    "the user's program: its target weighs a record by exp(clamp(alpha(log_lik − reference), ±clamp)); where the job has a "
    "reference this was tried on its records, at some parameters"
)
FALLBACK_SHOWS = "whether the declared fallback was taken depends on the records and can be seen in the release"
NO_AMPLIFICATION = "no amplification by subsampling is claimed"


OBSERVED = "the bound is the one observed on this file over S posterior draws; it is not a bound over every file"
ON_THIS_FILE = "privacy weights are computed from the confidential file"
CLAMPED = (
    "every record's log factor lies within ±ε/2 (±ε/4 under substitution) of a set's ε, whatever the data are; [G] claims "
    "±ε/2 for substitution, which costs 2ε"
)
WEIGHTS_MOVE = (
    "the clamp alone would be strict; but privacy weights computed from the confidential file are no fixed function of a "
    "record, and one record can move all others' weights"
)
CHAINS = (
    "strict for exact draws only: these are draws of Markov chains within an unknown total variation γ of the clamped "
    "posterior, (ε, (1 + e^ε)γ)-private at best"
)
REJECTION = (
    "strict for exact draws only: these are drawn by rejection, exact but where the density rises above its proposal, "
    f"within a total variation γ of {VARIATION:g} in what was tried, not proven for every file; (ε, (1 + e^ε)γ)-private"
)
CENTRED = (
    "log likelihoods are centred at the reference's fit; that, their power and the clamp were fixed, and a spurious mode "
    "was looked for, on the reference alone, before the current file's outcomes were used"
)
FROZEN = (
    "a record's privacy weight is a fixed function of the record: the weight rule's value under fits of the reference alone"
)
REFERENCE = "the reference file is declared public by the job: of people in it nothing is said"
PROVENANCE = "the reference, as the job says: {}"
CALIBRATED = "the mechanism's constants were tuned on period {}, which the job declares public, and not touched since"
COUNTS = (
    "the bins are fixed by public bounds and sizes; a record that is switched off changes one bin's count by 1, one that "
    "is exchanged two, and every count has discrete Laplace noise of scale 1/ε (2/ε under substitution) of a set's ε"
)


SUMS = (
    "weights and outcomes are clipped to public bounds; a record enters one finest cell, by a weight and a centred product "
    "whose L1 distance from any other record's, or from none, is at most 2 units of the bounds; both sums have discrete "
    "Laplace noise of scale 2/ε of a set's ε in these units, and margins are sums of cells"
)

CLIPPED = (
    "a record enters one finest cell by 1 − v and vc, v its weight and c its centred outcome, clipped at limits that the "
    "reference and public sizes fixed; their L1 norm is at most 1, so switching a record off moves both sums by at most 1 "
    "and exchanging it by at most 2, and both have discrete Laplace noise of that scale over ε; margins are sums of cells"
)
FROM_REFERENCE = (
    "limits, units, clipping's inverse and the tails beyond the limits come from the reference alone; where the current "
    "file's shape is another, beyond a scale of weights and of outcomes, the estimates' bias is in no standard error"
)


def promise_of(job: Job, per_set: Guarantee, *assumptions: str) -> Promise:
    """A promise of m draws, with what all tilted and clamped posteriors stand on."""
    public = tuple(f"number of records after a rule that depends on the outcome: {r}" for r in job.outcome_dependent_rules)
    composition = f"sequential over {job.synthetic_sets} synthetic sets; parallel over strata, whose membership is public"
    total = per_set if isinstance(per_set, NoGuarantee) else per_set.sets(job.synthetic_sets)
    target = None if isinstance(per_set, NoGuarantee) else target_of(job)
    weights = (WEIGHTS_ARE_ATTRIBUTES,) if job.survey.weight else ()
    clamps = (USERS_CLAMP,) if job.mechanism.name in CLAMPED_NAMES else ()
    users = (*USERS_PART, *clamps) if job.model.family == "user" else ()
    tuned = (CALIBRATED.format(job.calibration.period),) if job.calibration is not None else ()
    said = (PUBLIC_X, *public, *weights, *users, NO_AMPLIFICATION, *tuned, *assumptions)
    return Promise(total, per_set, composition, said, target)


def target_of(job: Job) -> float:
    """Δ* of a set, or its clamp M."""
    return bound_target(job.epsilon_per_set, job.budget.adjacency)


@dataclass(frozen=True)
class Weighted:
    """Pseudo posterior with privacy weights tuned to Δ ≤ Δ* on the file itself: asymptotic ([T], [V]).

    Without weights it is the posterior itself, and promises nothing. Studies let a bound pass that is over Δ* (not
    `enforced`), as the papers do: nothing is promised then.
    """

    enforced: bool = True
    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        weights = job.mechanism.weights
        if weights.rule == "none" or not self.enforced:
            return promise_of(job, NoGuarantee())
        said = [OBSERVED, *((FROZEN, *referred(job)) if job.frozen else (ON_THIS_FILE,))]
        if not job.frozen and (weights.rule in ("linear", "cluster") or weights.reweight is not None):
            said.append(LINEAR_EXCEEDS)
        if job.mechanism.fallback != "refuse":
            said.append(FALLBACK_SHOWS)
        return promise_of(job, Asymptotic(job.budget.adjacency, job.epsilon_per_set), *said)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        target = self.promise(job).target
        bound = float("inf") if target is None else target
        frozen = learned.frozen if learned is not None else None
        steps = self.search(job) if frozen is None else tilted.settled(frozen)
        return tilted.protect(model, steps, bound, job.synthetic_sets, recorder)

    def search(self, job: Job) -> Search:
        enforced = self.enforced and job.mechanism.weights.rule != "none"
        return search(job.mechanism.weights, target_of(job) if enforced else float("inf"))


@dataclass(frozen=True)
class WeightedE(Weighted):
    """Weighted-e [G]: weights by the rule's constants, and 0 where α F > Δ*: asymptotic.

    [G] lets the final fit's bound be over Δ*; a release does not.
    """

    def search(self, job: Job) -> Search:
        return fixed(job.mechanism.weights, target_of(job))


@dataclass(frozen=True)
class CensorUW:
    """Censor_uw [G]: the likelihood clamped, α = 1: strict."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, strict(job), CLAMPED, exactness(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        return clamped.protect(model, target_of(job), job.synthetic_sets, recorder)


@dataclass(frozen=True)
class Centred:
    """The centred clamp (METHODS §4b): u = clamp(a(f − f at θ_ref), ±M), θ_ref and a fixed in advance: strict.

    θ_ref from the current file has no bound at all. Needs a proper prior.
    """

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, strict(job), CLAMPED, CENTRED, *referred(job), exactness(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert learned is not None
        constant, sets = Constant(learned.power), job.synthetic_sets
        return clamped.protect(model, target_of(job), sets, recorder, constant, reference=learned.theta)


@dataclass(frozen=True)
class CensorW:
    """Censor_w [G]: the likelihood with *re-weighted* privacy weights (METHODS §4), clamped.

    With a reference α is a fixed function of a record: strict. Without one it is learned on the confidential file: fit 0 →
    F → α → fit 1 → Δ_i → α^w → clamped fit; asymptotic.
    """

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        if job.frozen:
            return promise_of(job, strict(job), CLAMPED, FROZEN, *referred(job), exactness(job))
        return promise_of(job, Asymptotic(job.budget.adjacency, job.epsilon_per_set), CLAMPED, WEIGHTS_MOVE)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        weights, sets = job.mechanism.weights, job.synthetic_sets
        if learned is not None:
            return (yield from clamped.protect(model, target_of(job), sets, recorder, learned.frozen))
        kept, _ = yield from tilted.fits(model, fixed(weights))
        bound = kept[-1].summary.database_bound
        step = Kept() if weights.reweight is None else Reweight(weights.reweight, bound)
        return (yield from clamped.protect(model, target_of(job), sets, recorder, step, tuple(kept)))


@dataclass(frozen=True)
class PerturbedHistogram:
    """[G], Supplement 1: strict, with δ = 0 and no model; every set has noise of its own at ε/m."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), COUNTS)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, Histogram)
        return statistics.perturbed_histogram(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


@dataclass(frozen=True)
class LaplaceStrict:
    """Noisy sums of the finest cells under public bounds, margins added (METHODS §7): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set, exchange=Fraction(1)), SUMS)

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, CellSums)
        return statistics.cell_sums(model, float(job.epsilon_per_set), job.synthetic_sets, recorder)


@dataclass(frozen=True)
class ReferenceTables:
    """Sums of the finest cells, clipped where the reference tells (METHODS §7b): strict, with δ = 0 and no model."""

    scope: Literal["stratum"] = "stratum"

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set), CLIPPED, FROM_REFERENCE, *referred(job))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Learned | None = None) -> Rounds:
        assert isinstance(model, ReferenceCells)
        assert learned is not None
        return statistics.reference_tables(model, learned, float(job.epsilon_per_set), recorder)


def exactness(job: Job) -> str:
    """What a strict guarantee of one exact draw stands on where draws are not proven exact."""
    return CHAINS if job.sampler.name == "stan" else REJECTION


def referred(job: Job) -> tuple[str, ...]:
    """What is said of the job's reference."""
    said = job.reference
    return (REFERENCE, *((PROVENANCE.format(said.provenance),) if said is not None and said.provenance else ()))


def strict(job: Job) -> Strict:
    """A set's guarantee under a clamp of ±ε/2 (±ε/4): one draw of a fixed function of the records (METHODS §2).

    Neither sampler of clamped posteriors has a total variation that is proven for every file: δ is unknown.
    """
    return Strict(job.budget.adjacency, job.epsilon_per_set, None)


MECHANISMS: dict[MechanismName, Mechanism] = {
    "weighted": Weighted(),
    "unweighted": Weighted(),
    "weighted_e": WeightedE(),
    "censor_w": CensorW(),
    "censor_uw": CensorUW(),
    "centred": Centred(),
    "perturbed_histogram": PerturbedHistogram(),
    "laplace_strict": LaplaceStrict(),
    "reference_tables": ReferenceTables(),
}
