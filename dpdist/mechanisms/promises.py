"""The promise of a release before data are seen, and the base class of mechanisms that add noise to sums of records.

The target limits the logarithm of a record's factor in the posterior. It is the bound Δ* of a pseudo posterior, or the
clamp M.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.cautions import Caution
from dpdist.core.confidential import Confidential
from dpdist.core.keys import digest
from dpdist.core.records import Floats
from dpdist.engine.protocol import (
    BlockRecorder,
    Carry,
    Choice,
    Columns,
    Measurement,
    Mechanism,
    Noise,
    Pass,
    Released,
    Rounds,
    Sample,
    StratumRecorder,
)
from dpdist.job import Job, MechanismSpec, NoiseName, budget_text, family_facts
from dpdist.models.protocol import Draws, StratumModel
from dpdist.privacy.claims import NOT_REFUSED, delta_of_draws
from dpdist.privacy.guarantees import (
    Concentrated,
    Guarantee,
    Neighbour,
    NoGuarantee,
    NoisyQuery,
    Promise,
    Strict,
    bound_target,
    guarantee_of,
    record_epsilon,
    total_loss,
)
from dpdist.sampling.samplers import VARIATION

S = TypeVar("S", bound=MechanismSpec)
M = TypeVar("M", bound=StratumModel)


class Summing(ABC):
    """Kernel, which runs on each block of records: sums statistics to which a mechanism then adds noise (METHODS §10).

    A subclass is a frozen dataclass of public values.
    """

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        recorder.bounds(Confidential(_without_bounds(records)))
        return self.sums(records)

    @abstractmethod
    def sums(self, records: Records) -> Floats:
        """Sums over the records: counts by bin, (1, bin), or sums by cell or crosstab row, (…, sum)."""


def _without_bounds(records: Records) -> Columns:
    # Noisy sums have neither bounds nor privacy weights. But bounds.parquet is a documented file, with one schema for all
    # mechanisms. So it keeps a row for every record here: NaN bounds, and a privacy weight of 1.
    none, ones = np.full(len(records), np.nan), np.ones(len(records))
    return {
        "record": records.record,
        "sampling_weight": records.weight,
        "unweighted_record_bound": none,
        "privacy_weight": ones,
        "record_bound": none,
        "weighted_record_bound": none,
    }


class NoisySums(Mechanism, Generic[S, M]):
    """Base class of a mechanism with one class of settings and one model of sums.

    A subclass defines `queries`, `promised` and `rounds`, which get settings and model under their own types. The
    engine computes the guarantee from the queries, and the rounds may ask for no more.
    """

    spec: ClassVar[type[Any]] = MechanismSpec
    """Class of the settings that the mechanism reads; unset if it reads only settings that all mechanisms have."""
    sums: ClassVar[type[Any]]
    """The model that sums the statistics."""

    def promise(self, job: Job) -> Promise:
        """The promise for a job, before data are seen."""
        settings = self.spec.of(job)
        total = guarantee_of(job, self.listed(job))
        promise = self.promised(job, settings, total)
        if isinstance(promise.total, NoGuarantee):
            return promise
        if promise.total.epsilon > job.budget.epsilon:
            raise LossExceeded(f"its queries lose ε = {promise.total.epsilon}, and the job has {job.budget.epsilon}")
        if promise.total.epsilon < total.epsilon:
            raise LossExceeded(f"it promises ε = {promise.total.epsilon}, and its queries lose {total.epsilon}")
        return promise

    def listed(self, job: Job) -> tuple[NoisyQuery, ...]:
        """The queries from which the promise is computed."""
        return tuple(self.queries(job, self.spec.of(job)))

    def protect(self, job: Job, model: StratumModel, recorder: StratumRecorder, learned: Any = None) -> Rounds:
        """The rounds over a stratum's records: passes and queries; `learned` is the reference's summary."""
        assert isinstance(model, self.sums)
        return within_loss(self.rounds(job, self.spec.of(job), model, recorder, learned), self.listed(job))

    @abstractmethod
    def queries(self, job: Job, settings: S) -> Sequence[NoisyQuery]:
        """All noisy queries of a stratum, for all synthetic sets; they follow from the job alone."""

    @abstractmethod
    def promised(self, job: Job, settings: S, total: Strict | Concentrated) -> Promise:
        """The promise. `total` is the guarantee of all queries together."""

    @abstractmethod
    def rounds(self, job: Job, settings: S, model: M, recorder: StratumRecorder, learned: Any) -> Rounds:
        """The rounds, with the mechanism's own settings and model."""


class LossExceeded(ValueError):
    """Raised if a mechanism asks for more than its promise allows; nothing of the stratum is then released."""


def within_loss(rounds: Rounds, listed: Sequence[NoisyQuery]) -> Rounds:
    """The same rounds. Raises `LossExceeded` for a query that states no loss, or that exceeds the remaining loss.

    Queries must stay within the listed loss under every kind of neighbour, because a statement also gives the loss of
    an exchange.
    """
    kinds: tuple[Neighbour, ...] = get_args(Neighbour)
    remaining, reply, begun = {kind: total_loss(listed, kind) for kind in kinds}, None, set[str]()
    while True:
        try:
            request = rounds.send(reply)
        except StopIteration as end:
            released: Released = end.value
            return released
        if not isinstance(request, Pass | Sample):
            query = request.stated
            if query is None or (query.scale, query.law) != (request.noise.scale, request.noise.law):
                raise LossExceeded("a query does not state what its noise loses: ask by Defined.sums or Defined.scores")
            if query.times == 0 and query.name not in begun:
                raise LossExceeded(f"a part of query '{query.name}' is asked for before the part that states its loss")
            begun.add(query.name)
            remaining = {kind: allowed - query.loss(kind) for kind, allowed in remaining.items()}
            if min(remaining.values()) < 0:
                raise LossExceeded(f"query '{query.name}' exceeds the promise: list it, and how often, in queries()")
        reply = yield request


class Defined(NamedTuple):
    """Queries that share one definition.
    Noise is bound to checksums of the definition and of the exact figures, so that it is never used for another query.
    """

    query: str

    @classmethod
    def by_content(cls, definition: object) -> Defined:
        """Queries defined by the model, or by another definition of the figures."""
        return cls(digest(definition))

    def sums(self, exact: Floats, query: NoisyQuery, number: int) -> Measurement:
        """Query `number` of a stratum: these sums plus noise of the stated law and scale."""
        return Measurement(exact, self.noise(exact, query.scale, number, exact.size, query.law), query.once)

    def scores(self, exact: Floats, query: NoisyQuery, number: int) -> Choice:
        """Query `number` of a stratum: which score of each row, (row, candidate), is the largest under noise."""
        return Choice(exact, self.noise(exact, query.scale, number, exact.size, query.law), query.once)

    def noise(self, exact: Floats, scale: Fraction, number: int, size: int, law: NoiseName = "laplace") -> Noise:
        """Noise `number` of a stratum, bound to these figures."""
        return Noise(scale, size, number, law, self.query, digest(exact))


def released_sets(recorder: StratumRecorder, sets: Sequence[Draws], epsilon: float, **diagnostics: float) -> Released:
    """Records the confidential summary of a stratum, then returns its released parameters.

    `epsilon` is the ε of one set; only the summary uses it.
    """
    local = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**local, "diagnostics": diagnostics}))
    return Released(tuple(sets))


PUBLIC_X = (
    "The predictors, strata, design strata and table columns are treated as public, and so is the number of sample "
    "records in every combination of their values."
)
WEIGHTS_ARE_ATTRIBUTES = (
    "Each sampling weight is treated as part of its own record only. If the weights were calibrated or adjusted for "
    "nonresponse using this sample, one person's data also affect other people's weights, and the guarantee does not "
    "cover that effect."
)
WEIGHTS_ARE_PUBLIC = (
    "The job declares that weights by {} are public. Records' weights are read only by the check before a run. The "
    "guarantee does not cover information in the weights."
)
MOVES_COST = (
    "The guarantee does not cover a record that moves to another cell. The move would be visible in the public counts. "
    "Through the noisy sums alone, it would cost {}."
)
MOVES_TWICE = MOVES_COST.format("up to twice the ε stated")
MOVES_EXCHANGED = MOVES_COST.format("no more than changing the record's values within its cell")
MOVES_OF_TWO = {
    "zero_out": MOVES_COST.format("at most twice ε"),
    "add_remove": MOVES_COST.format("at most twice ε"),
    "substitution": MOVES_COST.format("at most ε"),
}
"""Texts by adjacency, for mechanisms in which a move to another cell costs as much as switching off two records."""
MOVES_UNKNOWN = (
    "The guarantee does not cover a record that moves to another cell. The move would be visible in the public counts. "
    "The clipping limits depend on these counts, so there is no bound on what the noisy sums could reveal about the move."
)
USERS_PART = (
    "The user's program is assumed to define its target as log prior + Σ alpha·log_lik, with a proper prior. Neither the "
    "prior nor transformed data may use y, w or alpha.",
    "In the user's program, a record's log_lik is assumed to depend on that record and the parameters only. A log_lik in "
    "Python is assumed to be the same density.",
    "The rounding error of the user's log_lik is assumed, not known.",
)
USERS_CLAMP = (
    "The user's program is assumed to weight a record by exp(clamp(alpha(log_lik − reference), ±clamp)). If the job has a "
    "reference, this was checked on its records at some parameter values."
)
NO_AMPLIFICATION = "The guarantee does not rely on sampling (no amplification by subsampling)."
GATES = "; ε = {epsilon} of the total goes to the gates that decide on publication"
CHAINS = (
    "The guarantee requires exact draws. These draws come from Markov chains, whose total variation distance γ from the "
    "clamped posterior is unknown. They are (ε, (1 + e^ε)γ)-private at best."
)
REJECTION = (
    "The guarantee requires exact draws. These draws come from rejection sampling, which is exact except where the "
    "density exceeds its proposal. In trials the total variation distance γ from the exact distribution was at most "
    f"{VARIATION:g}, which is not proven for every file. At that γ, {{}}."
)
REFERENCE = "The job declares the reference file public. People in it are not protected."
PROVENANCE = "Source of the reference, as stated by the job: {}"
CALIBRATED = (
    "The mechanism's constants were tuned on the file of period {}, which the job declares public, and have been fixed "
    "since."
)
SECRET_SIZES = (
    "The tables' columns, their levels and the fact that the file is not empty are public. The numbers of records, in "
    "total and by cell, are not public: published numbers follow from the noisy sums."
)
NOISY_FRAME = (
    "The columns {columns}, their levels and the fact that the file is not empty are public. Numbers of sample "
    "records by combination are not public: tables, synthetic records and standard errors use noisy numbers, drawn once "
    "before anything else was computed (see protected_predictors)."
)
OF_FRAME = "; ε = {epsilon} of the total goes to noisy sample counts by {columns}"
CHAINED = (
    "The reference is an earlier release. This release spends its own ε, regardless of what the earlier release "
    "revealed. The loss of a person who is in the files of several periods is at most the sum of those releases' ε, or "
    "of their ρ under zCDP (adaptive composition; the chain is listed under `reference`)."
)
UNITS = (
    "The stated {symbol} applies to one {column}; at most {most} of its records are used. Each record gets {share} of "
    "this {symbol}. The sensitivities below are for one record; {most} records change a sum by at most {most} times as "
    "much."
)
THIRD_PARTY = {
    "mechanism": (
        "The mechanism comes from a third party ({distribution} {version}). Its authors state the sensitivity of its sums, "
        "from which the guarantee is computed."
    ),
    "weight rule": (
        "The weight rule '{name}' comes from a third party ({distribution} {version}). Its authors state that a record's "
        "privacy weight depends on its bound and public constants only. dpdist computes the bound under these weights."
    ),
    "family": (
        "The family '{name}' comes from a third party ({distribution} {version}). Its authors state its density, its "
        "draws and their rounding errors, from which bounds on losses are computed."
    ),
    "statistic": (
        "The statistic '{name}' comes from a third party ({distribution} {version}). Its authors define the sums that it "
        "needs. It is computed from released figures and costs no budget."
    ),
}
"""What a promise takes from authors of third-party parts, by kind of part."""
PARALLEL = "; parallel over strata, whose membership is public"
ACROSS_STRATA = "; a record lies in one stratum, and an exchange across strata affects two, at ε/2 each"


class Repetition(NamedTuple):
    """Independent releases from the same records that a release is composed of, such as synthetic sets."""

    number: int
    name: str
    """Name of the parts, in the plural."""
    after: str = ""
    """What post-processing makes of them, after a comma."""


def promise_of(job: Job, of_part: Guarantee, *assumptions: str, repeated: Repetition | None = None) -> Promise:
    """The promise of a release from the guarantee of one of its parts, with the conditions that depend on the job alone.

    Parts are synthetic sets, unless `repeated` says otherwise. The costs of gates and noisy sample counts are added to
    those of the parts. `assumptions` are the conditions that only this mechanism has.
    """
    parts = repeated or Repetition(job.synthetic_sets, "synthetic sets")
    public = tuple(
        f"The job treats as public how many records remain after a rule that depends on the outcome ({r})."
        for r in job.outcome_dependent_rules
    )
    several = f"sequential over {parts.number} {parts.name}"
    composition = (several if repeated or parts.number > 1 else "one synthetic set") + parts.after + parallel(job)
    total: Guarantee = of_part.sets(parts.number)
    if job.gates and isinstance(total, Strict):
        total += Strict(job.budget.adjacency, job.epsilon.gates, exchange=Fraction(1))
        composition += GATES.format(epsilon=budget_text(job.epsilon.gates))
    total, composition = with_frame(job, total), composition + of_frame(job)
    target = None if isinstance(of_part, NoGuarantee) else target_of(job)
    weights = (WEIGHTS_ARE_ATTRIBUTES,) if job.survey.measured_weight else ()
    if (declared := job.survey.design_weights) is not None:
        weights = (WEIGHTS_ARE_PUBLIC.format(", ".join(declared.by)),)
    clamps = (USERS_CLAMP,) if job.mechanism.clamps else ()
    users = (*USERS_PART, *clamps) if family_facts(job).program else ()
    tuned = (CALIBRATED.format(job.calibration.period),) if job.calibration is not None else ()
    sizes = SECRET_SIZES if job.sizes_secret else PUBLIC_X
    if job.noisy_crosstab:
        sizes = NOISY_FRAME.format(columns=", ".join(job.protected_columns) or "none")
    code = [THIRD_PARTY[part].format(name=name, **origin) for part, (name, origin) in job.third_party.items()]
    code += [THIRD_PARTY["statistic"].format(name=name, **origin) for name, origin in job.third_party_statistics.items()]
    conditions = (sizes, *code, *units(job), *public, *weights, *users, NO_AMPLIFICATION, *tuned, *assumptions)
    law = family_facts(job).law
    warned = (str(Caution.of("assumed_distribution", law=law)),) if law else ()
    return Promise(total, of_part, composition, conditions, target, (*warned, *_truncated(job)))


def per_set(total: Strict | Concentrated, job: Job) -> Strict | Concentrated:
    """The guarantee of one of the job's synthetic sets, of which `total` is the sum."""
    if job.synthetic_sets == 1:
        return total
    assert isinstance(total, Strict), "no mechanism draws Gaussian noise for each set"
    return replace(total, epsilon=total.epsilon / job.synthetic_sets)


def with_frame(job: Job, total: Guarantee) -> Guarantee:
    """The guarantee including the cost of the noisy sample counts, if the job has any.

    Both costs have the same class of guarantee.
    """
    adjacency, epsilon = job.budget.adjacency, job.epsilon.crosstab
    if not job.noisy_crosstab or isinstance(total, NoGuarantee):
        return total
    if isinstance(total, Concentrated):
        crosstab = Concentrated(adjacency, epsilon, job.rho.crosstab, total.delta, exchange=Fraction(2))
        return replace(total + crosstab, epsilon=job.budget.epsilon)
    return total + type(total)(adjacency, epsilon)


def of_frame(job: Job) -> str:
    """A clause, with its semicolon, on the part of the budget that noisy sample counts take; empty without them."""
    if not job.noisy_crosstab:
        return ""
    return OF_FRAME.format(
        epsilon=budget_text(job.epsilon.crosstab), columns=", ".join(job.protected_columns) or "no column"
    )


def units(job: Job) -> tuple[str, ...]:
    """A sentence on the part of a privacy unit's budget for one record; empty if the unit is a record."""
    unit = job.privacy_unit
    if unit is None:
        return ()
    symbol, power = ("ε", 1) if job.budget.delta is None else ("ρ", 2)
    return (UNITS.format(symbol=symbol, column=unit.column, most=unit.most, share=f"1/{unit.most**power}"),)


def _truncated(job: Job) -> tuple[str, ...]:
    unit = job.privacy_unit
    if unit is None or unit.beyond != "truncate":
        return ()
    return (str(Caution.of("large_units_truncated", column=unit.column, most=unit.most)),)


def parallel(job: Job) -> str:
    """A clause, with its semicolon, on how strata share one budget; empty without strata."""
    if not job.strata:
        return ""
    return PARALLEL if set(job.strata) <= set(job.counted_columns) or not job.sizes_secret else ACROSS_STRATA


def target_of(job: Job) -> float:
    """The target of one synthetic set: its bound Δ*, or its clamp M."""
    return bound_target(record_epsilon(job, job.epsilon_per_set), job.budget.adjacency)


def exactness(job: Job) -> str:
    """The condition on the sampler under which a guarantee for one exact draw is strict."""
    if job.sampler.name == "stan":
        return CHAINS
    return REJECTION.format(delta_of_draws(job.epsilon_per_set, job.synthetic_sets, VARIATION))


def referred(job: Job) -> tuple[str, ...]:
    """The conditions that concern the job's reference."""
    chained = job.reference is not None and job.reference.release_folder is not None
    refused = (NOT_REFUSED,) if job.strict and job.has_reference else ()
    return (CHAINED if chained else REFERENCE, *refused, *provenance(job))


def provenance(job: Job) -> tuple[str, ...]:
    """What the job says of where its reference comes from, if anything."""
    source = job.reference.provenance if job.reference is not None else None
    return (PROVENANCE.format(source),) if source else ()


def strict(job: Job) -> Strict:
    """The guarantee of one draw if each record's log factor is clamped to ±ε/2, or ±ε/4 under substitution (METHODS
    §2).

    The factor must be a fixed function of the record. No sampler of clamped posteriors has a proven bound on its total
    variation for every file, so δ is unknown.
    """
    return Strict(job.budget.adjacency, job.epsilon_per_set, None)
