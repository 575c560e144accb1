"""Gathers what a release publishes about its reference: checksum, source, chain of releases, and summaries of strata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpdist.estimation.donors import Donors
from dpdist.job import Job, budget_text
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.on_reference import KnowsDonors, facts_of
from dpdist.planning.plan import Plan
from dpdist.privacy.guarantees import Strict
from dpdist.runtime.fit_address import Fit
from dpdist.runtime.reference import powers
from dpdist.survey.earlier_release import ReferenceRelease
from dpdist.survey.released_reference import composed
from dpdist.survey.same_file import table_content


def summaries(job: Job, fits: Mapping[int, Fit]) -> tuple[dict[str, Facts], dict[str, Donors]]:
    """Returns what is published from the reference, by stratum: distributions of a score model, or donor records."""
    facts, donors = dict[str, Facts](), dict[str, Donors]()
    for stratum, fit in fits.items() if job.has_reference else ():
        learned, label = fit.learned(stratum), fit.frame.stratum_labels[stratum]
        if (of_scores := facts_of(learned)) is not None:
            facts[label] = of_scores
        if isinstance(learned, KnowsDonors) and learned.donors is not None:
            donors[label] = learned.donors
    return facts, donors


def described(plan: Plan, fit: Fit) -> dict[str, Any] | None:
    """Describes the reference for the statement: the checksum of its content, and constants that were learned from it."""
    given, reference = plan.job.reference, plan.reference
    if given is None:
        return None
    if reference is None:
        return _histograms(plan.job) | {"provenance": given.provenance}
    if isinstance(reference, ReferenceRelease):
        return _chained(plan, reference) | {"provenance": given.provenance}
    facts = {
        "sha256": reference.sha256,
        "records": reference.records,
        "period": given.period,
        "provenance": given.provenance,
    }
    if plan.job.mechanism.donates:  # a later release may take this one for its reference, and compares its root
        facts["content"] = table_content(plan.job, reference.source)
    if plan.goodness is not None:
        facts["fit"] = plan.goodness.described()
    if plan.design is not None:
        facts["design_effects"] = plan.design.described()
    return facts | ({"power": powers(fit)} if plan.job.mechanism.centres else {})


def _chained(plan: Plan, earlier: ReferenceRelease) -> dict[str, Any]:
    """Describes the chain of releases that this one continues, and the total ε of a person who is in all their files."""
    guarantee, chain = plan.promise.total, earlier.carried.chain
    assert isinstance(guarantee, Strict)
    exchanged = budget_text(guarantee.substitution_epsilon)
    this_release = {"epsilon": budget_text(guarantee.epsilon), "substitution_epsilon": exchanged}
    totals = {f"chain_{name}": composed([*chain, this_release], name) for name in this_release}
    facts = {"sha256": earlier.sha256, "records": earlier.records, "period": chain[-1]["period"]}
    return {**_histograms(plan.job), **facts, **totals, "chain": chain, "root": dict(earlier.carried.root)}


def _histograms(job: Job) -> dict[str, Any]:
    """States the ε that histograms of the current file take, if there are any."""
    given = job.reference.paid if job.reference is not None else None
    return {"histogram": {"epsilon": budget_text(given.epsilon)}} if given is not None else {}
