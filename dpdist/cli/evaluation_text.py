"""Formats the confidential part of a report as text: the accuracy of a release, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from dpdist.cli.table_text import paragraphs, table_text
from dpdist.quality.summary import GIVEN, LOOKED, Overall, by_statistic, errors, missing, notes, worst

LEGEND = (
    "Errors are distances from the direct estimate, which is made from the whole confidential file. They are in its "
    "standard errors (SE) under the survey's design. The direct estimate itself is about 1 SE from the truth. 'over 2': "
    "share of cells more than 2 SE off. 'SE': one standard error. 'held': whether the published 90 % interval holds the "
    "direct estimate."
)
AT_GIVEN_SIZES = (
    "Without design strata, the number of sample records in a cell varies from sample to sample. The SE of a count "
    "includes this variation. Released counts lack it, because they use this sample's numbers. Column "
    f"'{GIVEN}' therefore has errors of counts in SEs that hold these numbers fixed: the median and the largest."
)


def evaluation_text(
    tables: Mapping[str, pd.DataFrame], judgement: Overall, guarantee: str, gated: bool = False
) -> RenderableType:
    """Formats evaluations by table for the custodian.

    `guarantee` is the release's class; `gated` is true if it met gates.
    """
    parts, remarks, legend = list[RenderableType](), list[str](), [LEGEND]
    for name, rows in tables.items():
        for statistic, group in by_statistic(rows):
            title = f"\n{name}, {statistic}: errors over {len(group)} cells"
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
    """States how many true figures the intervals contain, if the survey is simulated."""
    judged = rows[["truth", "synthetic_lower"]].notna().all(axis=1)
    if judged.any():
        held = (rows["synthetic_lower"] <= rows["truth"]) & (rows["truth"] <= rows["synthetic_upper"])
        yield f"90 % intervals hold {np.mean(held[judged]):.2f} of {int(judged.sum())} figures of the simulated truth"
