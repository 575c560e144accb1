"""What other settings, and leaving out or coarsening a table, would change in predicted errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dpdist.core.errors import DpdistError, JobError, Problem
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Floats
from dpdist.core.this_process import single_threaded
from dpdist.job import Job, Table
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import Improper, StratumModel, supports
from dpdist.planning.plan import Plan
from dpdist.quality.predicted.prediction import PublicRecords, by_formulas, identity, public_sizes, with_epsilon
from dpdist.quality.predicted.replicates import load_or_make
from dpdist.quality.predicted.scores import number
from dpdist.quality.report_parts import Grid, ReportCell
from dpdist.survey.reference_file import ReferenceFile

By = Mapping[tuple[str, str], Floats]
"""Predicted errors of cells in direct standard errors, by table and statistic, without cells that the design fixes."""


class Alternative(NamedTuple):
    """A change of the job, and what it does to the statistics of the tables that it leaves as they are.

    `ratios` are their median predicted errors over those of the job as it is, by table and statistic; NaN if the design
    fixes all cells. `largest` is the largest predicted error of their cells over that of the job as it is. `why` has the
    reason if the change is not possible; there are no ratios then.
    """

    change: str
    ratios: Mapping[tuple[str, str], float]
    largest: float
    why: str = ""

    @property
    def range(self) -> tuple[float, float, float]:
        """The median of the ratios, the smallest and the largest; NaN if there are none."""
        finite = [ratio for ratio in self.ratios.values() if np.isfinite(ratio)] or [np.nan]
        return float(np.median(finite)), min(finite), max(finite)

    @property
    def setting(self) -> bool:
        return self.change.startswith("objective: ")


def alternatives(plan: Plan, listener: Listener = silent) -> list[Alternative]:
    """The alternatives of a plan, settings first, and then changes of tables by what they gain.

    Computed once for each job, reference and public sizes. Raises `JobError` if errors do not follow from formulas.
    """
    job, reference = plan.job, plan.reference
    model = builder_of(job).build(job, plan.crosstab, plan.crosstab.rows_of(0))
    if not (isinstance(reference, ReferenceFile) and by_formulas(model, job)):
        fault = "predicted errors do not follow from formulas, and every change would need its own releases"
        problem = Problem(
            "--alternatives",
            fault,
            "tables with a reference, without strata and rake",
            "change the job and plan it again",
        )
        raise JobError(job.dataset, [problem])
    key = identity(job, public_sizes(job, plan.crosstab, reference), reference, ["alternatives", "largest"])
    rows = load_or_make(key, lambda: _rows(plan, reference, listener))
    found = []
    for change, part in rows.groupby("change", sort=False):
        ratios = dict(zip(zip(part["table"], part["statistic"], strict=True), part["ratio"].astype(float), strict=True))
        why = str(part["why"].iloc[0])
        found.append(Alternative(str(change), {} if why else ratios, float(part["largest"].iloc[0]), why))
    changes = sorted((each for each in found if not each.setting), key=lambda alternative: alternative.range[0])
    return [*(each for each in found if each.setting), *changes]


def _rows(plan: Plan, reference: ReferenceFile, listener: Listener) -> pd.DataFrame:
    """Ratios by change, table and statistic, and the reasons of changes that are not possible."""
    job, crosstab = with_epsilon(plan.job, plan.job.budget.epsilon), public_sizes(plan.job, plan.crosstab, reference)
    rows = list[tuple[str, str, str, float, float, str]]()
    model = builder_of(job).build(job, crosstab, crosstab.rows_of(0))
    by_setting = model.by_setting() if supports(model, "with_donors") else {}
    changes: list[tuple[str, Job, StratumModel | None]] = [(change, job, other) for change, other in by_setting.items()]
    changes += [(change, tried, None) for change, tried in _changed(job)]
    with single_threaded(), stage(listener, "predict alternatives", 1 + len(changes)) as tick:
        records = PublicRecords.of(job, reference)

        def errors(tried: Job, model: StratumModel | None) -> By:
            predicted = [(row.table, row.statistic.text, row.error) for row in records.errors(tried, crosstab, model)[0]]
            return {(table, text): error[np.isfinite(error) & (error > 0.0)] for table, text, error in predicted}

        as_it_is = errors(job, model)
        tick(1)
        for change, tried, other in changes:
            same = {table.name for table in tried.tables if table in job.tables}
            try:
                remaining = {key: error for key, error in errors(tried, other).items() if key[0] in same}
                before = {key: as_it_is[key] for key in remaining}
                after_all, before_all = (np.concatenate([np.empty(0), *of.values()]) for of in (remaining, before))
                largest = _over(after_all, before_all, np.max)
                rows += [(change, *key, _over(remaining[key], before[key], np.median), largest, "") for key in remaining]
            except (Improper, DpdistError) as failure:
                rows.append((change, "", "", np.nan, np.nan, str(failure).splitlines()[0]))
            tick(1)
    return pd.DataFrame(rows, columns=["change", "table", "statistic", "ratio", "largest", "why"])


def _over(changed: Floats, before: Floats, of: Callable[[Floats], Any]) -> float:
    """A figure of errors over that of the errors before; NaN if there are none."""
    return float(of(changed)) / float(of(before)) if len(changed) and len(before) else np.nan


def _changed(job: Job) -> Iterator[tuple[str, Job]]:
    """Yields the job without each table, and with each table summed over one of its columns unless another has that."""
    if len(job.tables) < 2:
        return
    column_sets = {frozenset(table.by) for table in job.tables}
    for place, table in enumerate(job.tables):
        before, after = job.tables[:place], job.tables[place + 1 :]
        yield f"without {table.name}", _with_tables(job, (*before, *after))
        for column in table.by:
            by = tuple(name for name in table.by if name != column)
            if by and frozenset(by) not in column_sets:
                summed = table.model_copy(update={"by": by})
                yield f"{table.name} without {column}", _with_tables(job, (*before, summed, *after))


def _with_tables(job: Job, tables: Sequence[Table]) -> Job:
    changed = job.model_copy(update={"tables": tuple(tables)})
    remaining = {*changed.cell_columns}
    hierarchies = {name: hierarchy for name, hierarchy in job.hierarchies.items() if {*hierarchy.columns} <= remaining}
    return changed.model_copy(update={"hierarchies": hierarchies})


def described(alternative: Alternative) -> dict[str, object]:
    """An entry for `plan --json`; null for unknown ratios."""
    ratios = [
        {"table": table, "statistic": statistic, "ratio": number(ratio)}
        for (table, statistic), ratio in alternative.ratios.items()
    ]
    figures = {"ratio": number(alternative.range[0]), "largest": number(alternative.largest)}
    return {"change": alternative.change, **figures, "ratios": ratios, "why": alternative.why or None}


def grid(changes: Sequence[Alternative]) -> Grid:
    """All alternatives as a table of a page."""
    rows = [
        [ReportCell(each.change), *(ReportCell(f"{value:.2f}", f"{value:.10g}") for value in (*each.range, each.largest))]
        for each in changes
        if not each.why
    ]
    impossible = [f"Not possible: {each.change}, because {each.why}" for each in changes if each.why]
    heads = ["change", "median ratio", "smallest", "largest", "largest error"]
    return Grid("Predicted errors of the other tables, relative to the current job", heads, rows, notes=impossible)


def in_words(entries: Sequence[Alternative], most: int = 8) -> Iterator[str]:
    """Yields a line for every setting, and for the changes of tables that gain most."""
    yield (
        "ratios of predicted median errors to those of the current job, over the other tables: median and range; then the "
        "ratio of the largest error of any cell"
    )
    changes = [alternative for alternative in entries if not alternative.setting]
    for alternative in (*(each for each in entries if each.setting), *changes[:most]):
        yield f"{alternative.change}: {_ratios(alternative)}"
    if len(changes) > most:
        yield f"{len(changes) - most:,} further changes gain less; --open and --json have them all"


def _ratios(alternative: Alternative) -> str:
    median, least, most = alternative.range
    if np.isnan(median):
        return f"not possible: {alternative.why}" if alternative.why else "the design fixes all other figures"
    return f"{median:.2f} ({least:.2f} to {most:.2f}); largest {alternative.largest:.2f}"
