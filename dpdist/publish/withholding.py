"""Figures that a job withholds because their standard errors are too large (`withhold_above`), and the rule in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.core.cautions import Caution, described
from dpdist.core.records import Floats
from dpdist.estimation.linear import compared_with
from dpdist.job import Job, Statistic, Table

BECAUSE = "withheld_because"
"""Column of a published table that says why a figure is withheld. A table without such figures lacks it."""
REASON = "the standard error is larger than {}"
NOTE = (
    "A figure is withheld if its standard error is larger than {}both the figure and the table's median figure of that "
    "statistic; for a share, or the mean of an outcome of 0 and 1, both the figure and its complement. A difference is "
    "withheld if either of its figures is."
)
"""The rule, in the same words on the page, in the workbook and in the statement."""
IN_WORDS = (
    "{} This rule, the job's `withhold_above`, was fixed before records were read. Confidence limits are published even "
    "so: values outside them can be ruled out, but their middle is no better than the withheld figure. The rule does not "
    "protect anybody: it spares readers uninformative figures."
)


def limit(most: float | None) -> str:
    """The largest standard error of a figure that is not withheld, in words."""
    return "the figure" if most == 1.0 else f"{most:g} times the figure"


def rule(most: float | None) -> str:
    """The rule in words."""
    return NOTE.format("" if most == 1.0 else f"{most:g} times ")


def without_empty_figures(job: Job, spec: Table, table: pa.Table) -> pa.Table:
    """A published table with figures withheld by the job's rule."""
    most = job.withhold_above
    if most is None:
        return table
    rows = table.select([*spec.by, "statistic", "variable", "estimator", "estimate", "standard_error"]).to_pandas()
    withheld, by_statistic = np.zeros(len(rows), dtype=bool), _withheld(job, spec, rows, most)
    for statistic, blank in by_statistic.items():
        of_statistic = rows_with(rows, statistic)
        for estimator in rows["estimator"][of_statistic].unique():
            withheld[of_statistic & (rows["estimator"] == estimator).to_numpy()] = blank
    withheld &= rows["estimate"].notna().to_numpy()
    if not withheld.any():
        return table
    mask = pa.array(withheld)
    for name in ("estimate", "standard_error", "df"):
        blank_column = pc.if_else(mask, pa.scalar(None, pa.float64()), table[name])
        table = table.set_column(table.column_names.index(name), table.schema.field(name), blank_column)
    table = table.set_column(
        table.column_names.index("suppressed"), table.schema.field("suppressed"), pc.or_(table["suppressed"], mask)
    )
    return table.append_column(BECAUSE, pc.if_else(mask, REASON.format(limit(most)), pa.scalar(None, pa.string())))


def _withheld(job: Job, spec: Table, rows: pd.DataFrame, most: float) -> dict[Statistic, NDArray[np.bool_]]:
    """Marks withheld figures, (cell,), by statistic; the first estimator decides for all."""
    blank = dict[Statistic, NDArray[np.bool_]]()
    for statistic in sorted(spec.statistics, key=lambda listed: listed.of is not None):
        of_statistic = rows[rows_with(rows, statistic)]
        first = of_statistic[of_statistic["estimator"] == of_statistic["estimator"].iloc[0]]
        if statistic.of is not None:
            base = blank.get(statistic.of, np.zeros(len(first), dtype=bool))
            labels = list(first[list(spec.by)].itertuples(index=False, name=None))
            blank[statistic] = base | base[compared_with(statistic, spec.by, labels)]
            continue
        value, error = (first[name].to_numpy(dtype=float) for name in ("estimate", "standard_error"))
        blank[statistic] = error > most * _sizes(value, of_share=_of_share(job, statistic))
    return blank


def _of_share(job: Job, statistic: Statistic) -> bool:
    """True for a share, even if written as the mean of a 0/1 outcome."""
    column = job.outcome_columns.get(statistic.variable or "")
    binary = column is not None and column.two_valued and column.bounds in (None, (0.0, 1.0))
    return statistic.kind.limits == (0.0, 1.0) or (statistic.name == "mean" and binary)


def _sizes(value: Floats, *, of_share: bool) -> Floats:
    """The size of every figure, (cell,), with which its error is compared."""
    if of_share:
        return np.maximum(value, 1.0 - value)
    estimated = np.abs(value[np.isfinite(value)])
    return np.maximum(np.abs(value), np.median(estimated) if len(estimated) else 0.0)


def rows_with(rows: pd.DataFrame, statistic: Statistic) -> NDArray[np.bool_]:
    """True for a table's rows of this statistic, (row,)."""
    variable = rows["variable"].isna() if statistic.about is None else rows["variable"] == statistic.about
    return np.asarray((rows["statistic"] == statistic.label) & variable)


def with_withheld(job: Job, rows_of: Callable[[Table], pa.Table], statement: dict[str, Any]) -> dict[str, Any]:
    """The statement with the rule, numbers of withheld figures, and a caution for every table with some.

    `rows_of` gives a table in long form. A figure with two estimates counts once.
    """
    cautions, counted = [*map(Caution.stated, statement["cautions"])], dict[str, dict[str, int]]()
    for spec in job.tables if job.withhold_above is not None else ():
        if BECAUSE not in (table := rows_of(spec)).column_names:
            continue
        rows = table.to_pandas().drop_duplicates([*spec.by, "statistic", "variable"])
        withheld = rows[rows[BECAUSE].notna()]
        by_statistic = {statistic.text: int(rows_with(withheld, statistic).sum()) for statistic in spec.statistics}
        counted[spec.name] = {text: number for text, number in by_statistic.items() if number}
        numbers = {"withheld": f"{len(withheld):,}", "figures": f"{len(rows):,}", "limit": limit(job.withhold_above)}
        words = {"are": "are", "errors": "their standard errors are"}
        if len(withheld) == 1:
            words = {"are": "is", "errors": "its standard error is"}
        for statistic in spec.statistics:
            if by_statistic[statistic.text] == int(rows_with(rows, statistic).sum()):
                empty = {"statistic": statistic.text, "limit": numbers["limit"]}
                cautions.append(Caution.of("all_withheld", table=spec.name, **empty).public)
        cautions.append(Caution.of("withheld", table=spec.name, **numbers, **words).public)
    if not counted:
        return statement
    figures = sum(sum(by_statistic.values()) for by_statistic in counted.values())
    entry = {"in_words": IN_WORDS.format(rule(job.withhold_above)), "above": job.withhold_above, "figures": figures}
    return {**statement, **described(cautions), "withheld": {**entry, "tables": counted}}
