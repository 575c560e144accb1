"""Counts a run's records that were clipped: at public bounds, and at the limits of its noisy measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame, Ints
from dpdist.estimation.weighted_points import CELL
from dpdist.job import Job
from dpdist.publish.model_outputs import FILE
from dpdist.storage.tables import each_block
from dpdist.storage.workspace import Workspace

LIMITS = ["centre", "weight_cap", "half_width"]


class Clipped(NamedTuple):
    """Number of records, by frame row, that one rule clips."""

    rule: str
    records: Ints


@dataclass(frozen=True)
class Rules:
    """Limits by frame row, (row, outcome), and of the weight, (row,); NaN where nothing is clipped."""

    job: Job
    low: Floats
    high: Floats
    least: Floats
    cap: Floats
    measured: bool
    """True for the limits of measurements, false for public bounds."""


def clipped(space: Workspace, job: Job, frame: Frame) -> list[Clipped]:
    """Returns every rule with its number of clipped records in each frame row; rules that clip nothing are included."""
    counts = dict[str, Ints]()
    rules = [_public(job, frame), *_measured(space, job, frame)]
    for block in each_block(space.records):
        for rule in rules:
            for name, beyond in _beyond(rule, block):
                beyond_count = counts.setdefault(name, np.zeros(len(frame), dtype=np.int64))
                beyond_count += np.bincount(block.frame[beyond], minlength=len(frame))
    return [Clipped(name, records) for name, records in counts.items()]


def _beyond(rules: Rules, records: Records) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.bool_]]]]:
    """Yields for each rule whether it clips a record, (record,).

    A record counts as clipped at a public bound also if it equals the bound, because clipped records were set to it when
    they were read. For a measurement's limits it must lie beyond the limit.
    """
    over = np.greater if rules.measured else np.greater_equal
    where = "beyond the limits of its cell's measurement" if rules.measured else "at its public bounds or beyond"
    for j, (name, values) in enumerate(zip(rules.job.outcomes, records.outcomes.T, strict=True)):
        low, high = rules.low[records.frame, j], rules.high[records.frame, j]
        if np.isfinite([low, high]).any():
            yield f"{name} {where}", over(values, high) | over(-values, -low)
    least, cap = rules.least[records.frame], rules.cap[records.frame]
    if rules.job.survey.weight is not None and np.isfinite(cap).any():
        yield f"{rules.job.survey.weight} {where}", over(records.weight, cap) | over(-records.weight, -least)


def _public(job: Job, frame: Frame) -> Rules:
    bounds = [(job.columns[name].bounds or (np.nan, np.nan)) if name in job.clipped_columns else (np.nan,) * 2
              for name in job.outcomes]  # fmt: skip
    weight = job.columns.get(job.survey.weight or "")
    ends = weight.bounds if weight is not None and weight.bounds and weight.outside == "clip" else (np.nan, np.nan)
    least, cap = (np.full(len(frame), float(end)) for end in ends)
    low, high = (np.tile([float(pair[end]) for pair in bounds], (len(frame), 1)) for end in (0, 1))
    return Rules(job, low, high, least, cap, False)


def _measured(space: Workspace, job: Job, frame: Frame) -> Iterator[Rules]:
    """The limits at which the release's measurements clip, where these depend on the cell."""
    if not (space.newest / FILE).is_file():
        return
    rows = pq.read_table(space.newest / FILE).to_pandas()
    rows = rows[rows["weight_cap"].notna() & rows["half_width"].notna() & rows["table"].isna()]
    if rows.empty:
        return
    cells = [name for name in map(str, rows.columns) if name.startswith(CELL) and rows[name].notna().all()]
    labels = {
        name: np.array([str(level) for level in frame.levels[name.removeprefix(CELL)]], dtype=object)[
            frame.codes[name.removeprefix(CELL)]
        ]
        for name in cells
    }
    limits = []
    for name in job.outcomes:
        of_outcome = rows if len(job.outcomes) == 1 else rows[rows["statistic"].str.endswith(f" {name}")]
        of_outcome = of_outcome[[*cells, *LIMITS]].drop_duplicates(cells or None)
        here = pd.DataFrame({"row": np.arange(len(frame)), **labels})
        merged = here.merge(of_outcome, on=cells, how="left") if cells else here.merge(of_outcome.head(1), how="cross")
        limits.append(merged.sort_values("row")[LIMITS].to_numpy(dtype=float))
    if not all(len(limit) == len(frame) for limit in limits):
        return
    centre, cap, reach = (np.column_stack([limit[:, k] for limit in limits]) for k in range(3))
    yield Rules(job, centre - reach, centre + reach, np.zeros(len(frame)), cap[:, 0], True)
