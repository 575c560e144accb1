"""For `publish.folder`: writes synthetic sets, one synthetic record with the same public x per sample record.

They have only columns that the model distinguishes, which may exclude design strata or columns of totals.
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
from dpdist.job import Job
from dpdist.job.families import family_facts
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


def synthesize(released: ReleasedObject, folder: Path, tick: Callable[[int], None]) -> list[list[Sums]]:
    """Writes set-<k>.parquet for every set; returns sums per frame row before raking, by outcome and then by set."""
    folder.mkdir(parents=True)
    frame, rows = released.frame, len(released.frame)
    sums = [[Sums(*(np.zeros(rows) for _ in range(5))) for _ in released.sets] for _ in released.job.outcomes]
    rake, room = margins_and_room(released)
    factor = (
        [factors(set_sums.a, rake, room) for set_sums in synthetic_sums(released)]
        if rake
        else [np.ones(rows)] * len(released.sets)
    )
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pq.ParquetWriter(folder / f"set-{k + 1}.parquet", _schema(released), compression="zstd"))
            for k in range(len(released.sets))
        ]
        for stratum in range(len(frame.stratum_labels)):
            model = released.model(stratum)
            for k, writer in enumerate(writers):
                for block in _blocks(released, model, stratum, k):
                    for by_set, values in zip(sums, columns(block.outcome), strict=True):
                        by_set[k] = by_set[k].plus(record_sums(block.frame_row, block.weight, values, rows))
                    writer.write_table(_table(released, block, block.weight * factor[k][block.frame_row]))
            tick(1)
    return sums


def columns(outcome: Floats) -> tuple[Floats, ...]:
    """The outcomes of synthetic records as separate arrays, (record,) each."""
    return (outcome,) if outcome.ndim == 1 else tuple(outcome.T)


def _blocks(released: ReleasedObject, model: StratumModel, stratum: int, k: int) -> Iterator[Block]:
    """A stratum's synthetic records in set k + 1, with whole numbers where the job declares them.

    Every call yields the same records.
    """
    for number, block in enumerate(_of_model(released, model, stratum, k)):
        rng = released.seed.generator("whole numbers", released.frame.stratum_labels[stratum], number, k + 1)
        yield block._replace(outcome=whole_numbers(released.job, block.outcome, rng))


def whole_numbers(job: Job, outcome: Floats, rng: np.random.Generator) -> Floats:
    """The outcomes, of which those declared whole are rounded up or down at random: expected values stay as they are.

    None leaves the values that the job allows in the file.
    """
    support, rounded = family_facts(job).support, list[Floats]()
    for values, column in zip(columns(outcome), job.outcome_columns.values(), strict=True):
        if column.whole and not np.array_equal(values, np.floor(values)):
            low, high = column.bounds or (-np.inf, np.inf)
            least = np.ceil(low)
            excluded = not support.inside(np.array([least])).all() or (least == 0.0 and column.zeros == "drop")
            rounded.append(np.clip(np.floor(values + rng.random(len(values))), least + excluded, np.floor(high)))
        else:
            rounded.append(values)
    return rounded[0] if outcome.ndim == 1 else np.column_stack(rounded)


def _of_model(released: ReleasedObject, model: StratumModel, stratum: int, k: int) -> Iterator[Block]:
    frame, rows_of_stratum = released.frame, released.frame.rows_of(stratum)
    theta = released.theta(model, stratum, k)
    drawn = model.donor_records(released, stratum) if isinstance(model, FromDonors) else None
    for block, part in enumerate(frame.expanded(rows_of_stratum, BATCH)):
        start = block * BATCH
        rng = released.seed.generator("synthesis", frame.stratum_labels[stratum], block, k + 1)
        if isinstance(model, Presampled):
            yield Block(part, *(values[start : start + BATCH] for values in model.presampled(theta)))
        elif drawn is not None:
            outcome, weight, donor = drawn.simulate(theta, part, rng)
            copied = drawn.donors.records.copied
            yield Block(part, outcome, weight, None if copied is None else copied.take(pa.array(donor)))
        else:
            assert isinstance(model, Synthesizer)
            yield Block(part, *model.simulate(theta, part, rng))


def synthetic_sums(released: ReleasedObject) -> list[Sums]:
    """Sums of the first outcome in every set's records, per frame row and before raking; writes no records."""
    rows = len(released.frame)
    sums = [Sums(*(np.zeros(rows) for _ in range(5))) for _ in released.sets]
    for stratum in range(len(released.frame.stratum_labels)):
        model = released.model(stratum)
        for k in range(len(sums)):
            for block in _blocks(released, model, stratum, k):
                first_outcome = columns(block.outcome)[0]
                sums[k] = sums[k].plus(record_sums(block.frame_row, block.weight, first_outcome, rows))
    return sums


def _schema(released: ReleasedObject) -> pa.Schema:
    job, frame = released.job, released.frame
    levels = [(name, list(frame.levels[name])) for name in job.modelled_columns]
    categories = [(name, pa.dictionary(pa.int32(), pa.infer_type(levels_of_column))) for name, levels_of_column in levels]
    copied = [donors.copied for donors in released.donors.values() if donors.copied is not None]
    further = [field.remove_metadata() for field in copied[0].schema] if copied else []
    return pa.schema([*categories, *((name, pa.float64()) for name in job.components), *further])


def _table(released: ReleasedObject, block: Block, weight: Floats) -> pa.Table:
    frame = released.frame
    categories = [
        pa.DictionaryArray.from_arrays(pa.array(frame.codes[name][block.frame_row]), pa.array(list(frame.levels[name])))
        for name in released.job.modelled_columns
    ]
    numbers = [*columns(block.outcome), weight][: len(released.job.components)]
    further = [] if block.copied is None else block.copied.columns
    return pa.Table.from_arrays([*categories, *map(pa.array, numbers), *further], schema=_schema(released))
