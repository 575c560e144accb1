"""Writes the synthetic sets: for every sample record one synthetic record with the same public x, stratum by stratum.

The records have the columns that the model distinguishes. A design stratum or a column of public totals is among them only
where it is a stratum or a predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.records import Codes, Floats
from dpdist.estimation.estimators import Sums, record_sums
from dpdist.estimation.raking import factors
from dpdist.models.outputs import FromDonors
from dpdist.models.protocol import Presampled, StratumModel, Synthesizer
from dpdist.publish.public_bounds import margins_and_room
from dpdist.publish.released import ReleasedObject

BATCH = 65_536


class Block(NamedTuple):
    """Synthetic records: frame row, outcomes, weight, and the columns copied from a reference's records, if any."""

    frame_row: Codes
    outcome: Floats
    weight: Floats
    copied: pa.Table | None = None


def synthesize(release: ReleasedObject, folder: Path, tick: Callable[[int], None]) -> list[list[Sums]]:
    """Writes set-<k>.parquet for every set; returns sums per frame row before raking, by outcome and then by set."""
    folder.mkdir(parents=True)
    frame, rows = release.frame, len(release.frame)
    sums = [[Sums(*(np.zeros(rows) for _ in range(5))) for _ in release.sets] for _ in release.job.outcomes]
    rake, room = margins_and_room(release)
    factor = (
        [factors(each.a, rake, room) for each in synthetic_sums(release)] if rake else [np.ones(rows)] * len(release.sets)
    )
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pq.ParquetWriter(folder / f"set-{k + 1}.parquet", _schema(release), compression="zstd"))
            for k in range(len(release.sets))
        ]
        for stratum in range(len(frame.stratum_labels)):
            model = release.model(stratum)
            for k, writer in enumerate(writers):
                for block in _blocks(release, model, stratum, k):
                    for own, values in zip(sums, columns(block.outcome), strict=True):
                        own[k] = own[k].plus(record_sums(block.frame_row, block.weight, values, rows))
                    writer.write_table(_table(release, block, block.weight * factor[k][block.frame_row]))
            tick(1)
    return sums


def columns(outcome: Floats) -> tuple[Floats, ...]:
    """The outcomes of synthetic records as separate arrays, (record,) each."""
    return (outcome,) if outcome.ndim == 1 else tuple(outcome.T)


def _blocks(release: ReleasedObject, model: StratumModel, stratum: int, k: int) -> Iterator[Block]:
    """A stratum's synthetic records in set k + 1. Every call yields the same records."""
    frame, own = release.frame, release.frame.rows_of(stratum)
    theta = release.theta(model, stratum, k)
    drawn = model.donor_records(release, stratum) if isinstance(model, FromDonors) else None
    for block, part in enumerate(frame.expanded(own, BATCH)):
        start = block * BATCH
        rng = release.seed.generator("synthesis", frame.stratum_labels[stratum], block, k + 1)
        if isinstance(model, Presampled):
            yield Block(part, *(values[start : start + BATCH] for values in model.presampled(theta)))
        elif drawn is not None:
            outcome, weight, donor = drawn.simulate(theta, part, rng)
            copied = drawn.donors.copied
            yield Block(part, outcome, weight, None if copied is None else copied.take(pa.array(donor)))
        else:
            assert isinstance(model, Synthesizer)
            yield Block(part, *model.simulate(theta, part, rng))


def synthetic_sums(release: ReleasedObject) -> list[Sums]:
    """Sums of the first outcome in every set's records, per frame row and before raking; writes no records."""
    rows = len(release.frame)
    sums = [Sums(*(np.zeros(rows) for _ in range(5))) for _ in release.sets]
    for stratum in range(len(release.frame.stratum_labels)):
        model = release.model(stratum)
        for k in range(len(sums)):
            for block in _blocks(release, model, stratum, k):
                own = columns(block.outcome)[0]
                sums[k] = sums[k].plus(record_sums(block.frame_row, block.weight, own, rows))
    return sums


def _schema(release: ReleasedObject) -> pa.Schema:
    job, frame = release.job, release.frame
    levels = [(name, list(frame.levels[name])) for name in job.modelled_columns]
    categories = [(name, pa.dictionary(pa.int32(), pa.infer_type(known))) for name, known in levels]
    copied = [each.copied for each in release.donors.values() if each.copied is not None]
    further = [field.remove_metadata() for field in copied[0].schema] if copied else []
    return pa.schema([*categories, *((name, pa.float64()) for name in job.components), *further])


def _table(release: ReleasedObject, block: Block, weight: Floats) -> pa.Table:
    frame = release.frame
    categories = [
        pa.DictionaryArray.from_arrays(pa.array(frame.codes[name][block.frame_row]), pa.array(list(frame.levels[name])))
        for name in release.job.modelled_columns
    ]
    numbers = [*columns(block.outcome), weight][: len(release.job.components)]
    further = [] if block.copied is None else block.copied.columns
    return pa.Table.from_arrays([*categories, *map(pa.array, numbers), *further], schema=_schema(release))
