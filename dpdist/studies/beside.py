"""Compares a study's figures with figures from the literature: do the published ones reproduce?

An answer takes both Monte Carlo errors into account.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dpdist.studies.material import Material
from dpdist.studies.numbers import number
from dpdist.studies.ratios import MONTE_CARLO
from dpdist.studies.results import as_number
from dpdist.studies.shown import Beside, Row
from dpdist.studies.verdicts import Estimate, Verdict, estimate_of, reproduces

ANSWERS = {
    Verdict.YES: "reproduces",
    Verdict.NO: "does not reproduce",
    Verdict.TOO_FEW: "too few replicates to tell",
}
READING = (
    "Reproduces: the 95 % interval of the difference lies within ± half the standard deviation between replicates. It does "
    "not, where the whole interval lies beyond. Otherwise there are too few replicates to tell, here or in the source."
)
RANGE = re.compile(r"(-?[\d.]+) – (-?[\d.]+)")
"""Two ends of an interval, as a study file writes them."""


def set_beside(table: Beside, material: Material) -> dict[str, Any]:
    """Rows of a table on the page: published figures with this run's figures beside them."""
    rows = []
    for row in table.rows:
        epsilons = [e for e in material.study.grid if row.epsilon is None or as_number(e) == float(row.epsilon)]
        at = (table.case or material.study.case_names[0], row.mechanism, epsilons[0] if epsilons else "")
        rows.append(
            {
                "mechanism": row.mechanism,
                "epsilon": "" if row.epsilon is None else at[2],
                "published": [_text(row.values.get(key, "")) for key in table.columns],
                "ours": _statistic(table, material, *at),
                "verdict": verdict(table, row, material, *at),
            }
        )
    return {"said": table, "rows": rows, "any_epsilon": any(row["epsilon"] for row in rows)}


def verdict(table: Beside, row: Row, material: Material, case: str, mechanism: str, epsilon: str) -> str:
    """States whether a row's published figures agree with this run; empty where nothing can be compared."""
    if table.published is None:
        return ""
    theirs = _figures(row.values.get(table.published.column, ""))
    ours = _estimates(table, material, case, mechanism, epsilon)
    if not theirs or len(theirs) != len(ours):
        return ""
    sd = row.values.get(table.published.sd or "", "")
    answers = {
        reproduces(mine, Estimate(figure, float(sd) if isinstance(sd, float) else mine.sd, table.published.replicates))
        for mine, figure in zip(ours, theirs, strict=True)
    }
    worst = next(each for each in (Verdict.NO, Verdict.TOO_FEW, Verdict.YES) if each in answers)
    return ANSWERS[worst]


def _figures(value: float | str) -> list[float]:
    """The numbers in a published figure: one number, the two ends of an interval, or none for other texts."""
    if not isinstance(value, str):
        return [float(value)]
    ends = RANGE.fullmatch(value)
    return [float(end) for end in ends.groups()] if ends else []


def _estimates(table: Beside, material: Material, case: str, mechanism: str, epsilon: str) -> list[Estimate]:
    """This run's estimates of the published figures."""
    at = (case, mechanism, epsilon)
    if table.statistic == "interval":
        ends = [material.values(*at, table.measure + end) for end in ("_lower", "_upper")]
        return [estimate_of(values) for values in ends if len(values)]
    values = material.values(*at, table.measure)
    if not len(values) or table.statistic in ("range", "five_numbers"):
        return []
    if table.statistic == "median":
        replicates = material.study.replicates
        error = material.values(*at, table.measure + MONTE_CARLO)
        return (
            [Estimate(float(np.nanmedian(values)), float(error[0]) * np.sqrt(replicates), replicates)] if len(error) else []
        )
    return [estimate_of(values)]


def _statistic(table: Beside, material: Material, case: str, mechanism: str, epsilon: str) -> str:
    values = material.values(case, mechanism, epsilon, table.measure)
    if not len(values):
        return "—"
    if table.statistic == "range":
        least, most = number(values.min()), number(values.max())
        return least if least == most else f"{least} – {most}"
    if table.statistic == "median":
        error = material.values(case, mechanism, epsilon, table.measure + MONTE_CARLO)
        return number(float(np.nanmedian(values))) + (f" ± {error[0]:.2f}" if len(error) else "")
    if table.statistic == "five_numbers":
        return " · ".join(number(value) for value in np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]))
    if table.statistic == "interval":
        ends = [material.values(case, mechanism, epsilon, table.measure + end) for end in ("_lower", "_upper")]
        text = f"{ends[0].mean():.1f} – {ends[1].mean():.1f}"
        return text if len(values) < 2 else f"{text}, sd {ends[0].std(ddof=1):.1f} – {ends[1].std(ddof=1):.1f}"
    if len(values) < 2:
        return number(values.mean())
    sd = float(values.std(ddof=1))
    error = sd / np.sqrt(len(values))
    places = max(0, 1 - int(np.floor(np.log10(error)))) if error > 0 else 3
    apart = f", sd {number(sd)}" if table.statistic == "mean_sd" else ""
    return f"{values.mean():,.{places}f} ± {error:.{places}f}{apart}"


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,g}"
