"""Collects what the custodian's report is made of: a workspace with its release, evaluations and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.parquet import batches
from dpdist.core.records import Floats, Frame, Ints
from dpdist.estimation.frame_table import frame_from_table
from dpdist.job import Job
from dpdist.publish.released import ReleasedObject
from dpdist.quality.report.plots import thinned
from dpdist.storage.tables import each_block, read_table
from dpdist.storage.workspace import Workspace

MOST_DRAWN = 20_000
"""Largest number of records that a plotted distribution function is based on."""
BOUNDS = ("unweighted_record_bound", "weighted_record_bound")


class Drawn(NamedTuple):
    """Records for the page's plots, (record,) each."""

    record: Ints
    outcomes: list[Floats]
    weight: Floats


class RecordBounds(NamedTuple):
    """Record bounds and privacy weights. Counts are over all records; plots use records evenly spread over the file."""

    drawn: pd.DataFrame
    largest: pd.Series[float]
    weight: Floats
    """Privacy weights of the records in plots, (record,)."""
    rows: int
    weighted_down: int


@dataclass(frozen=True)
class Material:
    """A workspace with its release and its evaluations."""

    space: Workspace
    release: ReleasedObject
    tables: Mapping[str, pd.DataFrame]
    statement: Mapping[str, Any]
    unjudged: Sequence[str]
    """Published tables, or statistics of a table, without an evaluation."""

    @property
    def job(self) -> Job:
        return self.release.job

    @cached_property
    def frame(self) -> Frame:
        return frame_from_table(read_table(self.space.frame))

    @cached_property
    def bounds(self) -> RecordBounds | None:
        """Record bounds and privacy weights, for mechanisms that have them. The file is read in parts."""
        path = self.space.confidential / "bounds.parquet"
        if not path.is_file():
            return None
        drawn = evenly_spread(path, BOUNDS).to_pandas()
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
        return RecordBounds(drawn, largest, weight.reindex(self.records.record).to_numpy(dtype=float), rows, down)

    @cached_property
    def strata(self) -> pd.DataFrame:
        """One row for each stratum, with every diagnostic in a column."""
        path = self.space.confidential / "strata.parquet"
        rows: pd.DataFrame = pq.read_table(path).to_pandas() if path.is_file() else pd.DataFrame()
        if "diagnostics" not in rows:
            return rows
        diagnostics = pd.DataFrame([entry or {} for entry in rows["diagnostics"]], index=rows.index).dropna(
            axis=1, how="all"
        )
        return pd.concat([rows.drop(columns=["diagnostics", "offset"], errors="ignore"), diagnostics], axis=1)

    @cached_property
    def records(self) -> Drawn:
        """At most MOST_DRAWN records, evenly spread over the file."""
        which = thinned(int(self.frame.count.sum()), MOST_DRAWN)
        # indexed by number, because a view of a slice would keep its whole block in memory
        parts = [block.take(np.arange(len(block))[which]) for block in each_block(self.space.records)]
        outcomes = [np.concatenate(values) for values in zip(*(part.outcomes.T for part in parts), strict=True)]
        record, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("record", "weight"))
        return Drawn(record, outcomes, weight)


def evenly_spread(path: Path, columns: Sequence[str]) -> pa.Table:
    """At most MOST_DRAWN rows of a Parquet file, evenly spread. The file is read in parts."""
    with pq.ParquetFile(path) as file:
        step, start, parts = thinned(file.metadata.num_rows, MOST_DRAWN).step, 0, []
        for batch in batches(file, columns):
            parts.append(batch.take(pa.array(np.arange(-start % step, batch.num_rows, step))))
            start += batch.num_rows
        return pa.Table.from_batches(parts) if parts else file.schema_arrow.empty_table().select(list(columns))
