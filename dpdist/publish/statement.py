"""The privacy statement, `statement.json`: claims, assumptions, costs, public facts."""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import Any

from dpdist.core.cautions import Caution, described
from dpdist.core.files import STATEMENT
from dpdist.core.minisign import PublicKey
from dpdist.estimation.donors import DONORS, HISTORY
from dpdist.job import Job, budget_text, family_facts
from dpdist.job.data import in_words as merges_in_words
from dpdist.job.families import facts_of
from dpdist.mechanisms.parts import words_of
from dpdist.privacy.adjacency import TRUST_MODEL, domain, headline, listed, neighbours, not_protected, protected, unit
from dpdist.privacy.claims import NOT_REFUSED, in_words, of_chain
from dpdist.privacy.noisy_counts import accepted, layers_of, noise_name
from dpdist.publish.accuracy import standard_errors
from dpdist.publish.predicted_errors import Ratios, cautions, entry
from dpdist.publish.released import DISTRIBUTIONS, ReleasedObject

WEIGHTS = (
    "Small-area borrowing: in cells with few reference records, part of each distribution comes from other cells. The "
    "fewer records a cell has, and the more they resemble those of the other cells, the less weight its own records get."
)


def borrowing(released: ReleasedObject) -> dict[str, Any]:
    """The statement's entry on shapes taken from similar cells; empty if no cell borrows."""
    cells = _borrowed_scores(released)
    return {"in_words": WEIGHTS, "cells": cells} if cells else {}


def _borrowed_scores(released: ReleasedObject) -> list[dict[str, Any]]:
    """Returns one entry for each cell that borrows: its number of reference records, and their weight by distribution.

    A distribution with weight 1 borrows nothing and is left out. The weight is 0 if the cell has no reference record of
    this kind.
    """
    entries = []
    for stratum, label in enumerate(released.crosstab.stratum_labels if family_facts(released.job).on_reference else ()):
        model = released.model(stratum)
        for cell, records, weights in model.borrowed_shapes():
            shares = {name: round(share, 3) for name, share in weights.items() if share < 1.0}
            if shares:
                entries.append({"stratum": label, "cell": cell, "reference_records": records, "own_weight": shares})
    return entries


APPROVAL = (
    "This release was published after an approval. The approver can see the confidential evaluation before deciding. The "
    "decision may therefore depend on the confidential records, and ε does not cover this. {who}"
)
PUBLICATION = (
    "A release that fails its confidential evaluation is held until the custodian publishes it with a reason. Whether "
    "and when this release was published may depend on the confidential records, and ε does not cover this."
)
ANYBODY = "The job lists no keys, so the approval may be signed with any key."
LISTED = "The approval must be signed with one of these keys: {names}."
ADDS_UP = (
    "A person's privacy losses add up across all releases based on files that include that person, whatever the table, "
    "period or survey. For strict releases with the same adjacency and privacy unit, the total ε is at most the sum of "
    "their ε, and the total δ at most the sum of their δ, even if later jobs were chosen after seeing earlier releases. "
    "{}"
)
COUNTED = "A privacy ledger keeps a running total for this dataset."
NOT_COUNTED = "No privacy ledger was used, so nobody keeps a running total that includes this release."
NOISY_COUNTS = (
    "Sample counts by {columns} have {law} with the scales listed. They were then adjusted to be consistent, non-negative "
    "whole numbers. Tables and synthetic records use these counts. A combination with few records may show none, and an "
    "empty one may show some."
)
NOISE_IN_ERRORS = (
    " Standard errors include the noise in these counts, which was simulated: estimates were computed again from counts "
    "with new noise and the same noisy sums."
)
COMBINING = "T = B/m + W"
"""The rule by which estimates of several sets are combined (docs/methods.md, §6)."""
CONTRADICTED = "are refused, so the guarantee compares only files"
VERBATIM = "most of the reference's weights and outcomes, unchanged, by cell"


def statement(released: ReleasedObject, far: Ratios = MappingProxyType({})) -> dict[str, Any]:
    """The content of statement.json: guarantee, adjacency, what was spent, what is public, how the release was made.

    `far` has published figures that may be far from direct ones (`publish.predicted_errors`).
    """
    content = _made(released)
    stated = map(Caution.stated, [*content.get("cautions", ()), *words_of(released.job).cautions_of(released)])
    return {**content, **described([*stated, *cautions(far)]), **entry(far)}


def _made(released: ReleasedObject) -> dict[str, Any]:
    job = released.job
    return {
        "format": STATEMENT,
        "dataset": job.dataset,
        "period": job.period,
        **({"correction": job.correction.model_dump()} if job.correction is not None else {}),
        **_claimed(released),
        **released.promise,
        "assumptions": _assumptions(released),
        **unit_figures(job),
        "privacy_unit_in_words": unit(job),
        **_other_releases(released),
        "trust_model": TRUST_MODEL,
        **_stated(job),
        **({"approval": approval(job)} if job.approval is not None else {}),
        **({"publication": PUBLICATION} if job.held_on_a_verdict else {}),
        "domain": domain(job),
        "synthetic_sets": job.published_sets,
        **({"combining": COMBINING} if job.mechanism.sets == "protected" and job.synthetic_sets > 1 else {}),
        "metered": released.promise.get("metered", False),
        "mechanism": _mechanism(job),
        **({"calibration": job.calibration.public} if job.calibration is not None else {}),
        "model": _model(released),
        "public": _public(released),
        **accepted(job, released.crosstab),
        **_noisy_crosstab(job),
        **({"borrowing": borrowed} if (borrowed := borrowing(released)) else {}),
        "post_processing": _post_processing(released),
        **_microdata(released),
        "standard_errors": standard_errors(released),
        **({"do_not_publish": why} if (why := words_of(job).reason_not_to_publish(released)) is not None else {}),
    }


def _assumptions(released: ReleasedObject) -> list[str]:
    """The promise's, without what is said of the file with which a chain began, if it began with histograms."""
    root = released.promise.get("reference", {}).get("root", {"sha256": None})
    return [text for text in released.promise["assumptions"] if text != NOT_REFUSED or "sha256" in root]


def _mechanism(job: Job) -> dict[str, Any]:
    """The mechanism's published settings; only the registries state who brings the mechanism and its weight rule."""
    published = {**job.mechanism.published(job), "name": job.mechanism.name}
    published.pop("third_party", None)
    if rule := job.origin("weight rule"):
        published["weights"] = {**published.get("weights", {"rule": job.mechanism.weights.rule}), **rule}
    return {"name": published["name"], **job.origin("mechanism"), **published}


def _other_releases(released: ReleasedObject) -> dict[str, str]:
    """A text on the cost of further releases of the same people, and whether a ledger counts them; empty without a
    guarantee.
    """
    if released.promise["guarantee"] == "none":
        return {}
    counted = COUNTED if released.promise.get("metered", False) else NOT_COUNTED
    return {"other_releases": ADDS_UP.format(counted)}


def _stated(job: Job) -> dict[str, str]:
    """Facts that only the job can state: who is responsible, how long records are kept, how choices were made."""
    text = job.presentation
    facts = {"responsible_body": text.responsible, "contact": text.contact, "retention": text.retention}
    facts["choices"] = text.choices or (text.registry.tuning if text.registry is not None else None)
    return {name: value for name, value in facts.items() if value is not None}


def _noisy_crosstab(job: Job) -> dict[str, Any]:
    """A text on the noise of sample counts, and its scales, where the job protects predictors; else empty."""
    if not job.noisy_crosstab:
        return {}
    law = "discrete Gaussian noise" if noise_name(job) == "gaussian" else "discrete Laplace noise"
    parts = [
        {"by": list(level.columns), "scale": "exact" if level.scale is None else budget_text(level.scale)}
        for level in layers_of(job)
    ]
    words = NOISY_COUNTS.format(law=law, columns=", ".join(job.protected_columns) or "no column")
    words += "" if job.mechanism.sets == "none" else NOISE_IN_ERRORS
    return {"protected_predictors": {"in_words": words, "epsilon": budget_text(job.epsilon.crosstab), "measured": parts}}


def _microdata(released: ReleasedObject) -> dict[str, Any]:
    """A text on which columns of synthetic records were measured, where the job copies others from its reference."""
    job = released.job
    measured_columns, copied = [*job.modelled_columns, *job.components], list(job.microdata.columns)
    return (
        {"microdata": {"in_words": words_of(job).entries["microdata"], "measured": measured_columns, "copied": copied}}
        if copied
        else {}
    )


def unit_figures(job: Job) -> dict[str, Any]:
    """The privacy unit, the largest number of its records that count, and the share of ε (or ρ) that each record has."""
    if (unit_spec := job.privacy_unit) is None:
        return {"privacy_unit": "record"}
    share = Fraction(1, unit_spec.most) if job.budget.delta is None else Fraction(1, unit_spec.most**2)
    return {"privacy_unit": unit_spec.column, "privacy_unit_most": unit_spec.most, "record_share_of_budget": str(share)}


def approval(job: Job) -> str:
    """A text on who may have approved the release, with the remark that no ε covers this choice."""
    names = ", ".join(PublicKey.parse(key).name for key in job.approvers)
    return APPROVAL.format(who=LISTED.format(names=names) if names else ANYBODY)


def _claimed(released: ReleasedObject) -> dict[str, Any]:
    """The guarantee, the neighbours, and the protected part of a record, in words.

    Without a guarantee it states this, and lists what is not protected.
    """
    job, promise = released.job, released.promise
    words, open_parts = in_words(promise, job, int(released.crosstab.count.sum())), not_protected(job, _on_a_file(released))
    if promise["guarantee"] == "none":
        return {"guarantee_in_words": words, "protected": [], "not_protected": [*job.components, *open_parts]}
    return {
        "headline": headline(job),
        "guarantee_in_words": " ".join([words, *of_chain(promise, job)]),
        "adjacency_in_words": neighbours(job),
        **({"exchange": job.budget.exchange} if job.budget.adjacency == "substitution" else {}),
        "protected": protected(job),
        "not_protected": open_parts,
    }


def _model(released: ReleasedObject) -> dict[str, Any]:
    model = released.job.model
    if model is None:
        return {"parameters": _density(released)}
    synthesis = {"synthesis": model.synthesis} if family_facts(released.job).synthesis else {}
    return {"family": model.family, **released.job.origin("family"), **synthesis, "parameters": _density(released)}


def _density(released: ReleasedObject) -> str:
    job = released.job
    sums, weight = words_of(job).density_of(released), job.survey.weight or "a weight of 1"
    if sums:
        return sums.format(outcome=listed(job.outcomes), weight=weight)
    names = {"outcome": (", log " if family_facts(job).logs else ", ").join(job.outcomes), "weight": weight}
    condition = ", given the predictors" if job.likelihood_predictors else ""
    density = facts_of(job.likelihood.family).density.format(**names)
    return f"natural logarithm of the {density}{condition}, in the observed sample"


def _on_a_file(released: ReleasedObject) -> bool:
    """True if limits come from a reference file: the job has no histograms, and the promise names no earlier release."""
    job, chained = released.job, "chain" in released.promise.get("reference", {})
    return job.reference is not None and not job.epsilon.histograms and not chained


def _public(released: ReleasedObject) -> list[str]:
    job = released.job
    noisy, by = "noisy " if job.sizes_secret else "", ", ".join(job.categories) or "no column"
    facts = [
        f"{noisy}sample counts by {by} (released/frame.parquet)",
        *([_drawn(job)] if job.is_domain and job.drawn_is_public else []),
        "levels and bounds declared in the job",
        "the seed used in publication, which is independent of the noise that protects the records",
    ]
    if job.reference is not None:
        what = "a file that the job declares public (its checksum is given under `reference`)"
        chained, binned = "chain" in released.promise.get("reference", {}), bool(job.epsilon.histograms)
        if chained:
            also = ", together with noisy histograms of the current file" if binned else ""
            what = f"an earlier release (the checksum of its manifest is given under `reference`){also}"
        elif binned:
            what = "points derived from noisy histograms, whose counts are not published"
            if released.points is None:
                what = "noisy histograms of the current file (released/set-1.json)"
        facts.append(f"the reference: {what}")
    if released.facts:
        what = VERBATIM if _on_a_file(released) else "points of the earlier release, unchanged"
        facts.append(f"released/{DISTRIBUTIONS}: {what}")
    if any(map(len, released.donors.values())):
        copied = f", with its {', '.join(job.microdata.columns)}" if job.microdata.columns else ""
        facts.append(f"released/{DONORS}: {VERBATIM}{copied}")
    if released.history:
        before = max(map(len, released.history.values())) - 1
        earlier = "" if before == 0 else f" and in {before} earlier release{'s' * (before > 1)}"
        facts.append(f"released/{HISTORY}: noisy totals of measured cells in this release{earlier}")
    facts += [f"the recode of {name} when a file is read: {merges_in_words(merges)}" for name, merges in job.recode.items()]
    facts += [
        f"the universe: {keep.column} is {'one of ' * (len(keep.keep) > 1)}{', '.join(map(str, keep.keep))}"
        for keep in job.universe
    ]
    facts += [
        f"the universe of table {table.name}: {job.presentation.within(table.universe)}"
        for table in job.tables
        if table.universe
    ]
    if (public := job.survey.design_weights) is not None:
        facts.append(
            f"the weights by {', '.join(public.by)}, which the job lists; files with other weights {CONTRADICTED} with "
            "the listed weights"
        )
    elif alike := job.survey.weights_constant_in:
        facts.append(
            f"that all records with the same {', '.join(alike)} have the same weight; other files {CONTRADICTED} of "
            "this kind"
        )
    facts += [f"the job states: {sentence}" for sentence in job.assumed_public]
    return facts + [
        f"assumed public, although it depends on the outcome: how many records remain after a rule ({rule})"
        for rule in job.outcome_dependent_rules
    ]


def _drawn(job: Job) -> str:
    by = f"by {', '.join(job.survey.design_strata)}" if job.survey.design_strata else "in total"
    least = job.least_count
    rounding = (
        f"; if at least one record is left out, but fewer than {least}, {least} count as left out" if least > 1 else ""
    )
    return (
        f"the number of sampled records {by}, including those outside the universe or dropped by the job's rules "
        f"(released/frame.parquet){rounding}"
    )


def _post_processing(released: ReleasedObject) -> list[str]:
    job, words = released.job, words_of(released.job)
    if job.mechanism.sets == "none":
        return words.post_processing(released)
    bounds = {name: column.ends for name, column in job.outcome_columns.items()}
    ranges = "; ".join(f"{name}: [{low:,.10g}, {high:,.10g}]" for name, (low, high) in bounds.items())
    steps = [
        f"Synthetic values outside the public bounds ({ranges}) are set to the nearest bound; the estimated means take "
        "this into account."
    ]
    steps += words.post_processing(released)
    if family_facts(job).on_reference:
        steps.append(
            "The reference's distributions convert scores into weights and outcomes, so no drawn value lies beyond the "
            "reference's range. Means from parameters use the reference's mean weight and mean outcome in narrow bins of "
            "scores."
        )
    if family_facts(job).on_reference and (borrowed := borrowing(released)):
        steps.append(f"{borrowed['in_words']} The entry `borrowing` names these cells.")
    if job.likelihood.synthesis == "fbp":
        weights = "N/n with the public N" if job.likelihood.population_weights == "proportional" else "1/E(π|x)"
        steps.append(f"Synthetic outcomes follow the distribution in the population; synthetic weights are {weights}.")
    if job.likelihood.synthetic_weights == "expected":
        steps.append("Synthetic weights are not drawn: they are E(w|y*, x) under the released parameters.")
    if job.rake:
        by = "; ".join(", ".join(margin.by) or "all records" for margin in job.rake)
        steps.append(f"Weights, and tables from parameters, are raked to the public totals by {by} that the job states.")
    return steps
