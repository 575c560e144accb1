"""Confidential results as text: evaluations, verdicts, audits and attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from dpdist.cli.table_text import paragraphs, table_text
from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import recover
from dpdist.opening.results import Evaluations
from dpdist.quality.errors import by_statistic
from dpdist.quality.report_material import ReportMaterial
from dpdist.quality.report_page import material_of, overall_verdict, write_report
from dpdist.quality.summary import GIVEN, LOOKED, Overall, errors, missing, notes, worst
from dpdist.storage.objects import is_url
from dpdist.storage.workspace import Workspace, confidential_log

LEGEND = (
    "Errors are distances from the direct estimate, which uses the whole confidential file. They are given in standard "
    "errors (SE) of the direct estimate under the survey's design. The direct estimate itself is about 1 SE from the "
    "truth. 'over 2': share of cells that are more than 2 SE off. 'SE': one standard error. 'covered': whether the "
    "published 90 % interval covers the direct estimate."
)
AT_GIVEN_SIZES = (
    "Without design strata, the number of sample records in a cell varies from sample to sample. The SE of a count "
    "includes this variation, but released counts do not, because they use this sample's numbers of records. Column "
    f"'{GIVEN}' therefore gives the median and the largest error of counts in SEs that treat the numbers of records as "
    "fixed."
)


def evaluation_text(
    tables: Mapping[str, pd.DataFrame], judgement: Overall, guarantee: str, gated: bool = False
) -> RenderableType:
    """Formats evaluations by table for the custodian.

    `guarantee` is the release's class; `gated` is true if the release met gates.
    """
    parts, remarks, legend = list[RenderableType](), list[str](), [LEGEND]
    for name, rows in tables.items():
        for statistic, group in by_statistic(rows):
            title = f"\n{name}, {statistic}: errors over {len(group)} cell{'s' * (len(group) != 1)}"
            figures = errors(group, guarantee)
            legend = [LEGEND, AT_GIVEN_SIZES] if GIVEN in figures else legend
            parts += [table_text(title, figures, narrow=True)]
            parts.append(paragraphs([*_truth(group), *missing(group)]))
            if group["synthetic_error_in_se"].notna().any():
                parts.append(table_text(f"{name}, {statistic}: worst cells", worst(group), narrow=True))
        remarks += [remark for remark in notes(rows) if remark not in remarks]
    looked = [] if gated else [paragraphs([LOOKED])]
    head = Text("\nCONFIDENTIAL: how far off the release is", style="bold red")
    return Group(head, paragraphs(legend), *parts, Text(""), paragraphs(remarks, "dim"), verdict_text(judgement), *looked)


def verdict_text(judgement: Overall) -> RenderableType:
    """States statistic by statistic whether published intervals have their stated coverage (`evaluation.verdict`)."""
    return Group(verdict_head(judgement), paragraphs(judgement.sentences))


def verdict_head(verdict: Overall) -> RenderableType:
    """States the verdict in one line.

    For each statistic, a line on the figure of all records follows, with its distance from the direct estimate.
    """
    style = "bold red" if verdict.fails else "bold"
    return Group(Text(f"\nCONFIDENTIAL VERDICT: {verdict.head}", style=style), paragraphs(verdict.bias))


def _truth(rows: pd.DataFrame) -> Iterator[str]:
    judged = rows[["truth", "synthetic_lower"]].notna().all(axis=1)
    if judged.any():
        covers = (rows["synthetic_lower"] <= rows["truth"]) & (rows["truth"] <= rows["synthetic_upper"])
        yield f"90 % intervals cover {np.mean(covers[judged]):.0%} of {int(judged.sum())} figures of the simulated truth"


class Evaluation:
    """A release with its evaluation, read once for page and verdict."""

    def __init__(self, space: Workspace):
        self._space = space

    @cached_property
    def _material(self) -> ReportMaterial:
        recover(self._space.public)
        recover(self._space.held_release)
        return material_of(self._space)

    def write_page(self) -> None:
        """Writes confidential/report.html, except in an object store. Failures are recorded in confidential/log."""
        if is_url(self._space.place):
            return
        with confidential_log(self._space) as log:
            try:
                write_report(self._material)
            except Exception:
                log.exception("report.html")
                raise

    def verdict(self) -> RenderableType:
        """Returns the evaluation's verdict on the published intervals."""
        return verdict_text(overall_verdict(self._material))

    def verdict_line(self) -> str:
        """Returns the verdict in one line, with its release."""
        job, space = self._material.job, self._space
        head = overall_verdict(self._material).head
        return f"CONFIDENTIAL VERDICT on {job.dataset} {job.period} ({space.address(space.newest)}): {head}"

    @property
    def exists(self) -> bool:
        """False if a run's confidential folder is elsewhere, or has no evaluation."""
        return len(Evaluations(self._space)) > 0


@contextmanager
def evaluated(workspace: str | Path) -> Iterator[Evaluation]:
    """Opens the evaluation of a finished run for the duration of the block."""
    with Workspace.opened(workspace, reading=True) as space:
        yield Evaluation(space)


def page_to_open(workspace: str | Path) -> Path:
    """Writes the report page again and returns its path. Raises `WorkspaceError` for an object store, which has no page."""
    if is_url(workspace):
        remedy = "copy the workspace to a folder, or use --confidential for a text version"
        raise WorkspaceError(str(workspace), "pages are not written to an object store", remedy, exit_code=2)
    with evaluated(workspace) as evaluation:
        evaluation.write_page()
    return Workspace.of_place(workspace).report


MEANINGS = {
    "Leave-one-out audit": (
        "exceeded: number of records whose exact loss, with fits and weights computed again without the record, is above "
        "the bound; largest_share: the largest loss as a share of the bound"
    ),
    "Lower bounds": (
        "at_least: the ε that the draws prove, each with a confidence of 95 %; if it is above the claimed ε, the claim "
        "is wrong\nleft out: {left_out} of {strata} strata, because the mechanism cannot release them again"
    ),
    "Two files": (
        "at_least: the ε that the releases prove, with a confidence of 95 %; if it is above the claimed ε, the claim is "
        "wrong; p_value: the largest probability of a difference this clear if the claim holds"
    ),
    "Attacks": (
        "if synthetic records do not reveal who was in the file, share_nearer_to_members is one half and excess is 0; "
        "at_least: a lower bound on the ε of an exchange, with 95 % confidence, from the number of pairs that were "
        "guessed correctly"
    ),
}
"""What the columns of an audit's table mean, by its title."""


def audited_text(title: str, table: Confidential[pd.DataFrame]) -> RenderableType:
    """Formats the results of an audit for the custodian."""
    figures = table.disclose_to_custodian()
    left_out = int(figures["left_out"].sum()) if "left_out" in figures else 0
    meaning = MEANINGS[title].format(left_out=left_out, strata=len(figures))
    return Group(table_text(f"{title} (confidential)", figures), Text(meaning, style="dim"))
