"""Builds the promise of a mechanism before data are seen: its guarantee, the guarantee's conditions, and the target.

The target limits the logarithm of a record's factor in the posterior. It is the bound Δ* of a pseudo posterior, or the
clamp M.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from dpdist.job import Job, budget_text
from dpdist.job.families import family_facts
from dpdist.mechanisms.wording import (
    BINNED,
    CALIBRATED,
    CHAINED,
    CHAINS,
    GATES,
    MISFIT,
    MOVED,
    NO_AMPLIFICATION,
    NOISY_FRAME,
    NOT_REFUSED,
    OF_FRAME,
    PARALLEL,
    PROVENANCE,
    PUBLIC_X,
    REFERENCE,
    REFRESHED,
    REJECTION,
    SECRET_SIZES,
    THIRD_PARTY,
    TRUNCATED,
    UNITS,
    USERS_CLAMP,
    USERS_PART,
    WEIGHTS_ARE_ATTRIBUTES,
)
from dpdist.privacy.claims import delta_of_draws
from dpdist.privacy.guarantees import (
    Asymptotic,
    Concentrated,
    Guarantee,
    NoGuarantee,
    Promise,
    Strict,
    bound_target,
)
from dpdist.privacy.queries import record_epsilon
from dpdist.sampling.clamped import VARIATION


class Repeated(NamedTuple):
    """Independent releases from the same records that a release is composed of, such as synthetic sets."""

    number: int
    name: str
    """What they are, in the plural."""
    after: str = ""
    """What follows from them by post-processing, after a semicolon."""


def promise_of(job: Job, each: Guarantee, *assumptions: str, repeated: Repeated | None = None) -> Promise:
    """The promise of a release from the guarantee of one of its parts, with the conditions that depend on the job alone.

    Parts are synthetic sets, unless `repeated` says otherwise. What gates and noisy sample counts take is added to theirs.
    `assumptions` are the conditions that only this mechanism has.
    """
    parts = repeated or Repeated(job.synthetic_sets, "synthetic sets")
    public = tuple(
        f"The number of records is public after a rule that depends on the outcome: {r}."
        for r in job.outcome_dependent_rules
    )
    several = f"sequential over {parts.number} {parts.name}"
    composition = (several if repeated or parts.number > 1 else "one synthetic set") + parallel(job) + parts.after
    total = each if isinstance(each, NoGuarantee) else each.sets(parts.number)
    if job.accept is not None and isinstance(total, Strict):
        total += Strict(job.budget.adjacency, job.accept.epsilon, exchange=Fraction(1))
        composition += GATES.format(epsilon=budget_text(job.accept.epsilon))
    total, composition = with_frame(job, total), composition + of_frame(job)
    target = None if isinstance(each, NoGuarantee) else target_of(job)
    weights = (WEIGHTS_ARE_ATTRIBUTES,) if job.survey.weight else ()
    clamps = (USERS_CLAMP,) if job.mechanism.clamps else ()
    users = (*USERS_PART, *clamps) if family_facts(job).program else ()
    tuned = (CALIBRATED.format(job.calibration.period),) if job.calibration is not None else ()
    known = SECRET_SIZES if job.sizes_secret else PUBLIC_X
    if job.predictors is not None:
        known = NOISY_FRAME.format(columns=", ".join(job.protected_columns) or "none")
    code = (THIRD_PARTY.format(**origin),) if (origin := job.mechanism.third_party.get("third_party")) else ()
    said = (known, *code, *units(job), *public, *weights, *users, NO_AMPLIFICATION, *tuned, *assumptions)
    law = family_facts(job).law
    warned = (MISFIT.format(law),) if law else ()
    return Promise(total, each, composition, said, target, (*warned, *_truncated(job)))


def per_set(total: Strict | Concentrated, job: Job) -> Strict | Concentrated:
    """The guarantee of one of the job's synthetic sets, of which `total` is the sum."""
    if job.synthetic_sets == 1:
        return total
    assert isinstance(total, Strict), "no mechanism draws Gaussian noise for each set"
    return replace(total, epsilon=total.epsilon / job.synthetic_sets)


def with_frame(job: Job, total: Guarantee) -> Guarantee:
    """The guarantee including the cost of the noisy sample counts, if the job has any.

    Both costs have the guarantee class of the release.
    """
    adjacency, epsilon = job.budget.adjacency, job.epsilon_of_frame
    if job.predictors is None or isinstance(total, NoGuarantee):
        return total
    if isinstance(total, Concentrated):
        frame = Concentrated(adjacency, epsilon, job.rho_of_frame, total.delta, exchange=Fraction(2))
        return replace(total + frame, epsilon=job.budget.epsilon)
    return total + (Strict(adjacency, epsilon) if isinstance(total, Strict) else Asymptotic(adjacency, epsilon))


def of_frame(job: Job) -> str:
    """A sentence on the part of the budget that the noisy sample counts take; empty without them."""
    if job.predictors is None:
        return ""
    return OF_FRAME.format(
        epsilon=budget_text(job.epsilon_of_frame), columns=", ".join(job.protected_columns) or "no column"
    )


def units(job: Job) -> tuple[str, ...]:
    """A sentence on the part of a privacy unit's budget that remains for one record; none if the unit is a record."""
    said = job.privacy_unit
    if said is None:
        return ()
    symbol, power = ("ε", 1) if job.budget.delta is None else ("ρ", 2)
    return (UNITS.format(symbol=symbol, column=said.column, most=said.most, share=f"1/{said.most**power}"),)


def _truncated(job: Job) -> tuple[str, ...]:
    said = job.privacy_unit
    if said is None or said.beyond != "truncate":
        return ()
    return (TRUNCATED.format(column=said.column, most=said.most),)


def parallel(job: Job) -> str:
    """The condition under which strata share one budget: a record is in one stratum."""
    if not job.strata:
        return ""
    return PARALLEL if set(job.strata) <= set(job.counted_columns) or not job.sizes_secret else MOVED


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
    said = job.reference
    what = REFERENCE
    if said is not None and not said.holds_records:
        what = CHAINED if said.earlier is not None else BINNED
    refreshed = (REFRESHED,) if job.refreshes else ()
    refused = (NOT_REFUSED,) if job.strict and job.has_reference else ()
    return (
        what,
        *refreshed,
        *refused,
        *((PROVENANCE.format(said.provenance),) if said is not None and said.provenance else ()),
    )


def strict(job: Job) -> Strict:
    """The guarantee of one draw under a clamp of ±ε/2 (±ε/4 under substitution) of each record's log factor (METHODS §2).

    The factor must be a fixed function of the record. Neither sampler of clamped posteriors has a proven bound on its
    total variation for every file. So δ is unknown.
    """
    return Strict(job.budget.adjacency, job.epsilon_per_set, None)
