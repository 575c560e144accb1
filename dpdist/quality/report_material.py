"""The material of the custodian's report: a workspace's release, evaluations and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.confidential.records import Records
from dpdist.core.parquet import batches
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.estimation.crosstab_table import crosstab_from_table
from dpdist.estimation.donors import CELL
from dpdist.job import Job
from dpdist.publish.noisy_figures import FILE
from dpdist.publish.released import ReleasedObject
from dpdist.quality.report_parts import thin
from dpdist.quality.summary import Judgements
from dpdist.storage.tables import each_block, read_table
from dpdist.storage.workspace import Workspace

MOST_DRAWN = 20_000
"""Largest number of records in a plotted distribution function."""
BOUNDS = ("unweighted_record_bound", "weighted_record_bound")


class PlottedRecords(NamedTuple):
    """Records for the page's plots, (record,) each."""

    record: Ints
    outcomes: list[Floats]
    weight: Floats


class RecordBounds(NamedTuple):
    """Record bounds and privacy weights. Counts are over all records; plots use records evenly spread over the file."""

    sample: pd.DataFrame
    largest: pd.Series[float]
    weight: Floats
    """Privacy weights of the records in plots, (record,)."""
    rows: int
    weighted_down: int


@dataclass(frozen=True)
class ReportMaterial:
    space: Workspace
    release: ReleasedObject
    tables: Mapping[str, pd.DataFrame]
    statement: Mapping[str, Any]
    unjudged: Sequence[str]
    """Published tables, or statistics of a table, without an evaluation."""
    verdicts: Judgements
    """The verdict on each statistic of each table, by name."""

    @property
    def job(self) -> Job:
        return self.release.job

    @cached_property
    def crosstab(self) -> Crosstab:
        return crosstab_from_table(read_table(self.space.crosstab))

    @cached_property
    def bounds(self) -> RecordBounds | None:
        """Record bounds and privacy weights, for mechanisms that have them. The file is read in parts."""
        path = self.space.confidential / "bounds.parquet"
        if not path.is_file():
            return None
        sample = evenly_spread(path, BOUNDS).to_pandas()
        largest, rows, down, parts = pd.Series(np.nan, index=[*BOUNDS]), 0, 0, []
        with pq.ParquetFile(path) as file:
            for batch in batches(file, ["record", *BOUNDS, "privacy_weight"]):
                part = batch.to_pandas()
                largest = largest.combine(part[[*BOUNDS]].max(), np.fmax)
                rows, down = rows + len(part), down + int((part["privacy_weight"] < 1.0).sum())
                parts.append(part.loc[part["record"].isin(self.records.record), ["record", "privacy_weight"]])
        if np.isnan(largest["weighted_record_bound"]):
            return None
        weight = pd.concat(parts).drop_duplicates("record").set_index("record")["privacy_weight"]
        return RecordBounds(sample, largest, weight.reindex(self.records.record).to_numpy(dtype=float), rows, down)

    @cached_property
    def strata(self) -> pd.DataFrame:
        path = self.space.confidential / "strata.parquet"
        rows: pd.DataFrame = pq.read_table(path).to_pandas() if path.is_file() else pd.DataFrame()
        if "diagnostics" not in rows:
            return rows
        diagnostics = pd.DataFrame([entry or {} for entry in rows["diagnostics"]], index=rows.index).dropna(
            axis=1, how="all"
        )
        return pd.concat([rows.drop(columns=["diagnostics", "offset"], errors="ignore"), diagnostics], axis=1)

    @cached_property
    def records(self) -> PlottedRecords:
        """At most MOST_DRAWN records, evenly spread over the file."""
        which = thin(int(self.crosstab.count.sum()), MOST_DRAWN)
        # indexed by number, because a view of a slice would keep its whole block in memory
        parts = [block.take(np.arange(len(block))[which]) for block in each_block(self.space.records)]
        outcomes = [np.concatenate(values) for values in zip(*(part.outcomes.T for part in parts), strict=True)]
        record, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("record", "weight"))
        return PlottedRecords(record, outcomes, weight)


def evenly_spread(path: Path, columns: Sequence[str]) -> pa.Table:
    """At most MOST_DRAWN rows of a Parquet file, evenly spread. The file is read in parts."""
    with pq.ParquetFile(path) as file:
        step, start, parts = thin(file.metadata.num_rows, MOST_DRAWN).step, 0, []
        for batch in batches(file, columns):
            parts.append(batch.take(pa.array(np.arange(-start % step, batch.num_rows, step))))
            start += batch.num_rows
        return pa.Table.from_batches(parts) if parts else file.schema_arrow.empty_table().select(list(columns))


LIMITS = ["centre", "weight_cap", "half_width"]


@dataclass(frozen=True)
class Rules:
    """Limits by crosstab row, (row, outcome), and of the weight, (row,); NaN if nothing is clipped."""

    job: Job
    low: Floats
    high: Floats
    least: Floats
    cap: Floats
    measured: bool
    """True for the limits of measurements, false for public bounds."""


def clipped(space: Workspace, job: Job, crosstab: Crosstab) -> dict[str, Ints]:
    """Number of records, by crosstab row, that every rule clips; rules that clip nothing are included."""
    counts = dict[str, Ints]()
    rules = [_public(job, crosstab), *_measured(space, job, crosstab)]
    for block in each_block(space.records):
        for rule in rules:
            for name, beyond in _beyond(rule, block):
                beyond_count = counts.setdefault(name, np.zeros(len(crosstab), dtype=np.int64))
                beyond_count += np.bincount(block.row[beyond], minlength=len(crosstab))
    return counts


def _beyond(rules: Rules, records: Records) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]]:
    """Yields for each rule whether it clips a record, (record,).

    A record at a public bound counts as clipped, because reading set clipped records to the bound. For a measurement's
    limits, it must lie beyond the limit.
    """
    over = np.greater if rules.measured else np.greater_equal
    where = "beyond the limits of its cell's measurement" if rules.measured else "at its public bounds or beyond"
    for j, (name, values) in enumerate(zip(rules.job.outcomes, records.outcomes.T, strict=True)):
        low, high = rules.low[records.row, j], rules.high[records.row, j]
        if np.isfinite([low, high]).any():
            yield f"{name} {where}", over(values, high) | over(-values, -low)
    least, cap = rules.least[records.row], rules.cap[records.row]
    if rules.job.survey.weight is not None and np.isfinite(cap).any():
        yield f"{rules.job.survey.weight} {where}", over(records.weight, cap) | over(-records.weight, -least)


def _public(job: Job, crosstab: Crosstab) -> Rules:
    bounds = [(job.columns[name].bounds or (np.nan, np.nan)) if name in job.clipped_columns else (np.nan,) * 2
              for name in job.outcomes]  # fmt: skip
    weight = job.columns.get(job.survey.weight or "")
    ends = weight.bounds if weight is not None and weight.bounds and weight.outside == "clip" else (np.nan, np.nan)
    least, cap = (np.full(len(crosstab), float(end)) for end in ends)
    low, high = (np.tile([float(pair[end]) for pair in bounds], (len(crosstab), 1)) for end in (0, 1))
    return Rules(job, low, high, least, cap, False)


def _measured(space: Workspace, job: Job, crosstab: Crosstab) -> Iterator[Rules]:
    """The clipping limits of the release's measurements, if they depend on the cell."""
    if not (space.newest / FILE).is_file():
        return
    rows = pq.read_table(space.newest / FILE).to_pandas()
    rows = rows[rows["weight_cap"].notna() & rows["half_width"].notna() & rows["table"].isna()]
    if rows.empty:
        return
    cells = [name for name in map(str, rows.columns) if name.startswith(CELL) and rows[name].notna().all()]
    labels = {
        name: np.array([str(level) for level in crosstab.levels[name.removeprefix(CELL)]], dtype=object)[
            crosstab.codes[name.removeprefix(CELL)]
        ]
        for name in cells
    }
    limits = []
    for name in job.outcomes:
        of_outcome = rows if len(job.outcomes) == 1 else rows[rows["statistic"].str.endswith(f" {name}")]
        of_outcome = of_outcome[[*cells, *LIMITS]].drop_duplicates(cells or None)
        here = pd.DataFrame({"row": np.arange(len(crosstab)), **labels})
        merged = here.merge(of_outcome, on=cells, how="left") if cells else here.merge(of_outcome.head(1), how="cross")
        limits.append(merged.sort_values("row")[LIMITS].to_numpy(dtype=float))
    if not all(len(limit) == len(crosstab) for limit in limits):
        return
    centre, cap, reach = (np.column_stack([limit[:, k] for limit in limits]) for k in range(3))
    yield Rules(job, centre - reach, centre + reach, np.zeros(len(crosstab)), cap[:, 0], True)
