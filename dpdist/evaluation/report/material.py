"""What the custodian's report is made of: a workspace with its release, its evaluations and its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.core.records import Floats, Frame, Ints
from dpdist.estimation.frame_table import frame_from_table
from dpdist.evaluation.report.plots import thinned
from dpdist.job import Job
from dpdist.publish.released import ReleasedObject
from dpdist.storage.tables import each_block, read_table
from dpdist.storage.workspace import Workspace

MOST_DRAWN = 20_000
"""Records that distribution functions are drawn of."""


class Drawn(NamedTuple):
    """Records for the page's drawings, (record,) each."""

    record: Ints
    outcomes: list[Floats]
    weight: Floats


@dataclass(frozen=True)
class Material:
    """A workspace with its release and its evaluations."""

    space: Workspace
    release: ReleasedObject
    tables: Mapping[str, pd.DataFrame]
    statement: Mapping[str, Any]
    unjudged: Sequence[str]
    """What is published and has no evaluation: tables, or statistics of a table."""

    @property
    def job(self) -> Job:
        return self.release.job

    @cached_property
    def frame(self) -> Frame:
        return frame_from_table(read_table(self.space.frame))

    @cached_property
    def bounds(self) -> pd.DataFrame | None:
        """Bounds and privacy weights by record, of mechanisms that have them."""
        path = self.space.confidential / "bounds.parquet"
        if not path.is_file():
            return None
        rows: pd.DataFrame = pq.read_table(path).to_pandas()
        return rows if rows["weighted_record_bound"].notna().any() else None

    @cached_property
    def strata(self) -> pd.DataFrame:
        """One row a stratum, every diagnostic in a column of its own."""
        path = self.space.confidential / "strata.parquet"
        rows: pd.DataFrame = pq.read_table(path).to_pandas() if path.is_file() else pd.DataFrame()
        if "diagnostics" not in rows:
            return rows
        own = pd.DataFrame([each or {} for each in rows["diagnostics"]], index=rows.index).dropna(axis=1, how="all")
        return pd.concat([rows.drop(columns=["diagnostics", "offset"], errors="ignore"), own], axis=1)

    @cached_property
    def records(self) -> Drawn:
        """At most so many records that they can be drawn, evenly spread over the file."""
        which = thinned(int(self.frame.count.sum()), MOST_DRAWN)
        parts = [block.take(which) for block in each_block(self.space.records)]
        outcomes = [np.concatenate(each) for each in zip(*(part.outcomes.T for part in parts), strict=True)]
        record, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("record", "weight"))
        return Drawn(record, outcomes, weight)
