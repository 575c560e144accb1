"""For `kinds.tables`: simulated surveys, and informative samples of a file that is taken for the population."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame, Ints
from dpdist.core.table_cells import Cells, cross
from dpdist.estimation.direct import Totals, totals
from dpdist.job import Job, StatisticName
from dpdist.quality.compare import truth_in_cells
from dpdist.studies.kinds.protocol import Result
from dpdist.studies.kinds.table_errors import STATISTICS
from dpdist.survey.census import take_census
from dpdist.survey.placement import place
from dpdist.survey.source import Source, open_source

NOISE = 0.4
"""Standard deviation of the noise in log size, given the outcome."""
SIZE = "size of unit"
WEIGHT = "weight"


def informative_size(y: Floats, rng: np.random.Generator) -> Floats:
    """(y + ȳ/2)·exp(.4 z) with z normal; positive even for y = 0."""
    return np.asarray((y + y.mean() / 2.0) * np.exp(NOISE * rng.standard_normal(len(y))))


def inclusion(size: Floats, n: int) -> Floats:
    """min(1, c·size), (unit,), with c so that they sum to n. Raises `ValueError` unless n < units."""
    if n >= len(size):
        raise ValueError(f"a sample of {n:,} from {len(size):,} units leaves none out: take a smaller one")
    certain = np.zeros(len(size), dtype=bool)
    while True:
        chance = np.where(certain, 1.0, (n - certain.sum()) * size / size[~certain].sum())
        over = chance > 1.0
        if not over.any():
            return chance
        certain |= over


def systematic(chance: Floats, rng: np.random.Generator) -> Ints:
    """Positions of a systematic sample in random order, (sampled,)."""
    order = rng.permutation(len(chance))
    steps = rng.random() + np.cumsum(chance[order])
    before = np.concatenate([[steps[0] - chance[order[0]]], steps[:-1]])
    return np.sort(order[np.floor(steps) > np.floor(before)])


def sampled(rows: pd.DataFrame, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A systematic sample of n units, proportional to size; weights are inverse probabilities."""
    chance = inclusion(rows[SIZE].to_numpy(float), n)
    taken = systematic(chance, rng)
    return rows.iloc[taken].drop(columns=SIZE).assign(**{WEIGHT: 1.0 / chance[taken]}).reset_index(drop=True)


@dataclass(frozen=True)
class Survey:
    """A sample, the table's cells, the truth in them, and direct totals."""

    frame: Frame
    records: Records
    cells: Cells
    truth: dict[str, Floats]
    totals: Totals


def simulated(job: Job) -> Survey:
    source = open_source(job)
    truth = source.truth
    assert truth is not None
    return placed_survey(job, source, lambda frame, _: truth_in_cells(truth, job, job.tables[0], frame))


def placed_survey(job: Job, source: Source, truth: Callable[[Frame, Cells], dict[str, Floats]]) -> Survey:
    """Records in their frame; `truth` gives the population's figures."""
    census = take_census(job, source)
    frame = census.frame
    with tempfile.TemporaryDirectory(prefix="dpdist-") as folder:
        placed = place(job, source, census, Path(folder))
        fields = (np.array(getattr(placed, name)) for name in ("record", "frame", "outcomes", "weight", "psu"))
        records = Records(*fields)
    table = job.tables[0]
    cells = cross(frame, table.by, table.margins, table.universe)
    return Survey(frame, records, cells, truth(frame, cells), totals([records], frame, clustered=False))


def errors_of(label: str, epsilon: str, values: Mapping[StatisticName, Floats], survey: Survey) -> Iterator[Result]:
    """(estimate − truth)/truth by cell; a cell without a record has no mean."""
    for statistic in STATISTICS:
        error = values[statistic] / survey.truth[statistic] - 1.0
        for cell, value in zip(survey.cells.labels, error, strict=True):
            if np.isfinite(value):
                yield Result(label, epsilon, f"{statistic} error {' / '.join(cell)}", float(value))
