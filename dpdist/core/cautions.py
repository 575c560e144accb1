"""Catalogue of cautions: code, stage, what it means and what to do, with named parameters, and an explanation.

A caution refuses nothing. Statements keep its text; `Caution.stated` finds the code of a text by the catalogue, also in
statements of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

Stage = Literal["plan", "release"]
UNCATALOGUED = "from_mechanism"
"""Code of a caution whose text is not in the catalogue."""
LONGEST = 4_096
"""Longest text whose code is looked for: it may come from a folder that somebody else made."""


class CautionKind(NamedTuple):
    stage: Stage
    """Given before a run alone, or published with the release, too."""
    text: str
    """What it means: one or two sentences."""
    remedy: str = ""
    """What to do: a sentence."""
    explanation: str = ""
    """What it means and what to do, for a reader without a case at hand."""


KINDS: Mapping[str, CautionKind] = {
    "former_mechanism": CautionKind(
        "release",
        "'{former}' is called '{present}' since dpdist 0.3, and this job runs as '{present}'{dropped}.",
        "Write mechanism: {{name: {present}}}; the next version no longer accepts the old name.",
        explanation="The job uses a mechanism's name from before dpdist 0.3, and runs as if it gave the present name. "
        "Write that name into the job, because the next version accepts no other.",
    ),
    "small_reference_cells": CautionKind(
        "plan",
        "Cells with fewer than {least} reference records borrow part of their distributions from similar cells: {cells}.",
        "Merge these cells, or use a larger reference.",
        explanation="In some cells the reference has so few records that their distributions are partly those of similar "
        "cells. Their quantiles and synthetic records say less about the cells themselves. Merge levels, or "
        "use a larger reference.",
    ),
    "design_left_out": CautionKind(
        "release",
        "Published standard errors ignore {design}, so intervals may be too narrow.",
        "State survey.design_effect: {effect}.",
        explanation="The sample was drawn in clusters, or has replicate weights, and the standard errors of this "
        "mechanism do not reflect that. The figures are not affected, but the intervals are too narrow. State "
        "survey.design_effect, which you can compute from an earlier file.",
    ),
    "reference_without_period": CautionKind(
        "plan",
        (
            "The job states no period for its reference. If the reference is the file of {period} itself, the release "
            "publishes confidential records."
        ),
        "Add period and provenance to reference.",
        explanation="The job does not state the reference's period. If the reference is the current file, the release "
        "publishes records of the people whom it should protect. State the reference's period and where it "
        "comes from.",
    ),
    "no_reference": CautionKind(
        "plan",
        "The job names no reference, so noisy histograms of the current file cost {cost} of its ε = {epsilon}. Errors of "
        "counts and means are then one and a half to four times as large as with an earlier public file, and far larger "
        "where large amounts have small weights, as in surveys of firms.",
        (
            "Name a public file of this or a similar survey under reference, or, if there is none, state "
            "reference.histogram.epsilon."
        ),
        explanation="Without a reference, dpdist spends part of ε on noisy histograms of the current file, from which it "
        "chooses clipping limits. Errors are larger, and quantiles are refused. If this job extends another, `reference: "
        "null` may have removed that job's reference. Name a public file of this or a similar survey under reference. If "
        "there is none, set reference.histogram.epsilon; this caution will then no longer appear.",
    ),
    "periods": CautionKind(
        "plan",
        "The job is for period {period}, and its reference is from {earlier}: {doubt}.",
        "Check both periods.",
        explanation="A reference is usually the file of an earlier period. Here the reference is of a later period than "
        "the job, or one of the two periods may be misspelled. The period is printed on the release, and the "
        "ledger charges the release to it. Check both periods. A later file may be the reference if it is "
        "public: the guarantee is the same, and estimated changes then run back in time.",
    ),
    "old_reference": CautionKind(
        "plan",
        "The reference is from {earlier}, {years} years from {period}: the distributions of weights and outcomes may have "
        "changed since then, and dpdist rehearse cannot show such a change.",
        "Use a newer reference, or noisy histograms of the current file, which cost part of ε.",
        explanation="The reference is so old that weights and outcomes may be distributed differently today. Errors can "
        "then be larger than those in a rehearsal, which uses only the reference. Use a newer reference, or spend part "
        "of ε on histograms of the current file.",
    ),
    "reference_published": CautionKind(
        "plan",
        "Weights and outcomes of the reference's records are published with the release, in {file}.",
        "Publish the release only if the reference is public.",
        explanation="The release contains weights and outcomes of the reference's records, because tables are computed "
        "from them. This does no harm if the reference is a public-use file. If it is not public, do not "
        "publish the release, and name another reference.",
    ),
    "few_reference_records": CautionKind(
        "plan",
        "The reference has {records} records. Clipping limits are derived from the largest values in the reference, for "
        "which at least {least} records are needed.",
        "Use a larger reference.",
        explanation="Clipping limits are derived from the largest values in the reference. A small reference contains "
        "few large values, so large values in the current file may be clipped. Use a larger reference.",
    ),
    "reference_unit": CautionKind(
        "plan",
        "No value of '{column}' in the reference reaches 1 % of its public bounds, {bounds}.",
        "Check that reference and bounds are in the same unit, such as euros or thousands of euros.",
        explanation="All values in the reference are far below the job's upper bound. A common cause is that either the "
        "values or the bounds are in thousands, or are monthly amounts. Compare both with the file's documentation; if "
        "both are right, narrow the bounds, which lowers the noise.",
    ),
    "constant_in_reference": CautionKind(
        "plan",
        "All {records} records of the reference have {value} as '{column}'. They do not show how it varies, so figures may "
        "be far off, and published standard errors do not include this.",
        "Check that this column means the same in both files, or use another reference.",
        explanation="Clipping limits, predictions and standard errors follow from how values of the reference vary. A "
        "column that is constant there is taken for constant in the file, too. If it is not, its figures are nearly those "
        "of the reference, and their standard errors are far too small. Check that the column means the same in both "
        "files, or use another reference.",
    ),
    "priority_without_effect": CautionKind(
        "plan",
        "'{mechanism}' gives all tables the same accuracy, so priority and error of {tables} have no effect.",
        "Remove these keys, or use the mechanism tables.",
        explanation="This mechanism gives every table the same accuracy. Remove priority and error from the tables, or "
        "use the mechanism `tables`, which divides the budget according to them.",
    ),
    "low_public_totals": CautionKind(
        "plan",
        "rake, {margin}: public totals are smaller than the number of sample records ({cells}), so the mean weight would "
        "be below 1.",
        "Check the unit of the totals, and the population that they describe.",
        explanation="Weights are raked to public totals that are smaller than the numbers of records in the sample, as "
        "if one record stood for less than one person. The totals are probably in thousands, or refer to another "
        "population.",
    ),
    "noise_of_gate": CautionKind(
        "plan",
        "Gate '{gate}': its noise has a standard deviation of {deviation} divided by {smallest}. Unless this divisor is "
        "above {least}, the gate may fail good releases.",
        "Base the gate on tables with large cells, or give gates more of ε.",
        explanation="Before publication, a gate compares a noisy figure with a limit. Its noise is so large that a good "
        "release can fail, which still costs the budget. Base the gate on tables with large cells, or give gates a "
        "larger part of ε.",
    ),
    "weak_guarantee": CautionKind(
        "plan",
        "ε = {epsilon} is a weak guarantee: whoever knows all other records can be nearly certain about the last one.",
        "Use a smaller epsilon.",
        explanation="At so large an ε the guarantee rules out almost nothing: someone who knows everybody else in the "
        "file can infer a record from the release. Use a smaller ε, or do not call the release protected.",
    ),
    "large_delta": CautionKind(
        "release",
        "δ = {delta} is not below 1/n = 1/{records}. Publishing one record in full, chosen at random, would meet such a δ.",
        "Use a δ far below 1/n.",
        explanation="δ bounds the probability that the guarantee fails. It should be so small that a failure is unlikely "
        "for any of the records. Use a δ far below one over the number of records.",
    ),
    "distribution_not_judged": CautionKind(
        "release",
        "Fit of the {law} distribution to the reference: {figures}.",
        explanation="The model assumes a distribution for the outcome, and no cell of the reference is large enough to "
        "test it. Read the evaluation before you publish, or test the distribution on a larger reference.",
    ),
    "distribution_misfits": CautionKind(
        "release",
        "The {law} distribution does not fit the reference: {figures}. Published figures will therefore be biased, and "
        "standard errors do not include this bias.",
        "Use the mechanism tables, or a family that fits.",
        explanation="The model assumes a distribution for the outcome that the reference contradicts. Published figures "
        "will therefore be biased, however large ε is, and the intervals do not reflect this bias. Use a family that "
        "fits, or the mechanism `tables`, which assumes no distribution.",
    ),
    "reused_psu_codes": CautionKind(
        "plan",
        "'{psu}' has fewer than {least} codes, and the job names no design strata. If codes start again in every stratum, "
        "different PSUs count as one.",
        "Name survey.design_strata.",
        explanation="The column of PSUs has very few codes. Usually they are numbered anew in every stratum, so that "
        "different PSUs count as one, and standard errors are wrong. Name the column of strata under "
        "survey.design_strata.",
    ),
    "small_strata": CautionKind(
        "plan",
        "{strata}: with {records} records, the bound probably cannot be lowered to Δ* = {target}, and the run would be "
        "refused. About {least} records are needed.",
        "Pool strata, drop predictors, use model.prior: {{name: proper}}, or raise the budget.",
        explanation="A stratum has so few records that the stated bound on the privacy loss cannot be met, and the run "
        "would end without a release. Pool strata, use fewer predictors or a proper prior, or raise the budget.",
    ),
    "small_counts": CautionKind(
        "plan",
        (
            "{counts}. Anyone who knows that a particular person is in the sample may be able to find that person's "
            "cell, and so learn the person's values in the columns that define it. {consequence}"
        ),
        "{remedies}",
        explanation="The release publishes numbers of sample records, and some are below the job's minimum. Anyone who "
        "knows that a particular person is in the sample may be able to find that person's cell, and so learn the "
        "person's values in the columns that define it. Many agencies forbid such counts. Use coarser levels or fewer "
        "columns; protect the counts with budget.adjacency: add_remove; or state under public_frame why they may be "
        "published.",
    ),
    "empty_levels": CautionKind(
        "plan",
        "No record has {empty} of the {levels} levels of '{column}': {names}.",
        (
            "Check the spelling of these levels. If the levels really are empty, their cells are published as empty or "
            "contain only noise."
        ),
        explanation="The job lists levels that no record has. One may be misspelled, so that its records are missing "
        "from the tables. If the levels really are empty, their cells are published as empty or contain only noise.",
    ),
    "fit_unseen": CautionKind(
        "plan",
        "How well the model fits is known only after the run.",
        "Look at {command} before publishing.",
        explanation="Whether the model fits this survey can be seen only from the survey itself. After the run, read the "
        "confidential report, and publish only if its verdict allows it.",
    ),
    "exact_losses": CautionKind(
        "plan",
        "Privacy weights are computed from this file, so the privacy loss of a record can exceed ε.",
        "After the run, {command} measures the exact losses.",
        explanation="Privacy weights are computed from the file, so ε is a target that the losses of individual records "
        "may exceed. Audit the workspace after the run: the audit computes the exact losses, which are confidential.",
    ),
    "hidden_counts": CautionKind(
        "plan",
        "{table}: noise hides {hidden} of {cells} published counts, even if all weights in these cells are at the bound: "
        "{names}. Means of these cells are meaningless.",
        "Raise epsilon, or merge levels with few records.",
        explanation="The noise is larger than the largest value that some counts can have, so these figures, and the "
        "means of such cells, are mostly noise. Raise ε, merge levels with few records, or publish fewer "
        "tables.",
    ),
    "predicted_far_off": CautionKind(
        "plan",
        (
            "{table}, {statistic}: figures may differ from the survey's own estimates by more than {factor} of their "
            "standard errors in {cells} ({names})."
        ),
        "Raise epsilon, or merge levels with few records.",
        explanation="The plan predicts that some figures will differ from the direct estimates by several of their "
        "standard errors. Raise ε, publish fewer tables, or use a more similar reference. Merging levels with few "
        "records also helps, except for a total over all records.",
    ),
    "public_totals_proposed": CautionKind(
        "plan",
        (
            "{table}, count: the design fixes the counts of {fixed} of {cells} cells, so their direct estimates have no "
            "sampling error."
        ),
        "If these totals are public, state {rake} before the run: the counts are then published without error.",
        explanation="The survey's design fixes some counts: every sample gives the same figure. If these totals are "
        "public, state them under rake. The counts are then exact and cost nothing.",
    ),
    "far_off": CautionKind(
        "release",
        (
            "{table}, {statistic}: figures may differ from the survey's own estimates by more than {factor} of their "
            "standard errors in {cells}."
        ),
        "Do not rely on these figures; `beyond_direct` in statement.json lists all of them.",
        explanation="The release itself shows that some figures may differ from the direct estimates by several of their "
        "standard errors. `beyond_direct` in statement.json lists them. Do not rely on them, nor on differences and "
        "ratios computed from them.",
    ),
    "withheld": CautionKind(
        "release",
        "{table}: {withheld} of {figures} figures {are} withheld, because {errors} larger than {limit}.",
        "Use coarser cells; a larger ε helps only where noise is the larger part of the error.",
        explanation="The job withholds a figure if its standard error is too large, because such a figure is "
        "uninformative; `withheld` in statement.json has the rule. The confidence limits are still published. With "
        "coarser cells, fewer figures are withheld; a larger ε helps only where noise, and not the small sample, causes "
        "the error.",
    ),
    "all_withheld": CautionKind(
        "release",
        "{table}: no figure of {statistic} is published, because every standard error is larger than {limit}.",
        "Check the units of file, bounds and reference; otherwise use coarser cells.",
        explanation="A statistic has no published figure at all. The usual cause is a difference of units: file, bounds "
        "and reference must all be in euros, or all in thousands of euros. If the units agree, the cells are "
        "too small for this statistic.",
    ),
    "drift": CautionKind(
        "release",
        "Cells have drifted from the reference ({cells}; `drift` in statement.json names them), and no standard error "
        "includes a change in the shape of a distribution.",
        "Use a newer reference next time, or noisy histograms.",
        explanation="The release shows that this period differs from the reference by more than noise and sampling "
        "explain. Estimates follow the measured change. A change in the shape of distributions is not "
        "measured, so treat quantiles with care, and use a newer reference next time.",
    ),
    "assumed_distribution": CautionKind(
        "release",
        "The model assumes a {law} distribution within cells. If the file's distribution differs, tables and synthetic "
        "records can be off by many standard errors. Standard errors do not include this bias.",
        explanation="The mechanism fits the distribution that the job's family names to every cell. If values are "
        "distributed differently, figures are biased, however large ε is, and the intervals do not reflect this bias. "
        "Compare the release with direct estimates (`dpdist report --confidential`) before you publish, or use the "
        "mechanism `tables`, which assumes no distribution.",
    ),
    "loss_above_epsilon": CautionKind(
        "release",
        "With {rule} privacy weights, the privacy loss of a record can exceed ε: {evidence}.",
        explanation="Privacy weights are computed from the confidential file, so ε is a target and not a bound for every "
        "record. The caution states by how much the losses of individual records exceeded ε in tests. Measure the exact "
        "losses of this release with `dpdist audit`, or use a mechanism with a strict guarantee.",
    ),
    "large_units_truncated": CautionKind(
        "release",
        "If a {column} has more than {most} records, only the first {most} in the file are used. The other records are "
        "left out, and standard errors do not include the bias that this can cause.",
        explanation="The job limits the number of records of a privacy unit, and drops further records of larger units. "
        "If there are such units, counts and totals are too low. If many units are larger, raise "
        "privacy_unit.most to a number that is public.",
    ),
    "changed_since_reference": CautionKind(
        "release",
        "{what}, over all records, are {change} the reference's prediction; in single levels and cells, the change "
        "differs from this by {cells} (one standard deviation). Standard errors include this drift. The exceptions are "
        "outcomes beyond the clipping limits and, if sample counts are secret, weights; both are still estimated from "
        "the reference. If they have become more unequal, figures can be too low.",
        "Check that the file and the reference use the same units and were sampled in the same way. Otherwise use a newer "
        "public file as the reference or, if there is none, begin anew with reference.histogram in place of "
        "reference.release.",
        explanation="Noisy sums show that weights or outcomes differ from what the reference predicts. Small changes in "
        "overall means, of a size that two samples from the same population often show, are not reported. Estimates and "
        "standard errors take the change into account. The exceptions are outcomes beyond the clipping limits and, if "
        "sample counts are secret, weights; both are still estimated from the reference. If values have become more "
        "unequal, more of them are clipped; the mean can then appear to fall, and the standard errors do not show this. "
        "If the difference is large, check that the file and the reference use the same units and were sampled in the "
        "same way. Otherwise use a newer public file as the reference or, if there is none, begin anew with "
        "reference.histogram in place of reference.release.",
    ),
    UNCATALOGUED: CautionKind(
        "release",
        "{text}",
        explanation="This caution comes from a plug-in, or from another version of dpdist, and has no explanation here. "
        "Its full text is in statement.json under cautions.",
    ),
}
"""By code. Of two texts that match, the one with more words of its own names the code."""


@dataclass(frozen=True)
class Caution:
    code: str
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.code not in KINDS:
            raise ValueError(f"no caution has the code '{self.code}'; codes are {', '.join(KINDS)}")

    @classmethod
    def of(cls, code: str, /, **facts: object) -> Caution:
        kind = KINDS.get(code, KINDS[UNCATALOGUED])
        return cls(code, kind.text.format(**facts), kind.remedy.format(**facts))

    @classmethod
    def stated(cls, text: str) -> Caution:
        """A caution by its text alone, as a statement has it; `UNCATALOGUED` if the catalogue has no such text."""
        if len(text) > LONGEST:
            return cls(UNCATALOGUED, text)
        return cls(next(code for code, form in _forms() if form.fullmatch(text)), text)

    @classmethod
    def coded(cls, code: str, text: str) -> Caution:
        """A caution of a statement by its code, which an earlier or later version may have left out or not know.

        It has the catalogue's remedy, which statements leave out if it is for custodians.
        """
        if code not in KINDS or code == UNCATALOGUED:
            return cls.stated(text)
        remedy = KINDS[code].remedy
        if "{" in remedy:  # its facts are not in the statement
            return cls(code, text)
        return cls(code, text.removesuffix(f" {remedy}"), remedy)

    @property
    def public(self) -> Caution:
        """The caution for readers of a release, without advice to its custodian."""
        return replace(self, remedy="")

    @property
    def stage(self) -> Stage:
        return KINDS[self.code].stage

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}" if self.remedy else self.text


def described(cautions: Iterable[Caution]) -> dict[str, list[str]]:
    """Texts and codes as JSON values, in the same order; without cautions no codes."""
    listed = list(cautions)
    return {"cautions": [*map(str, listed)]} | ({"caution_codes": [caution.code for caution in listed]} if listed else {})


@cache
def _forms() -> list[tuple[str, re.Pattern[str]]]:
    """The pattern of every text, the most specific first."""
    forms = {code: re.split(r"\{\w+\}", kind.text) for code, kind in KINDS.items()}
    return [
        (code, re.compile("(?s:.*)".join(map(re.escape, forms[code])) + "(?s:.*)"))
        for code in sorted(forms, key=lambda code: -len("".join(forms[code])))
    ]
