"""Computes differences of published figures between two periods, each with its standard error.

The standard error is √(a² + b²), where a and b are the published ones. This holds for independent samples with independent
noise. Two releases may share people in both samples, the reference, or the chain: a later release may take shapes from the
earlier one. What they share makes their errors alike and the error of the difference smaller. The released figures do not
show by how much. So √(a² + b²) may be too large, but not too small. Two releases of one period share their records, and are
refused. Degrees of freedom are Welch's and Satterthwaite's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from dpdist.core.errors import AnalysisError
from dpdist.core.records import Floats
from dpdist.estimation.estimators import t_interval
from dpdist.job.specs import those
from dpdist.publish.opened import Release

OF_A_FIGURE = ("statistic", "variable", "estimator")
USED = ("estimate", "standard_error", "df")


def period_differences(before: Release, after: Release) -> dict[str, pd.DataFrame]:
    """The later figure less the earlier, for every table that both releases have with the same columns.

    Parameters
    ----------
    before, after : releases of two periods.

    Returns
    -------
    One frame for each table, with a row for each cell, statistic and estimator that both have: `before`, `after`,
    `difference`, `standard_error`, `df`, and limits `lower` and `upper` of a 90 % interval. A difference is NaN where
    a release has no estimate.

    Raises
    ------
    AnalysisError : the releases are of one period, have no table in common, or one of them states no standard errors.

    Example
    -------
    >>> before, after = map(dpdist.open_release, ("doctorates-2017", "doctorates-2019"))
    >>> sorted(dpdist.period_differences(before, after))
    ['salaries']
    """
    _refuse_one_period(before, after)
    found = {name: _of_table(before, after, name) for name in before.tables if _comparable(before, after, name)}
    if not found:
        allowed = "a table of one name and the same columns in both"
        raise AnalysisError("the releases have no table in common", allowed, "publish one again with the other's tables")
    return found


def _refuse_one_period(before: Release, after: Release) -> None:
    periods = [f"{each.statement['dataset']} {each.statement['period']}" for each in (before, after)]
    if periods[0] == periods[1]:
        found = f"both releases are of {periods[0]}, so their figures are of the same records"
        raise AnalysisError(found, "releases of two periods", "compare releases of one period by `dpdist diff`")


def _comparable(before: Release, after: Release, name: str) -> bool:
    return name in after.tables and _labels(before.tables[name]) == _labels(after.tables[name])


def _labels(rows: pd.DataFrame) -> list[str]:
    return [str(name) for name in rows.columns[: rows.columns.get_loc("statistic")]]


def _of_table(before: Release, after: Release, name: str) -> pd.DataFrame:
    first, second = before.tables[name], after.tables[name]
    for release, rows in ((before, first), (after, second)):
        _refuse_without_errors(release, name, rows)
    keys = [*_labels(first), *OF_A_FIGURE]
    both = first[[*keys, *USED]].merge(second[[*keys, *USED]], on=keys, suffixes=("_a", "_b"), sort=False)
    value, error, df = (tuple(both[f"{used}_{end}"].to_numpy(dtype=float) for end in "ab") for used in USED)
    variance = error[0] ** 2 + error[1] ** 2
    interval = t_interval(value[1] - value[0], variance, satterthwaite(error, df))
    figures = {"before": value[0], "after": value[1], "difference": interval.value}
    figures |= {
        "standard_error": interval.standard_error,
        "df": interval.df,
        "lower": interval.lower,
        "upper": interval.upper,
    }
    return both[keys].assign(**figures)


def satterthwaite(error: Sequence[Floats], df: Sequence[Floats]) -> Floats:
    """Degrees of freedom of the sum of two independent errors; infinite where both have infinite ones or neither errs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.sum([np.where(np.isinf(own), 0.0, each**4 / own) for each, own in zip(error, df, strict=True)], axis=0)
        return np.asarray(np.where(parts > 0, (error[0] ** 2 + error[1] ** 2) ** 2 / parts, np.inf))


def _refuse_without_errors(release: Release, name: str, rows: pd.DataFrame) -> None:
    """Raises `AnalysisError` if a statistic has estimates but no standard error at all: its mechanism states none."""
    missing = list(_without_errors(rows))
    if missing:
        mechanism = release.mechanism
        where = f"table '{name}' of {release.statement['period']}"
        found = f"{where} has no standard errors of {missing[0]}: '{mechanism}' gives none"
        able = ", ".join(each for each in those(lambda spec: not spec.whole_tables) if each != mechanism)
        raise AnalysisError(found, f"figures with standard errors, as of {able}", "take a mechanism that gives them")


def _without_errors(rows: pd.DataFrame) -> Iterator[str]:
    for (statistic, _), own in rows.groupby(["statistic", "variable"], dropna=False, sort=False):
        known = own[own["estimate"].notna()]
        if len(known) and known["standard_error"].isna().all():
            yield str(statistic)
