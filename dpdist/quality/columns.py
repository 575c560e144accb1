"""Describes every column of the files in confidential/evaluation; the reference page of a workspace is made from this."""

from __future__ import annotations

from typing import get_args

from dpdist.job import Comparator

HOW = "COMPARATOR"
"""Stands for the name of a comparator of the job, such as `laplace_finest`."""
TABLES = {
    "statistic": "`count`, `mean`, `total`, or another statistic of the job's table",
    "variable": "the outcome of the statistic; null for counts",
    "records": "number of the file's records in the cell",
    "direct": "the estimate from the file, before clipping, after the public universe and rules",
    "direct_se": "its standard error under the stated design; 0 where it is 0 but for rounding",
    "direct_se_given_n": "the same, where the cells' numbers of records are taken as fixed; null where it is not known",
    "direct_df": "degrees of freedom of `direct_se`",
    "direct_cv": "`direct_se` over the absolute value of `direct`",
    "direct_clipped": "the estimate from the records as the release uses them, after clipping",
    "synthetic": "the published estimate: from parameters, or from synthetic records where there is no other",
    "synthetic_se": "its published standard error",
    "synthetic_df": "its published degrees of freedom",
    "synthetic_lower": "lower limit of its published 90 % interval",
    "synthetic_upper": "upper limit of its published 90 % interval",
    "synthetic_records": "the published estimate from synthetic records; null where there is none",
    HOW: "the comparator's figure; of `fbs` and `fbp` that from parameters",
    f"{HOW}_records": "of `fbs` and `fbp`: the figure from synthetic records",
    f"{HOW}_note": "the comparator's guarantee, which begins with its class, or why figures are missing",
    "truth": "the figure of the population, where the survey is simulated; else null",
    "synthetic_error": "`synthetic` less `truth`, or less `direct` where the truth is not known",
    "synthetic_error_in_se": "distance of `synthetic` from `direct`, in `direct_se`; null where that is 0 or unknown",
    "synthetic_records_error": "the same as `synthetic_error`, of `synthetic_records`",
    "synthetic_records_error_in_se": "the same as `synthetic_error_in_se`, of `synthetic_records`",
    f"{HOW}_error": "the same as `synthetic_error`, of the comparator",
    f"{HOW}_error_in_se": "the same as `synthetic_error_in_se`, of the comparator",
    f"{HOW}_records_error": "the same, of the figure from synthetic records of `fbs` and `fbp`",
    f"{HOW}_records_error_in_se": "the same, of the figure from synthetic records of `fbs` and `fbp`",
    "clipping_error_in_se": "distance of `direct_clipped` from `direct`, in `direct_se`",
    f"synthetic_to_{HOW}": "absolute value of `synthetic_error` over that of the comparator's error",
}
"""Columns of TABLE.parquet. The columns of the table itself, with the cell's levels, come before them."""


def entry(column: str) -> str | None:
    """Returns the name under which TABLES describes a column of a table's evaluation; None where it does not."""
    if column in TABLES:
        return column
    for how in sorted(get_args(Comparator), key=len, reverse=True):
        named = column.replace(how, HOW, 1)
        if how in column and named in TABLES:
            return named
    return None
