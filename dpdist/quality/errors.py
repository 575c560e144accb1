"""The errors table: figures of a release and of comparators by cell and statistic, and their distances from direct ones.

A row is a cell and a statistic: the direct figure with its standard error, the truth of a simulation, and every estimate's
figure; `TABLES` defines the columns. Verdict, summary and page are functions of these rows, and a plan predicts the same
distances. Confidential, unless the records are public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from dpdist.core.records import Floats, cell_name, quotient
from dpdist.publish.predicted_errors import EXACT, FAR, FAR_NAMED

HOW = "COMPARATOR"
"""Stands for the name of a comparator of the job, such as `laplace_finest`."""
TABLES = {
    "statistic": "`count`, `mean`, `total`, or another statistic of the job's table",
    "variable": "the outcome of the statistic; null for counts",
    "records": "number of the file's records in the cell",
    "direct": "the estimate from the file, before clipping, after the public universe and rules",
    "direct_se": "standard error of `direct` under the stated design; 0 if it differs from 0 only by rounding",
    "direct_se_given_n": "the same, given the cells' numbers of records; null if not known",
    "direct_df": "degrees of freedom of `direct_se`",
    "direct_cv": "`direct_se` divided by the absolute value of `direct`",
    "direct_clipped": "the estimate from the records as the release uses them, after clipping",
    "synthetic": "the published estimate: from parameters, or else from synthetic records",
    "synthetic_se": "published standard error of `synthetic`",
    "synthetic_noise_se": "standard error of `synthetic` by noise alone; null if not known",
    "synthetic_df": "published degrees of freedom of `synthetic_se`",
    "synthetic_lower": "limits of the published 90 % interval",
    "synthetic_upper": "limits of the published 90 % interval",
    "synthetic_records": "the published estimate from synthetic records, or null",
    HOW: "the comparator's figure; for `fbs` and `fbp` the figure from parameters",
    f"{HOW}_records": "for `fbs` and `fbp`: the figure from synthetic records",
    f"{HOW}_note": "the comparator's class and guarantee, or why figures are missing",
    "truth": "the population's count, mean or total, if the survey is simulated; otherwise null",
    "synthetic_error": "`synthetic` minus `truth`, or else minus `direct`",
    "synthetic_error_in_se": "distance of `synthetic` from `direct`, in `direct_se`, or null",
    "synthetic_records_error": "the same errors of `synthetic_records`",
    "synthetic_records_error_in_se": "the same errors of `synthetic_records`",
    f"{HOW}_error": "the same errors of the comparator",
    f"{HOW}_error_in_se": "the same errors of the comparator",
    f"{HOW}_records_error": "the same errors of the comparator",
    f"{HOW}_records_error_in_se": "the same errors of the comparator",
    "clipping_error_in_se": "distance of `direct_clipped` from `direct`, in `direct_se`",
    f"synthetic_to_{HOW}": "ratio of the absolute errors",
}
"""Columns of TABLE.parquet. The columns of the table itself, with the cell's levels, come before them."""


def place(row: pd.Series, by: list[str]) -> str:
    """A cell's levels as text."""
    return cell_name([str(row[name]) for name in by])


def number_of_statistics(rows: pd.DataFrame) -> int:
    """The number of statistics in a table's rows of an evaluation, by variable."""
    return len(rows[["statistic", "variable"]].drop_duplicates())


def by_statistic(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Splits an evaluation's rows by statistic and variable, and names each group. Outcomes are never combined."""
    for (statistic, variable), group in rows.groupby(["statistic", "variable"], sort=False, dropna=False):
        yield (f"{statistic} of {variable}" if isinstance(variable, str) else str(statistic)), group.reset_index(drop=True)


def estimates_of(rows: pd.DataFrame) -> Iterator[str]:
    """Prefixes of the columns of estimates that are compared with direct ones: the release first, then comparators."""
    for column in [str(name) for name in rows.columns if str(name).endswith("_error_in_se")]:
        how = column.removesuffix("_error_in_se")
        if how == "clipping" and not (rows["direct_clipped"] != rows["direct"]).where(rows["direct"].notna(), False).any():
            continue
        if how == "synthetic_records" and rows["synthetic_records"].equals(rows["synthetic"]):
            continue
        yield how


SAME = 1e-9
"""Relative difference below which two figures count as equal."""
FAR_RECORDS = 10
"""Fewest records of a cell whose error may be called large; with fewer, the direct standard error may be near 0 by
chance.
"""
NEAR_ZERO = 0.02
"""Share of a table's median standard error, both for one record, below which a cell's direct one is near 0 by chance.

Nearly all of its records then have one value, such as an income of 0. Its error counts as in a cell of few records.
"""


def without_error(estimate: Floats, error: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if a standard error is 0 but for rounding, (row,); False if it is unknown.

    A variance is a difference of sums of squares, known to the last digit ε of these. So a standard error of 0 comes out
    as up to √ε = 1.5e-8 of the figure, times a few.
    """
    return np.asarray(error <= EXACT * np.abs(estimate))


class Errors(NamedTuple):
    """Distances between published and direct figures of a statistic, measured in a run or predicted by a plan.

    - `fixed`: the number of cells of two records or more whose direct standard error is 0: the design fixes the figure.
    - `median`, `largest`, `over_2`, `over_4`: |published − direct| in direct standard errors, without `fixed` cells.
    - `given_n`: the median in direct standard errors given the cells' numbers of records.
    - `relative`, `largest_relative`: shares of the direct figure, of the `fixed` cells, or of all where there are none.

    All but medians are over cells with at least FAR_RECORDS records, or as many as are asked for; unknown figures are NaN.
    """

    cells: int
    fixed: int
    median: float
    largest: float
    over_2: float
    over_4: float
    given_n: float
    relative: float
    largest_relative: float

    @classmethod
    def of(cls, error: Floats, given_n: Floats, relative: Floats, records: Floats, least: int = FAR_RECORDS) -> Self:
        """Errors from distances over direct standard errors, over those for fixed n, and over direct figures, (cell,)
        each.
        """
        enough = records >= least
        fixed = np.isnan(error) & ~np.isnan(relative) & (records > 1)
        of_fixed = fixed if fixed.any() else np.ones(len(error), dtype=bool)
        return cls(
            cells=len(error),
            fixed=int(fixed.sum()),
            median=of_figures(np.median, error),
            largest=of_figures(np.max, error[enough]),
            over_2=float((error[enough] > FAR).sum()),
            over_4=float((error[enough] > FAR_NAMED).sum()),
            given_n=of_figures(np.median, given_n),
            relative=of_figures(np.median, relative[of_fixed]),
            largest_relative=of_figures(np.max, relative[of_fixed & enough]),
        )


def of_figures(function: Callable[[Floats], Any], values: Floats) -> float:
    """A function of the values that are not NaN; NaN if there are none."""
    figures = values[~np.isnan(values)]
    return float(function(figures)) if len(figures) else np.nan


class DirectDistances(NamedTuple):
    """|estimate − direct| over direct standard errors, over those for fixed n, and over direct figures, (row,) each."""

    in_errors: Floats
    given_n: Floats
    relative: Floats


def relative_to(gap: Floats, direct: Floats, error: Floats, given_n: Floats) -> DirectDistances:
    """Distances from direct figures with these standard errors; NaN over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        in_errors, in_given = (
            np.where(without_error(direct, of_error), np.nan, gap / of_error) for of_error in (error, given_n)
        )
        return DirectDistances(in_errors, in_given, np.where(direct != 0.0, gap / np.abs(direct), np.nan))


def distances(rows: pd.DataFrame, estimate: str = "synthetic") -> DirectDistances:
    """Distances of an estimate: the published one, a comparator, or what clipping does to the direct one."""
    unknown = pd.Series(np.nan, index=rows.index)
    columns = rows["direct"], rows["direct_se"], rows.get("direct_se_given_n", unknown)
    direct, error, given_n = (np.asarray(column, dtype=np.float64) for column in columns)
    figure = rows["direct_clipped" if estimate == "clipping" else estimate].to_numpy(dtype=float)
    with np.errstate(invalid="ignore"):  # ratios to 0
        gap = np.abs(figure - direct)
    return relative_to(gap, direct, error, given_n)


def errors_of(rows: pd.DataFrame) -> Errors:
    """The errors of a release's statistic from all its rows of an evaluation."""
    error, records = (rows[name].to_numpy(dtype=float) for name in ("direct_se", "records"))
    additive = rows["statistic"].isin(["count", "total"]).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        of_record = error / np.sqrt(records) if additive else error * np.sqrt(records)
    typical = of_figures(np.median, np.where((of_record > 0.0) & np.isfinite(of_record), of_record, np.nan))
    return Errors.of(*distances(rows), np.where(of_record < NEAR_ZERO * typical, 0.0, records))


def with_distances(rows: pd.DataFrame, estimates: Sequence[str], comparators: Sequence[str]) -> pd.DataFrame:
    """The rows with the columns of errors and distances of these estimates, besides the published ones."""
    yardstick = rows["truth"].where(rows["truth"].notna(), rows["direct"])
    for column in ("synthetic", "synthetic_records", *estimates):
        rows[f"{column}_error"] = rows[column] - yardstick
        rows[f"{column}_error_in_se"] = distances(rows, column).in_errors
    rows["clipping_error_in_se"] = distances(rows, "clipping").in_errors
    for how in comparators:
        with np.errstate(divide="ignore", invalid="ignore"):
            rows[f"synthetic_to_{how}"] = rows["synthetic_error"].abs() / rows[f"{how}_error"].abs()
    return rows


# The published variance T has two parts: T = E + N, with E from the sample and N from the noise.
# The direct figure has the variance D, all from the sample. Both figures come from one sample. So most of E and D is a
# common error, which cancels in the difference. The difference has the variance
#
#     N + E + D − 2ρ√(ED),    ρ = min(SAME_SAMPLE, √(E/D), √(D/E)).
#
# The two ratios follow from a case: if the figure with the smaller variance is efficient, its covariance with the other
# figure is its own variance (Hausman 1978). The difference then has the variance |E − D|. SAME_SAMPLE limits ρ where E and
# D are equal, because clipped and unclipped records have slightly different errors. A count's variance from random sample
# sizes is in E and in D, but not in the difference. It is subtracted from both where it is known.
#
# Where the mechanism cannot simulate its noise again, N is unknown and may be all of T. Then ρ = 0, which gives the largest
# variance.
#
# D is estimated from a cell's own records. Of a skewed outcome, few records show too small a variance most of the time: the
# record that would raise it is missing. A published figure that is more precise than the direct one would seem to err. So
# the relative variance of a record, or its variance over p(1 − p) for shares, is the median over cells of FEWEST_OF_OWN
# records or more (a generalised variance function, Wolter 2007, chapter 7), and cells of fewer records have at least this
# variance, but at most MOST_TIMES_OWN times their own. It follows the direct figure: a published one that is far too
# large must not excuse itself. Differences, and figures that may be negative, have no such law.
SAME_SAMPLE = 0.9
FEWEST_OF_OWN = 30
"""Records from which on a cell's own direct variance is taken as it is."""
MOST_TIMES_OWN = 8.0
"""How many times its own a variance may be by that of others: a law that does not hold must not excuse any error."""


def by_chance(rows: pd.DataFrame) -> Floats:
    """Returns the standard deviation of published less direct figure, (row,), if the published standard error is right."""
    total, own = (rows[name].to_numpy(dtype=float) ** 2 for name in ("synthetic_se", "direct_se"))
    variance = rows.get("direct_se_given_n", pd.Series(np.nan, index=rows.index)).to_numpy(dtype=float) ** 2
    sizes = np.where(np.isfinite(variance), np.maximum(own - variance, 0.0), 0.0)
    noise = noise_error(rows) ** 2
    finite = np.isfinite(noise)
    noise = np.where(finite, np.minimum(noise, total), 0.0)
    sampling, direct = np.maximum(total - noise - sizes, 0.0), np.maximum(_direct_variance(rows) - sizes, 0.0)
    ratio = np.sqrt(quotient(np.minimum(sampling, direct), np.maximum(sampling, direct)))
    rho = np.where(finite, np.fmin(SAME_SAMPLE, np.nan_to_num(ratio)), 0.0)
    return np.asarray(np.sqrt(noise + sampling + direct - 2.0 * rho * np.sqrt(sampling * direct)))


def _direct_variance(rows: pd.DataFrame) -> Floats:
    """Variances of direct figures, (row,): in cells of few records at least what records of larger cells let expect."""
    own, figure, records = (
        rows[name].to_numpy(dtype=float) ** power for name, power in (("direct_se", 2), ("direct", 1), ("records", 1))
    )
    known = np.isfinite(figure)
    if rows["statistic"].astype(str).str.startswith("difference").any() or (figure[known] < 0.0).any():
        return np.asarray(own)
    # Of shares, and of amounts.
    law = figure * (1.0 - figure) if (figure[known] <= 1.0).all() else figure**2
    large = known & (records >= FEWEST_OF_OWN) & (law > 0.0) & np.isfinite(own)
    few = (records < FEWEST_OF_OWN) & (own > 0.0) & (law > 0.0)
    if not large.any():
        return np.asarray(own)
    expected = float(np.median(own[large] * records[large] / law[large])) * law / np.maximum(records, 1.0)
    return np.where(few, np.clip(expected, own, MOST_TIMES_OWN * own), own)


def noise_error(rows: pd.DataFrame) -> Floats:
    """Returns standard errors due to noise alone, (row,).

    They are NaN if unknown, as in evaluations by earlier versions.
    """
    unknown = pd.Series(np.nan, index=rows.index)
    return np.asarray(rows.get("synthetic_noise_se", unknown), dtype=float)


def holds_direct(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if the published interval contains the direct estimate, (row,); False without an interval."""
    return held(rows, np.ones(len(rows)))


def held(rows: pd.DataFrame, times: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """True if the direct estimate lies within the interval, after its half widths are multiplied by `times`."""
    gap = (rows["direct"] - rows["synthetic"]).to_numpy(dtype=float)
    below, above = rows["synthetic"] - rows["synthetic_lower"], rows["synthetic_upper"] - rows["synthetic"]
    reach = times * np.where(gap < 0, below, above)
    return np.asarray(np.abs(gap) <= reach + SAME * rows["direct"].abs().to_numpy(dtype=float))
