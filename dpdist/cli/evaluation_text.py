"""The confidential part of a report as text: how good a release is, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from dpdist.cli.table_text import paragraphs, table_text
from dpdist.evaluation.summary import by_statistic, errors, missing, notes, worst
from dpdist.evaluation.verdict import in_words, judge

LEGEND = (
    "Errors are distances from the direct estimate, made from the whole file as it came, in its standard errors (SE) as "
    "designed. It has an error itself: it is about 1 SE from the truth. 'over 2': share of cells more than 2 SE off. "
    "Without design strata a count's SE holds the chance in the number of a cell's records, which is released. 'n given': "
    "median and largest error in the count's SE without that chance. "
    "'±': one standard error. 'held': whether the published 90 % interval holds the direct estimate."
)
NOTHING = "no standard errors are published, or none of the direct estimates has one: there is nothing to judge."
WITHHELD = (
    "Whether a release is withheld now depends on the records, which ε does not cover: decide by a rule stated beforehand."
)


LOOKED = (
    "Whoever has read this and then decides whether to publish decides by the records, which is in no ε. Gates that are "
    "chosen beforehand (job key accept) are measured under noise, and their answer is inside ε."
)


def evaluation_text(tables: Mapping[str, pd.DataFrame], guarantee: str, gated: bool = False) -> RenderableType:
    """Evaluations by table, for the custodian's eyes; `guarantee` is the release's class, `gated` if it met gates."""
    parts: list[RenderableType] = [
        Text("\nCONFIDENTIAL: how far off the release is", style="bold red"),
        paragraphs([LEGEND]),
    ]
    said = list[str]()
    for name, rows in tables.items():
        for statistic, group in by_statistic(rows):
            title = f"\n{name}, {statistic}: errors over {len(group)} cells"
            parts += [table_text(title, errors(group, guarantee), narrow=True)]
            parts.append(paragraphs([*_truth(group), *missing(group)]))
            if group["synthetic_error_in_se"].notna().any():
                parts.append(table_text(f"{name}, {statistic}: worst cells", worst(group), narrow=True))
        said += [each for each in notes(rows) if each not in said]
    looked = [] if gated else [paragraphs([LOOKED])]
    return Group(*parts, Text(""), paragraphs(said, "dim"), verdict_text(tables), *looked)


def verdict_text(tables: Mapping[str, pd.DataFrame]) -> RenderableType:
    """Whether published intervals hold what they say, statistic by statistic (`evaluation.verdict`)."""
    said, stops, fails = list[str](), False, False
    for name, rows in tables.items():
        for statistic, group in by_statistic(rows):
            found = judge(group)
            said.append(f"{name}, {statistic}: {NOTHING}" if found is None else in_words(f"{name}, {statistic}", found))
            stops |= found is not None and found.stops
            fails |= found is not None and found.fails
    head = "do not publish" if stops else "intervals are too narrow" if fails else "no fault found in the intervals"
    said += [WITHHELD] if fails else []
    style = "bold red" if fails else "bold"
    return Group(Text(f"\nCONFIDENTIAL VERDICT: {head}", style=style), paragraphs(said))


def _truth(rows: pd.DataFrame) -> Iterator[str]:
    """How many figures of the truth the intervals hold, where the survey is simulated."""
    known = rows[["truth", "synthetic_lower"]].notna().all(axis=1)
    if known.any():
        held = (rows["synthetic_lower"] <= rows["truth"]) & (rows["truth"] <= rows["synthetic_upper"])
        yield f"90 % intervals hold {np.mean(held[known]):.2f} of {int(known.sum())} figures of the simulated truth"
