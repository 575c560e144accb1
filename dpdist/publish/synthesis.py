"""Synthetic microdata: one record per sample record and set, under the public x of the sample; streamed by stratum."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.estimates import Sums, record_sums
from dpdist.models.protocol import Presampled, Synthesizer
from dpdist.publish.released import Release
from dpdist.records import Codes, Floats

BATCH = 65_536


def synthesize(release: Release, folder: Path, tick: Callable[[int], None]) -> list[Sums]:
    """Write set-<k>.parquet for every set; returns each set's sums per frame row, for the tables."""
    folder.mkdir(parents=True)
    frame, rows = release.frame, len(release.frame)
    sums = [Sums(*(np.zeros(rows) for _ in range(5))) for _ in release.sets]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pq.ParquetWriter(folder / f"set-{k + 1}.parquet", _schema(release), compression="zstd"))
            for k in range(len(release.sets))
        ]
        for stratum, label in enumerate(frame.stratum_labels):
            model = release.model(stratum)
            own = frame.rows_of(stratum)
            frame_row = np.repeat(np.arange(own.start, own.stop, dtype=np.int32), frame.count[own])
            for k, writer in enumerate(writers):
                theta = release.theta(model, stratum, k)
                for block, start in enumerate(range(0, len(frame_row), BATCH)):
                    part = frame_row[start : start + BATCH]
                    if isinstance(model, Presampled):
                        outcome, weight = (values[start : start + BATCH] for values in model.presampled(theta))
                    else:
                        assert isinstance(model, Synthesizer)
                        rng = release.seed.generator("synthesis", label, block, k + 1)
                        outcome, weight = model.simulate(theta, part, rng)
                    sums[k] = sums[k].plus(record_sums(part, weight, outcome, rows))
                    writer.write_table(_table(release, part, outcome, weight))
            tick(1)
    return sums


def _schema(release: Release) -> pa.Schema:
    job, frame = release.job, release.frame
    categories = [(name, pa.dictionary(pa.int32(), pa.infer_type(list(levels)))) for name, levels in frame.levels.items()]
    return pa.schema([*categories, *((name, pa.float64()) for name in job.components)])


def _table(release: Release, frame_row: Codes, outcome: Floats, weight: Floats) -> pa.Table:
    frame = release.frame
    categories = [
        pa.DictionaryArray.from_arrays(pa.array(frame.codes[name][frame_row]), pa.array(list(levels)))
        for name, levels in frame.levels.items()
    ]
    numbers = [outcome, weight][: len(release.job.components)]
    return pa.Table.from_arrays([*categories, *map(pa.array, numbers)], schema=_schema(release))
