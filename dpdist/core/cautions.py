"""Catalogue of cautions: code, stage, what it means and what to do, with named parameters.

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


class CautionKind(NamedTuple):
    stage: Stage
    """Given before a run alone, or published with the release, too."""
    text: str
    """What it means: one or two sentences."""
    remedy: str = ""
    """What to do: a sentence."""
    about: str = ""
    """Where the text comes from, if not from this catalogue."""

    @property
    def sentences(self) -> list[str]:
        """Its sentences for a reader who has no case at hand: parameters stand in capitals."""
        parts = (
            re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), part) for part in (self.text, self.remedy, self.about)
        )
        return [part.replace("{{", "{").replace("}}", "}") for part in parts if part]


KINDS: Mapping[str, CautionKind] = {
    "former_mechanism": CautionKind(
        "release",
        "'{former}' is called '{present}' since dpdist 0.3, and this job runs as '{present}'{dropped}.",
        "Write mechanism: {{name: {present}}}; the next version no longer accepts the old name.",
    ),
    "small_reference_cells": CautionKind(
        "plan",
        "Cells with fewer than {least} reference records borrow part of their distributions from similar cells: {cells}.",
        "Merge these cells, or use a larger reference.",
    ),
    "design_left_out": CautionKind(
        "release",
        "Published standard errors ignore {design}, so intervals may be too narrow.",
        "State survey.design_effect: {effect}.",
    ),
    "reference_without_period": CautionKind(
        "plan",
        "The reference states no period. If it is the file of {period} itself, the release publishes confidential records.",
        "Add period and provenance to reference.",
    ),
    "old_reference": CautionKind(
        "plan",
        "The reference is of {earlier}, {years} years from {period}: the distributions of weights and outcomes may have "
        "changed since, which dpdist rehearse cannot see.",
        "Use a newer reference, or noisy histograms of the current file, which cost part of ε.",
    ),
    "reference_published": CautionKind(
        "plan",
        "Weights and outcomes of the reference's records are published with the release, in {file}.",
        "Publish it only if the reference is public.",
    ),
    "few_reference_records": CautionKind(
        "plan",
        "The reference has {records} records. Clipping limits follow from its tails, which fewer than {least} records do "
        "not show.",
        "Use a larger file.",
    ),
    "reference_unit": CautionKind(
        "plan",
        "No value of '{column}' in the reference reaches 1 % of its public bounds, {bounds}.",
        "Check that both are in the same unit, such as euros or thousands of euros.",
    ),
    "priority_without_effect": CautionKind(
        "plan",
        "'{mechanism}' measures all tables alike, so priority and error of {tables} have no effect.",
        "Remove these keys, or use the mechanism tables.",
    ),
    "low_public_totals": CautionKind(
        "plan",
        "rake, {margin}: public totals are smaller than the number of sample records ({cells}), so the mean weight would "
        "be below 1.",
        "Check the unit of the totals, and their population.",
    ),
    "noise_of_gate": CautionKind(
        "plan",
        "Gate '{gate}': its noise has a standard deviation of {deviation} over {smallest}. Unless that is above {least}, "
        "the gate may fail good releases.",
        "List tables of large cells, or give gates more of ε.",
    ),
    "weak_guarantee": CautionKind(
        "plan",
        "ε = {epsilon} is a weak guarantee: whoever knows all other records can be nearly certain of one.",
        "Use a smaller epsilon.",
    ),
    "large_delta": CautionKind(
        "release",
        "δ = {delta} is not below 1/n = 1/{records}. Publishing one whole record at random would have such a δ.",
        "Use a δ far below 1/n.",
    ),
    "law_not_judged": CautionKind("release", "Fit of the {law} law to the reference: {figures}."),
    "law_misfits": CautionKind(
        "release",
        "The {law} law does not fit the reference: {figures}. Figures will be off accordingly, and no standard error "
        "includes it.",
        "Use the mechanism tables, or a family that fits.",
    ),
    "reused_psu_codes": CautionKind(
        "plan",
        "'{psu}' has fewer than {least} codes, and no design stratum is named. Codes that start again in every stratum "
        "would count as the same PSU.",
        "Name survey.design_strata.",
    ),
    "small_strata": CautionKind(
        "plan",
        "{strata}: {records} records probably cannot reach Δ* = {target}, and the run would be refused. About {least} are "
        "needed.",
        "Pool strata, drop predictors, take model.prior: {{name: proper}}, or raise the budget.",
    ),
    "small_counts": CautionKind(
        "plan",
        "{counts}: whoever knows such a person learns that person's table columns. {consequence}",
        "{remedies}",
    ),
    "empty_levels": CautionKind(
        "plan",
        "'{column}' has {empty} of {levels} levels without a record: {names}.",
        "Check their spelling. Cells of such levels are published as empty, or from noise alone.",
    ),
    "fit_unseen": CautionKind(
        "plan",
        "How well the model fits is known only after the run.",
        "Look at {command} before publishing.",
    ),
    "exact_losses": CautionKind(
        "plan",
        "Privacy weights follow from this file, so a record can lose more than ε.",
        "After the run, {command} measures the exact losses.",
    ),
    "hidden_counts": CautionKind(
        "plan",
        "{table}: noise hides {hidden} of {cells} published counts, even if all of their weights are at the bound: "
        "{names}. Means of these cells say nothing.",
        "Merge these cells, or raise epsilon.",
    ),
    "predicted_far_off": CautionKind(
        "plan",
        "{table}, {statistic}: figures may be more than {factor} direct standard errors off in {cells} ({names}).",
        "Merge these cells, or raise epsilon.",
    ),
    "public_totals_proposed": CautionKind(
        "plan",
        "{table}, count: the design fixes {fixed} of {cells} cells, so their direct estimates have no error.",
        "If these totals are public, state {rake} before the run: the counts are then published without error.",
    ),
    "far_off": CautionKind(
        "release",
        "{table}, {statistic}: figures may be more than {factor} direct standard errors off in {cells}.",
        "`beyond_direct` in statement.json lists all of them: do not rely on these figures.",
    ),
    "withheld": CautionKind(
        "release",
        "{table}: {withheld} of {figures} figures are withheld, because their standard errors are larger than {limit}.",
        "Use coarser cells; a larger ε helps only where noise is the larger part of the error.",
    ),
    "all_withheld": CautionKind(
        "release",
        "{table}: no figure of {statistic} is published, because every standard error is larger than {limit}.",
        "Check the units of file, bounds and reference; else use coarser cells.",
    ),
    "drift": CautionKind(
        "release",
        "Cells have moved away from the reference ({cells}; `drift` in statement.json names them), and no standard error "
        "includes a change in the shape of a distribution.",
        "Use a newer reference next time, or noisy histograms.",
    ),
    "of_mechanism": CautionKind(
        "release", "{text}", about="Stated by the mechanism or the weight rule; its page says more."
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
        kind = KINDS.get(code, KINDS["of_mechanism"])
        return cls(code, kind.text.format(**facts), kind.remedy.format(**facts))

    @classmethod
    def stated(cls, text: str) -> Caution:
        """A caution by its text alone, as a statement has it; `of_mechanism` if the catalogue has no such text."""
        if len(text) > LONGEST:
            return cls("of_mechanism", text)
        return cls(next(code for code, form in _forms() if form.fullmatch(text)), text)

    @classmethod
    def coded(cls, code: str, text: str) -> Caution:
        """A caution of a statement by its code, which an earlier or later version may have left out or not know."""
        return cls(code, text) if code in KINDS and code != "of_mechanism" else cls.stated(text)

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
