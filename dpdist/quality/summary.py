"""Summarises an evaluation for the custodian: errors of the release and of comparators, worst cells, missing figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpdist.quality.verdict import Verdict, holds_direct, judge, labels_of, place
from dpdist.quality.verdict_words import bias_lines, head_of, in_words

WORST = 5
FAR = 2.0
GIVEN = "n given"
ROWS = {"synthetic": "published", "synthetic_records": "synthetic records", "clipping": "clipping alone"}
"""Names of the estimates that are no comparators."""
NOTHING = "no standard errors are published, or none of the direct estimates has one: there is nothing to judge."
WITHHELD = (
    "Whether a release is withheld now depends on the records, which ε does not cover: decide by a rule stated beforehand."
)
LOOKED = (
    "Whoever has read this and then decides whether to publish decides by the records, which is in no ε. Gates that are "
    "chosen beforehand (job key accept) are measured under noise, and their answer is inside ε."
)


class Overall(NamedTuple):
    """The verdicts on all statistics: a first line, the grand figures, and a sentence each.

    `fails` is true where a fault was found. `stops` is true where the release must not be published.
    """

    head: str
    bias: list[str]
    sentences: list[str]
    fails: bool
    stops: bool


def overall(tables: Mapping[str, pd.DataFrame], clustered: bool = False) -> Overall:
    """Judges the coverage of published intervals, statistic by statistic; `evaluation.verdict` defines the tests.

    `clustered` is true if direct errors are those of PSUs or replicate weights.
    """
    judged = verdicts(tables, clustered)
    sentences = [f"{name}: {NOTHING}" if verdict is None else in_words(name, verdict) for name, verdict in judged.items()]
    fails = any(verdict is not None and verdict.fails for verdict in judged.values())
    stops = any(verdict is not None and verdict.stops for verdict in judged.values())
    head = head_of(list(judged.values()), list(judged))
    return Overall(head, list(bias_lines(judged.items())), [*sentences, WITHHELD] if fails else sentences, fails, stops)


def verdicts(tables: Mapping[str, pd.DataFrame], clustered: bool = False) -> dict[str, Verdict | None]:
    """The verdict on each statistic of each table, by name; None where there is nothing to judge."""
    groups = {f"{name}, {statistic}": group for name, rows in tables.items() for statistic, group in by_statistic(rows)}
    return {name: judge(group, len(groups), clustered) for name, group in groups.items()}


def by_statistic(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Splits an evaluation's rows by statistic and variable, and names each group. Outcomes are never combined."""
    for (statistic, variable), group in rows.groupby(["statistic", "variable"], sort=False, dropna=False):
        yield (f"{statistic} of {variable}" if isinstance(variable, str) else str(statistic)), group.reset_index(drop=True)


def errors(rows: pd.DataFrame, guarantee: str) -> pd.DataFrame:
    """Returns a row for each estimate: its class of guarantee, and its median and largest error over cells.

    Errors are in direct standard errors. For counts, the columns `n given` have them in standard errors given the cells'
    sizes, where these are known.
    """
    lines, given = [], _given_sizes(rows)
    for how in estimates_of(rows):
        size = rows[f"{how}_error_in_se"]
        promise = guarantee if how in ("synthetic", "synthetic_records") else "" if how == "clipping" else None
        cells = [ROWS.get(how, how), class_of(rows, how) if promise is None else promise]
        if not size.notna().any():
            lines.append([*cells, "missing", "", "", "", ""])
            continue
        low, middle, high = (float(size.quantile(share)) for share in (0.25, 0.5, 0.75))
        where = place(rows.iloc[int(np.nanargmax(size))], labels_of(rows))
        spread, far = f"{brief(low)} to {brief(high)}", f"{(size[size.notna()] > FAR).mean():.2f}"
        largest = f"{brief(float(size.max()))}: {where}"
        again = (rows["direct_clipped" if how == "clipping" else how] - rows["direct"]).abs() / given
        both = f"{brief(float(again.median()))}, {brief(float(again.max()))}" if again.notna().any() else ""
        lines.append([*cells, brief(middle), spread, far, largest, both])
    made = pd.DataFrame(lines, columns=["estimate", "guarantee", "median", "quartiles", "over 2", "largest", GIVEN])
    return made if given.notna().any() else made.drop(columns=GIVEN)


def estimates_of(rows: pd.DataFrame) -> Iterator[str]:
    """Prefixes of the columns of estimates that are compared with direct ones: the release first, then comparators."""
    for column in [str(name) for name in rows.columns if str(name).endswith("_error_in_se")]:
        how = column.removesuffix("_error_in_se")
        if how == "clipping" and not (rows["direct_clipped"] != rows["direct"]).where(rows["direct"].notna(), False).any():
            continue
        if how == "synthetic_records" and rows["synthetic_records"].equals(rows["synthetic"]):
            continue
        yield how


def _given_sizes(rows: pd.DataFrame) -> pd.Series[float]:
    """Standard errors of counts given the cells' sizes; NaN for other statistics, and in older evaluations."""
    if "direct_se_given_n" not in rows or not (rows["statistic"] == "count").all():
        return pd.Series(np.nan, index=rows.index)
    return rows["direct_se_given_n"].where(rows["direct_se_given_n"] > 0)


def furthest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with the largest errors in direct standard errors, the largest first."""
    return rows[rows["synthetic_error_in_se"].notna()].nlargest(WORST, "synthetic_error_in_se")


def worst(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells farthest from their direct estimates, one row each, the farthest first."""
    far = furthest(rows)
    cells = [place(row, labels_of(rows)) for _, row in far.iterrows()]
    held = np.where(far["synthetic_lower"].isna(), "no interval", np.where(holds_direct(far), "yes", "no"))
    columns = {"cell": cells, "published": far["synthetic"], "published SE": far["synthetic_se"], "direct": far["direct"]}
    columns |= {"direct SE": far["direct_se"], "SE off": [brief(size) for size in far["synthetic_error_in_se"]]}
    return pd.DataFrame(columns | {"held": held}).reset_index(drop=True)


def missing(rows: pd.DataFrame) -> list[str]:
    """Numbers of cells without an error in direct standard errors, by reason."""
    none = rows["synthetic_error_in_se"].isna()
    reasons = {
        "no record": rows["records"] == 0,
        "no published figure": rows["synthetic"].isna(),
        "one record": rows["records"] == 1,
        "no direct standard error under the design, as where a design stratum has a single PSU": rows["direct_se"].isna(),
        "a direct standard error of 0, as the design fixes the figure": rows["direct_se"] == 0,
    }
    reason = np.select([condition & none for condition in reasons.values()], list(reasons), "")
    return [f"{number} of {len(rows)} cells without such an error: {why}" for why, number in _counts(reason)]


def notes(rows: pd.DataFrame) -> list[str]:
    """Notes on comparators: their guarantees, and reasons for missing figures with the number of these."""
    lines = []
    for column in [name for name in map(str, rows.columns) if name.endswith("_note")]:
        for note, number in rows[column].value_counts().items():
            lines.append(
                f"{column.removesuffix('_note')}: {note}"
                + (f" ({number} of {len(rows)} figures)" if number < len(rows) else "")
            )
    return lines


def brief(value: float) -> str:
    """Formats an error briefly: with two decimals below 10, and fewer above."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def class_of(rows: pd.DataFrame, how: str) -> str:
    """The class of guarantee with which a comparator's notes begin."""
    notes = rows[f"{how.removesuffix('_records')}_note"]
    classes = notes[~notes.str.startswith("missing")]
    return str(classes.iloc[0]).split(",")[0].split(":")[0] if len(classes) else ""


def _counts(values: np.ndarray[tuple[int], np.dtype[np.str_]]) -> Iterator[tuple[str, int]]:
    for why in dict.fromkeys(str(value) for value in values if value):
        yield why, int((values == why).sum())
