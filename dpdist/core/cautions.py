"""Every caution of plans and releases: its code, the stage at which it is given, its text with named parameters, a "
"remedy"

A caution refuses nothing. Statements keep its text; `Caution.stated` finds the code of a text by the catalogue, also in
statements of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

Stage = Literal["plan", "release"]
LONGEST = 4_096
"""Longest text whose code is looked for: it may come from a folder that somebody else made."""


class Kind(NamedTuple):
    stage: Stage
    """Given before a run alone, or published with the release, too."""
    text: str
    remedy: str = ""
    about: str = ""


KINDS: Mapping[str, Kind] = {
    "former_mechanism": Kind(
        "release",
        "mechanism '{former}' is '{present}' since dpdist 0.3, and this job runs as '{present}'{dropped}",
        "write mechanism: {{name: {present}}}",
        "The next version knows this name no longer.",
    ),
    "small_reference_cells": Kind(
        "plan",
        "cells with fewer than {least} reference records take part of their distributions from cells like them: {cells}",
        about="Few reference records do not show a distribution. Merge such cells, or take a larger reference.",
    ),
    "design_left_out": Kind(
        "release",
        "published standard errors leave out {design}, so intervals may be too narrow",
        "state survey.design_effect: {effect}",
        "Records of one cluster are alike, and a released model knows no clusters.",
    ),
    "reference_without_period": Kind(
        "plan",
        "the reference states no period, so nothing checks that it is of another one than {period}",
        "add period and provenance to reference",
        "A reference of the job's own period holds the confidential records, which are then published.",
    ),
    "old_reference": Kind(
        "plan",
        "the reference is of {earlier}, {years} years from {period}: weights and outcomes may have changed their "
        "shape, which dpdist rehearse cannot see",
        "take a newer reference, or noisy histograms, which cost epsilon and do not rely on that shape",
        "Limits and predictions follow the reference's distributions.",
    ),
    "reference_published": Kind(
        "plan",
        "the reference's weights and outcomes are published with the release: {file}",
        "publish the release only if the reference really is public",
        "Synthetic records copy values of the reference's records.",
    ),
    "few_reference_records": Kind(
        "plan",
        "the reference has {records} records, and fewer than {least} show no tails. Limits are learned from tails",
        "take a larger file",
    ),
    "reference_unit": Kind(
        "plan",
        "no value of '{column}' in the reference reaches 1 % of its public bounds, {bounds}",
        "bring both to one unit, as euros or thousands of euros",
    ),
    "statistics_left_blank": Kind(
        "plan",
        "without a reference, these statistics have no estimate in each cell that its noisy sums do not identify. "
        "In margins over it, quantiles have wider intervals, and others are left blank, too ({statistics}). Which "
        "cells these are shows only in the run",
        "take an earlier public file as reference, or strata in which weights are alike",
    ),
    "priority_without_effect": Kind(
        "plan",
        "'{mechanism}' measures all tables alike: the priority, or error, of {tables} no effect",
        "leave it out, or take a mechanism that prioritises",
    ),
    "low_public_totals": Kind(
        "plan",
        "rake, {margin}: public totals are below the number of records in the sample ({cells}). Weights would be "
        "below 1 in the mean",
        "check the totals' unit and population",
    ),
    "noise_of_gate": Kind(
        "plan",
        "gate '{gate}': its noise has a standard deviation of {deviation} over {smallest}. It is within the limit "
        "only where that is over {least}",
        about="A gate is measured under noise. Noise beyond the limit refuses good releases.",
    ),
    "weak_guarantee": Kind(
        "plan",
        "ε = {epsilon} is a weak guarantee: odds may change by a factor of e^ε",
        about="Who knows all other records can be nearly certain of one. Take a smaller epsilon.",
    ),
    "large_delta": Kind(
        "release",
        "The δ of {delta} is not below 1/n = 1/{records}. Publishing one record of the file at random, whole, has "
        "such a δ. Take a δ far below.",
    ),
    "law_not_judged": Kind("release", "fit of the {law} law on the reference: {figures}"),
    "law_misfits": Kind(
        "release",
        "the {law} law does not fit the reference: {figures}; tables and synthetic records will be off likewise, "
        "and no standard error knows it",
        "take tables, or a family that fits",
    ),
    "reused_psu_codes": Kind(
        "plan",
        "'{psu}' has fewer than {least} codes, and no design stratum is named. If codes begin again in every "
        "stratum, as 1 and 2 do in many files, they are taken for the same PSU",
        "name survey.design_strata",
    ),
    "small_strata": Kind(
        "plan",
        "{strata}: {records} records probably cannot reach Δ* = {target}, and the run would be refused; about "
        "{least} are needed",
        "pool strata, drop predictors, take model.prior: {{name: proper}}, or raise the budget",
    ),
    "small_counts": Kind(
        "plan",
        "{counts}: who knows that person reads off its columns{why}",
        "{remedies}",
        "Sample counts are published under this adjacency. A count of one points at a person.",
    ),
    "empty_levels": Kind(
        "plan",
        "'{column}' has {empty} of {levels} levels without a record: {names}",
        about="Such cells are published as empty, or have noise alone. Check the spelling of levels.",
    ),
    "fit_unseen": Kind(
        "plan",
        "how well the law fits stands in the evaluation: look at {command} before publishing",
    ),
    "exact_losses": Kind("plan", "{command} measures the exact losses of records on this file"),
    "hidden_counts": Kind(
        "plan",
        "{table}: noise hides {hidden} of {cells} published counts, even if all of their weights are at the bound: "
        "{names}. Their means say nothing",
        about="A 90 % interval of such a count holds 0. Merge cells, or raise epsilon.",
    ),
    "predicted_far_off": Kind(
        "plan",
        "{table}, {statistic}: figures may be more than {factor} direct standard errors off in {cells}, by public "
        "records ({names})",
        about="Public records were drawn again as both files. Merge these cells, or raise epsilon.",
    ),
    "public_totals_proposed": Kind(
        "plan",
        "{table}, count: the design fixes {fixed} of {cells} cells. If such totals are public, state them before "
        "the run: {rake}. Counts are then published without error",
    ),
    "far_off": Kind(
        "release",
        "{table}, {statistic}: figures may be more than {factor} direct standard errors off; `beyond_direct` in "
        "statement.json names all. It lists {cells}",
        about="The predicted error of these figures is above that many standard errors of the unprotected estimate.",
    ),
    "withheld": Kind(
        "release",
        "{table}: {withheld} of {figures} figures are withheld, because their standard errors are larger than {limit}; "
        "`withheld` in statement.json counts them",
    ),
    "drift": Kind(
        "release",
        "cells have moved away from the reference ({cells}; `drift` in statement.json names them). A change of "
        "shape is in no standard error",
        "next time take a newer reference, or pay histograms",
    ),
    "of_mechanism": Kind("release", "{text}", about="The mechanism or the weight rule states it: its page says more."),
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
        kind = KINDS.get(code, KINDS["of_mechanism"])
        return cls(code, kind.text.format(**facts), kind.remedy.format(**facts))

    @classmethod
    def stated(cls, text: str) -> Caution:
        """A caution by its text alone, as a statement has it; `of_mechanism` if the catalogue has no such text."""
        if len(text) > LONGEST:
            return cls("of_mechanism", text)
        return cls(next(code for code, form in _forms() if form.fullmatch(text)), text)

    @property
    def stage(self) -> Stage:
        return KINDS[self.code].stage

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


def described(cautions: Iterable[Caution]) -> dict[str, list[str]]:
    """Texts and codes as JSON values, in the same order; without cautions no codes."""
    every = list(cautions)
    return {"cautions": [*map(str, every)]} | ({"caution_codes": [one.code for one in every]} if every else {})


@cache
def _forms() -> list[tuple[str, re.Pattern[str]]]:
    """The pattern of every text, the most specific first."""
    forms = {code: re.split(r"\{\w+\}", kind.text) for code, kind in KINDS.items()}
    return [
        (code, re.compile("(?s:.*)".join(map(re.escape, forms[code])) + "(?s:.*)"))
        for code in sorted(forms, key=lambda code: -len("".join(forms[code])))
    ]
