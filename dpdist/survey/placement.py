"""For `runtime.intake` and `quality`: sorts records into crosstab order, in memory-mapped scratch files.

It is a counting sort: the census has counted the records of every crosstab row, so each place is known.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.direct import Replicated
from dpdist.estimation.domains import replication
from dpdist.estimation.estimators import summable
from dpdist.estimation.variance import crossed_products, replicate_df
from dpdist.job import Job
from dpdist.survey.batches import Tick, changed_while_read, checked_batches, crosstab_key
from dpdist.survey.census import Census
from dpdist.survey.checks import Checked
from dpdist.survey.findings import Findings
from dpdist.survey.source import Source


def place(
    job: Job, source: Source, census: Census, scratch: Path, tick: Tick = lambda rows: None, weights_clipped: bool = True
) -> Records:
    """Records of the whole file in crosstab order, as memory maps under `scratch` (which the caller removes).

    Within a crosstab row the file's order is kept. Outcomes are clipped as the job says, and weights too, unless the
    caller wants them as in the file. Raises `DataError` if the file changed since the census.
    """
    crosstab = census.crosstab
    total = int(crosstab.count.sum())
    kinds = {"record": np.int64, "row": np.int32, "weight": np.float64, "psu": np.int32}
    maps = {name: _map(scratch / f"{name}.npy", kind, total) for name, kind in kinds.items()}
    maps["outcomes"] = _map(scratch / "outcomes.npy", np.float64, total, len(job.outcomes))
    crosstab_keys = crosstab_key(crosstab.codes, crosstab.levels, len(crosstab))
    changed = changed_while_read(source)
    start = np.concatenate([[0], np.cumsum(crosstab.count)])
    filled = np.zeros(len(crosstab), dtype=np.int64)
    psu_values = pa.array(census.psu_levels, type=pa.string())
    for checked in checked_batches(job, source, Findings(), tick):
        row = _rows(checked, crosstab, crosstab_keys, source)
        order = np.argsort(row.astype(np.uint16) if len(crosstab) <= 2**16 else row, kind="stable")  # 16 bits: a radix sort
        sorted_row = row[order]
        number = np.bincount(row, minlength=len(crosstab))
        rank = np.arange(len(row)) - np.concatenate([[0], np.cumsum(number)])[sorted_row]
        position = start[sorted_row] + filled[sorted_row] + rank
        if np.any(filled + number > crosstab.count):
            raise changed
        filled += number
        maps["record"][position] = checked.row[order]
        maps["row"][position] = sorted_row
        for k, outcome in enumerate(checked.outcomes):
            maps["outcomes"][position, k] = outcome[order]
        maps["weight"][position] = (checked.weight if weights_clipped else checked.weight_in_file)[order]
        maps["psu"][position] = _psu_codes(checked, psu_values, source)[order]
        let_go(maps.values())
    if not np.array_equal(filled, crosstab.count):
        raise changed
    return Records(**maps)


def records_as_they_came(job: Job, source: Source, census: Census, outcome: int | None) -> Iterator[Records]:
    """The file's records in the file's order, with weights and one outcome before clipping; the file is read again.

    With `outcome` None they have all outcomes, clipped. The file is read because stored records are clipped. Raises
    `DataError` if it changed since the census.
    """
    crosstab, met = census.crosstab, np.zeros(len(census.crosstab), dtype=np.int64)
    crosstab_keys, psu_values = (
        crosstab_key(crosstab.codes, crosstab.levels, len(crosstab)),
        pa.array(census.psu_levels, type=pa.string()),
    )
    for checked in checked_batches(job, source):
        row = _rows(checked, crosstab, crosstab_keys, source)
        met += np.bincount(row, minlength=len(crosstab))
        values = np.column_stack(checked.outcomes) if outcome is None else checked.outcome_in_file(outcome)
        yield Records(checked.row, row, values, checked.weight_in_file, _psu_codes(checked, psu_values, source))
    if not np.array_equal(met, crosstab.count):
        raise changed_while_read(source)


def _rows(checked: Checked, crosstab: Crosstab, crosstab_keys: Ints, source: Source) -> Codes:
    """Crosstab row of every record (record,); `crosstab_keys` has the crosstab's keys.

    Raises `DataError` for a record without a crosstab row.
    """
    key = crosstab_key(checked.codes, crosstab.levels, len(checked.row))
    row = np.searchsorted(crosstab_keys, key).astype(np.int32)
    if not np.array_equal(crosstab_keys[np.minimum(row, len(crosstab_keys) - 1)], key):
        raise changed_while_read(source)
    return row


def _psu_codes(checked: Checked, levels: pa.Array, source: Source) -> Codes:
    """Code of every record's PSU (record,); −1 where the job names none. Raises `DataError` for a PSU not in `levels`."""
    if checked.psu is None:
        return np.full(len(checked.row), -1, dtype=np.int32)
    code = pc.index_in(checked.psu, value_set=levels)
    if code.null_count:
        raise changed_while_read(source)
    return np.asarray(code, dtype=np.int32)


def replicate_sums(job: Job, source: Source, crosstab: Crosstab, outcome: int = 0) -> Replicated | None:
    """Per crosstab row, the sums of replicate weights and of their products with an outcome, which is not clipped.

    The file is read once more. The result is None if the job names no replicate weights.
    """
    declared = job.survey.replicate_weights
    if declared is None:
        return None
    a, b = (np.zeros((len(crosstab), declared.number)) for _ in range(2))
    products = np.zeros((declared.number, declared.number))
    crosstab_keys = crosstab_key(crosstab.codes, crosstab.levels, len(crosstab))
    for checked in checked_batches(job, source):
        row = np.searchsorted(crosstab_keys, crosstab_key(checked.codes, crosstab.levels, len(checked.row)))
        if declared.df is None:
            products += crossed_products(checked.replicates)
        np.add.at(a, row, checked.replicates)
        np.add.at(b, row, checked.replicates * summable(checked.outcome_in_file(outcome))[:, None])
    return Replicated(a, b, replication(declared), declared.df or replicate_df(products))


def replicates_as_they_came(job: Job, source: Source) -> Floats | None:
    """Replicate weights (record, replicate), in the order of `records_as_they_came`; None if the job names none."""
    if job.survey.replicate_weights is None:
        return None
    return np.concatenate([checked.replicates for checked in checked_batches(job, source)])


def _map(path: Path, kind: type, *shape: int) -> np.memmap[Any, Any]:
    """A memory map of a new file.
    Its disk space is reserved at once, because a later write on a full disk would kill the process.

    The values of a column are contiguous.
    """
    array = np.lib.format.open_memmap(path, "w+", kind, shape, fortran_order=True)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def let_go(arrays: Iterable[NDArray[Any] | None]) -> None:
    """Lets the system drop memory-mapped pages; their values remain in the file, because the maps are shared.

    Slices of maps are skipped.
    """
    for array in arrays:
        if array is not None and isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            array.base.madvise(mmap.MADV_DONTNEED)
