"""Whether published intervals hold what they say, judged by direct estimates (confidential).

A direct estimate has an error of its own, so a true 90 % interval need not hold it in 90 % of cases. The rule: an
interval's reach on either side and that of the direct estimate's own 90 % interval are added in squares. If the published
interval is as good as it says and both errors are not negatively correlated, the sum holds the direct estimate in 90 % of
cases at least. Two tests, each with false alarms of at most `ALARM` a statistic:

- coverage: the sums hold fewer direct estimates of base cells than Binomial(cells, .9) does in all but `ALARM` of cases.
  Cells are taken as independent; margins, which are sums of them, are left out.
- the furthest cell, margins too: its distance in standard errors of the difference has a t tail below `ALARM` over the
  number of cells (Bonferroni, whatever the dependence).

Not judged: cells of less than two records, figures without standard errors, totals that a public figure fixes. A release
that passes has shown no fault in the cells at hand, no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import bdtr, stdtr, stdtrit

from dpdist.core.records import TOTAL, Floats

NOMINAL = 0.9
ALARM = 1e-3
FAR_TOO_LOW = 0.75
"""Coverage, the direct estimates' own errors allowed for, below which a release that fails is not for publication."""
SAME = 1e-9
"""Figures that differ by less, relative to the direct estimate, are the same but for rounding."""


@dataclass(frozen=True)
class Verdict:
    """How many of the cells' direct estimates published intervals hold, and what follows.

    `held` and `allowed` are shares of all cells judged, as published and with the direct estimates' own errors allowed
    for; `covered` is the latter of base cells. `width` is the median of published over direct standard errors. `far`
    names the furthest cell if it is too far.
    """

    cells: int
    held: float
    allowed: float
    covered: float
    width: float
    too_few: bool
    far: str | None

    @property
    def fails(self) -> bool:
        return self.too_few or self.far is not None

    @property
    def stops(self) -> bool:
        """True where the release is not for publication."""
        return self.far is not None or (self.too_few and self.covered < FAR_TOO_LOW)


def labels_of(rows: pd.DataFrame) -> list[str]:
    """The columns that name a cell."""
    return list(rows.columns[: rows.columns.get_loc("statistic")])


def place(row: pd.Series, by: list[str]) -> str:
    """A cell in words."""
    return ", ".join(str(row[name]) for name in by) or TOTAL


def judge(rows: pd.DataFrame) -> Verdict | None:
    """The verdict on one statistic's rows of an evaluation; None where there is nothing to judge."""
    own = np.where(
        rows["direct_se"] > 0, stdtrit(rows["direct_df"].to_numpy(), 0.5 + NOMINAL / 2.0) * rows["direct_se"], 0.0
    )
    known = (rows["records"] > 1) & (rows["synthetic_se"] > 0) & np.isfinite(own)
    known &= rows[["direct", "direct_se", "synthetic_lower"]].notna().all(axis=1)
    if not known.any():
        return None
    rows, own = rows[known], own[known]
    by = labels_of(rows)
    held, allowed = (_held(rows, each) for each in (np.zeros(len(rows)), own))
    base = (rows[by] != TOTAL).all(axis=1).to_numpy()
    number, covered = int(base.sum()), int(allowed[base].sum())
    apart: Floats = np.asarray(
        (rows["synthetic"] - rows["direct"]).abs() / np.hypot(rows["synthetic_se"], rows["direct_se"])
    )
    df = np.where(rows["direct_se"] > 0, np.fmin(rows["synthetic_df"], rows["direct_df"]), rows["synthetic_df"])
    tail: Floats = np.asarray(2.0 * stdtr(df, -apart))
    furthest = int(np.nanargmin(tail))
    far = place(rows.iloc[furthest], by) if tail[furthest] * len(rows) < ALARM else None
    return Verdict(
        len(rows),
        float(held.mean()),
        float(allowed.mean()),
        covered / number if number else float(allowed.mean()),
        float((rows["synthetic_se"] / rows["direct_se"]).median()),
        bool(bdtr(covered, number, NOMINAL) < ALARM) if number else False,
        far,
    )


def holds_direct(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True where the published interval holds the direct estimate, (row,); False where there is none."""
    return _held(rows, np.zeros(len(rows)))


def _held(rows: pd.DataFrame, estimate: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True where the direct estimate lies within the interval, its reach and `own` added in squares."""
    gap = (rows["direct"] - rows["synthetic"]).to_numpy(dtype=float)
    below, above = rows["synthetic"] - rows["synthetic_lower"], rows["synthetic_upper"] - rows["synthetic"]
    reach = np.hypot(np.where(gap < 0, below, above), estimate)
    return np.asarray(np.abs(gap) <= reach + SAME * rows["direct"].abs().to_numpy(dtype=float))


def in_words(name: str, verdict: Verdict) -> str:
    """One statistic's verdict in plain words."""
    found = f"{name}: 90 % intervals hold {verdict.held:.2f} of {verdict.cells} direct estimates"
    if np.isfinite(verdict.width):
        found += f" and are {verdict.width:.2f} times as wide as theirs"
    found += "."
    if verdict.held < NOMINAL:
        found += f" With these estimates' own errors allowed for they hold {verdict.allowed:.2f}."
    if not verdict.fails:
        return f"{found} {'That is no less than they say.' if verdict.allowed >= NOMINAL else 'That may be chance.'}"
    if verdict.too_few:
        found += " They cover less than they say."
    if verdict.far is not None:
        found += f" {verdict.far} is further off than chance allows."
    return f"{found} {'Do not publish.' if verdict.stops else 'State wider ones.'}"
