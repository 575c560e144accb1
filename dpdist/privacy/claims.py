"""What a guarantee of each class claims, in words; and advisories on earlier versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil, exp, expm1, floor, log, log10
from typing import Any, NamedTuple

from dpdist.job import Former, Job, budget_text
from dpdist.privacy.adjacency import listed, whom
from dpdist.privacy.guarantees import Promise, large_delta

NONE = (
    "This release has no privacy guarantee: nothing bounds what it reveals about a record, whatever ε the job states. It "
    "is for comparison with protected releases, not for publication."
)
CONCENTRATED = (
    "If {change}, the probability of any published result changes by a factor of at most {factor} (ε = {epsilon} for the "
    "whole release), plus at most δ = {delta}. The release satisfies ρ-zero-concentrated differential privacy (zCDP) "
    "with ρ = {rho}, for every file that meets the conditions listed under `domain` in statement.json. The release has "
    "no finite ε at δ = 0. Losses of several releases add up in ρ, or as (ε, δ) if a release states only ε."
)
STRICT = (
    "If {change}, the probability of any published result changes by a factor of at most {factor} (e^ε with ε = "
    "{epsilon}, for the whole release). This bound holds for every file that meets the conditions listed under `domain` "
    "in statement.json."
)
EXACT_DRAWS = "The guarantee requires exact draws, and the draws of this release are not proven exact (see assumptions)."
ASYMPTOTIC = (
    "The target is that, if {change}, the probability of any published result changes by a factor of at most {factor} "
    "(e^ε with ε = {epsilon}). This is not a differential-privacy guarantee: it has not been proven, either for files in "
    "general or for this file. The privacy weights were adjusted until a bound on the loss, estimated from this file and "
    "from posterior draws, met the target. The true loss of a record can exceed the target."
)
NOT_REFUSED = (
    "A check found none of the current file's records in the reference or, if the reference is itself a release, in the "
    "public file with which its chain of releases began. The outcome of this check depends on the records, and ε does not "
    "cover it."
)
SAME_X = "If protected values are replaced by other values instead, the bound holds with ε = {epsilon}."
REMOVED_AND_ADDED = "Exchanging {whom} for any other counts as one removal and one addition, and costs ε = {epsilon}."
CHAIN = (
    "This release builds on the {last} release. For a person who is in the files of {periods}, the total loss is at most "
    "{loss}."
)
MOVES = (
    "The guarantee does not cover changes to a record's values in the table columns; such changes would be visible in the "
    "published sample counts."
)


def promised(promise: Promise, sampler: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A promise as JSON values, with facts on how posteriors were sampled and on the reference."""
    guarantee, losses = promise.total, promise.total.losses
    entry: dict[str, Any] = {"guarantee": guarantee.name, "adjacency": guarantee.adjacency}
    entry["epsilon"] = losses.get("epsilon")
    entry["epsilon_per_set"] = promise.per_set.losses.get("epsilon")
    entry["substitution_epsilon"] = losses.get("substitution_epsilon")
    entry["delta"] = guarantee.delta_text
    entry |= losses
    entry["composition"] = promise.composition
    entry["assumptions"] = list(promise.assumptions)
    entry["cautions"] = list(promise.cautions)
    entry["sampler"] = dict(sampler)
    if reference is not None:
        entry["reference"] = dict(reference)
    return entry


def factor(epsilon: Fraction) -> str:
    """e^ε as text, rounded up."""
    if epsilon < Fraction(1, 100):
        return f"1 + {1.01 * expm1(float(epsilon)):.3g}"
    if epsilon < 20:
        value = exp(float(epsilon))
        step = Fraction(10) ** (-3 if epsilon < 1 else floor(log10(value)) - 2)
        return f"{float(ceil(Fraction(value) / step) * step):,.10g}"
    return f"10^{ceil(float(epsilon) / log(10)):,}"


def in_words(promise: Mapping[str, Any], job: Job, records: int) -> str:
    """What the guarantee claims for this release. `records` is the number of records as published."""
    if promise["guarantee"] == "none":
        return NONE
    epsilon = promise["epsilon"]
    times = factor(Fraction(epsilon))
    if promise["guarantee"] == "asymptotic":
        return " ".join([ASYMPTOTIC.format(epsilon=epsilon, factor=times, change=_change(promise, job)), *_moves(job)])
    claims = [STRICT.format(epsilon=epsilon, factor=times, change=_change(promise, job))]
    if "rho" in promise:
        terms = {"epsilon": epsilon, "factor": times, "delta": promise["delta"], "rho": promise["rho"]}
        concentrated = CONCENTRATED.format(change=_change(promise, job), **terms)
        claims = [concentrated, *(claim.text for claim in large_delta(job, records))]
    if promise["guarantee"] == "strict for exact draws":
        claims.append(EXACT_DRAWS)
    return " ".join([*claims, *_exchanged(promise, job), *_moves(job)])


def loss_text(epsilon: Fraction, delta: Fraction | None) -> str:
    """A loss as text, exact; under zCDP with the δ at which ε holds."""
    return f"ε = {budget_text(epsilon)}" + (f" at δ = {budget_text(delta)}" if delta else "")


def of_chain(promise: Mapping[str, Any], job: Job) -> list[str]:
    """A sentence on the losses over a chain of releases, if this one continues another."""
    reference = promise.get("reference") or {}
    if not (chain := reference.get("chain")):
        return []
    periods = [link["period"] for link in chain]
    loss = loss_text(Fraction(reference["chain_epsilon"]), Fraction(reference.get("chain_delta") or 0))
    return [CHAIN.format(last=periods[-1], periods=listed([*periods, job.period]), loss=loss)]


def _change(promise: Mapping[str, Any], job: Job) -> str:
    """The difference between neighbouring files, as a clause that follows "if"."""
    is_record = job.privacy_unit is None
    if promise["adjacency"] == "add_remove":
        return f"{whom(job)} {'is' if is_record else 'are'} added or removed"
    if job.budget.exchange == "anywhere":
        return f"{whom(job)} {'is exchanged for any other' if is_record else 'are exchanged for those of any other'}"
    names, exchanged = job.protected_components, promise["adjacency"] == "substitution"
    if is_record and len(names) == 1:
        return f"the value of {names[0]} in one record {'changes' if exchanged else 'is left out'}"
    return f"the values of {listed(names)} in {whom(job)} {'change' if exchanged else 'are left out'}"


def _exchanged(promise: Mapping[str, Any], job: Job) -> list[str]:
    if promise["adjacency"] == "substitution":
        return []
    text = REMOVED_AND_ADDED if promise["adjacency"] == "add_remove" else SAME_X
    values = listed(job.protected_components)
    return [text.format(values=values, whom=whom(job), epsilon=promise["substitution_epsilon"])]


def _moves(job: Job) -> list[str]:
    return [] if job.sizes_secret else [MOVES]


def headline(promise: Mapping[str, Any]) -> dict[str, str]:
    """Guarantee and cost for a screen; the target ε of an asymptotic guarantee has a separate line."""
    if promise["guarantee"] == "none":
        return {"guarantee": "none: for comparison only, not for publication"}
    per_set = promise["epsilon_per_set"]
    cost = f"ε = {promise['epsilon']}" + (f" ({per_set} per set)" if per_set != promise["epsilon"] else "")
    if "rho" in promise:
        cost = f"ρ = {promise['rho']}, ε = {promise['epsilon']} at δ = {promise['delta']}"
    neighbours = promise["adjacency"] + (", anywhere" if promise.get("exchange") == "anywhere" else "")
    if promise["guarantee"] == "asymptotic":
        target = f"{cost}, {neighbours} (a target for this file, not a proven limit)"
        return {"guarantee": "asymptotic: not a differential-privacy guarantee for every file", "aimed at": target}
    times, but = factor(Fraction(promise["epsilon"])), ""
    if "rho" in promise:
        but = f", plus at most {promise['delta']}"
    if promise["guarantee"] == "strict for exact draws":
        but = ", if draws are exact"
    lines = {
        "guarantee": f"{promise['guarantee']}, {cost}, {neighbours}",
        "in words": f"{_change_of(promise)} changes the probability of any result by a factor of at most {times}{but}",
    }
    if promise["adjacency"] != "substitution":
        how = "for any other record" if promise["adjacency"] == "add_remove" else "of values at the same x"
        lines["exchange"] = f"{how}: ε = {promise['substitution_epsilon']}"
    return lines


def _change_of(promise: Mapping[str, Any]) -> str:
    """The difference between neighbouring files in a few words, from a statement."""
    unit = promise.get("privacy_unit", "record")
    if promise["adjacency"] == "add_remove":
        return f"adding or removing one {unit}"
    if promise.get("exchange") == "anywhere":
        return f"exchanging one {unit} for any other"
    verb = "changing" if promise["adjacency"] == "substitution" else "leaving out"
    return f"{verb} the protected values of one {unit}"


def delta_of_draws(epsilon_per_set: Fraction, sets: int, variation: float) -> str:
    """A text on the δ of m sets, m(1 + e^ε)γ, where γ bounds the total variation between draws and posterior."""
    delta = sets * (1.0 + exp(min(float(epsilon_per_set), 50.0))) * variation
    how = f"{sets}(1 + e^{budget_text(epsilon_per_set)})γ" if sets > 1 else f"(1 + e^{budget_text(epsilon_per_set)})γ"
    if delta >= 1.0:
        return f"{how} is above 1, so nothing is guaranteed"
    return f"δ = {how} = {1.005 * delta:.2g}, which should be below 1/n"


class Advisory(NamedTuple):
    """A claim or figures of earlier versions that were wrong, with the releases that have them.

    Later tables or pages do not mend a release: what counts is the version that protected the records.
    """

    name: str
    last: str
    """The last version with the fault; all earlier ones have it too."""
    concerns: Callable[[Job], bool]
    """True for jobs whose releases have the fault."""
    words: str
    """What does not hold, and what to do."""


def _light_weights(job: Job) -> bool:
    """True if sums are drawn in a domain that assumes the weight's lower bound, which a file may violate."""
    column = job.columns.get(job.survey.weight or "")
    if column is None or column.bounds is None or column.outside != "clip" or column.bounds[0] <= 0:
        return False
    return job.mechanism.draws_within_domain


def _figures_of_packages(job: Job) -> bool:
    return isinstance(job.mechanism, Former) and job.mechanism.biased(job.on_records)


ADVISORIES = (
    Advisory(
        "2026-01",
        "0.1.0",
        _light_weights,
        "the claim of this release does not hold if its file had a weight below the weight's lower public bound. Noisy "
        "sums were then drawn from a range that follows from the records, and no ε bounds what they reveal. The publisher "
        "knows whether the file had such weights, and can release it again with a later version, at a new cost",
    ),
    Advisory(
        "2026-02",
        "0.2.0",
        _figures_of_packages,
        "the privacy claim holds, but figures can be wrong. Where a table_package has many sparse cells, means can lie "
        "far from both the direct estimates and the reference, at every ε. Where a chain of releases began without a "
        "reference, its figures carry that bias forward. Intervals do not show either error. To find such errors, compare "
        "figures of all records and of large cells with the reference; the publisher compares them with the direct ones, "
        "by report --confidential of dpdist 0.2, and can release the file again with tables, at a new cost",
    ),
)
"""All advisories, the oldest first."""


def advisories(job: Job, protected_by: str | None) -> list[Advisory]:
    """The advisories that concern a release of this job, whose records this version protected.

    None stands for versions 0.1.0 and earlier, which did not record their number.
    """
    made_by = numbers_of(protected_by or "0")
    return [advisory for advisory in ADVISORIES if made_by <= numbers_of(advisory.last) and advisory.concerns(job)]


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison; a text without numbers comes first."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:3])
