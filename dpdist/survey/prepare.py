"""From a stream of batches to records in frame order: one pass to check and count, one to place.

The counting pass finds every problem and builds the public frame; nothing is written before it has passed. The placing pass
is a counting sort into memory-mapped scratch files: memory stays flat whatever the file's size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.core.errors import DataError, Problem
from dpdist.core.records import Codes, Floats, Frame, Ints, Level, Records
from dpdist.estimation.direct import Design, Replicated
from dpdist.estimation.domains import replication
from dpdist.estimation.variance import crossed_products, replicate_df
from dpdist.job import Job
from dpdist.job.families import family_facts
from dpdist.survey.checks import Checked, check
from dpdist.survey.findings import Findings
from dpdist.survey.schema import check_replicates, check_schema, needed_columns
from dpdist.survey.source import Source
from dpdist.survey.units import Bounded

Tick = Callable[[int], None]


@dataclass(frozen=True)
class Populations:
    """What the columns of survey.fpc say: units a design stratum (stratum,), and of PSUs: stratum, psu,
    second (records of its population), records (of the sample)."""

    strata: Floats
    psus: pd.DataFrame | None


@dataclass(frozen=True)
class Census:
    """What one pass over the file tells: the frame (public), the rules' effect and the PSUs (confidential)."""

    frame: Frame
    removed: dict[str, int]
    rows: int
    psu_levels: tuple[str, ...]
    psus: Ints
    """PSUs per design stratum; empty where none are declared."""
    constant: tuple[str, ...]
    """Strata in which an outcome or the weight (lognormal: their logs) does not vary."""
    populations: Populations | None = None


def take_census(job: Job, source: Source, tick: Tick = lambda rows: None) -> Census:
    """Check every record and count the frame. Raises `DataError` with every problem found; writes nothing."""
    columns = job.categories
    levels: dict[str, tuple[Level, ...]] = {name: job.columns[name].levels or () for name in columns}
    findings, psus, tallies, sizes = Findings(), list[pd.DataFrame](), list[pd.DataFrame](), list[pd.DataFrame]()
    scale = np.log if family_facts(job).logs else np.asarray
    for checked in checked_batches(job, source, findings, tick):
        scaled = {f"y{j}": scale(outcome) for j, outcome in enumerate(checked.outcomes)} | {"w": scale(checked.weight)}
        key = _key(checked.codes, levels, len(checked.row))
        tallies.append(_tally(pd.DataFrame({"key": key, "records": 1, **scaled})))
        if checked.psu is not None:
            psus.append(pd.DataFrame({"key": key, "psu": checked.psu.to_pylist()}).drop_duplicates())
        if job.survey.fpc:
            unit = "" if checked.psu is None else checked.psu.to_pylist()
            told = pd.DataFrame(checked.population, columns=["first", "second"][: len(job.survey.fpc)])
            told = told.assign(key=key, psu=unit, records=1)
            sizes.append(told.groupby([name for name in told if name != "records"], as_index=False).sum())
    if findings.problems:
        raise DataError(source.name, findings.placed(source.lines))
    if not tallies:
        found = "no record" if findings.seen == 0 else "no record is left after the universe and the stated rules"
        raise DataError(
            source.name, [Problem("file", found, "at least one record", "check the file and the job's universe")]
        )
    tally = _added(pd.concat(tallies).groupby(level=0))
    keys = tally.index.to_numpy()
    strides = _strides(levels)
    codes = {name: ((keys // strides[name]) % len(levels[name])).astype(np.int32) for name in columns}
    frame = Frame(codes, levels, tally["records"].to_numpy(dtype=np.int64), job.strata, job.survey.design_strata)
    extent = _added(tally.groupby(frame.stratum))
    varying = [extent[f"{name}_low"] < extent[f"{name}_high"] for name in scaled]
    flat = ~np.logical_and.reduce(varying)
    constant = tuple(label for label, same in zip(frame.stratum_labels, flat, strict=True) if same)
    populations = _populations(job, source, frame, keys, sizes) if sizes else None
    if not psus:
        return Census(frame, findings.removed, findings.seen, (), np.empty(0, dtype=np.int64), constant, populations)
    met = pd.concat(psus).drop_duplicates()
    number = _psus(frame, findings.units)
    names = tuple(sorted(set(met["psu"])))
    return Census(frame, findings.removed, findings.seen, names, number, constant, populations)


def _psus(frame: Frame, units: set[tuple[int | str, ...]]) -> Ints:
    """PSUs of every design stratum, those outside the universe too (stratum,)."""
    names = frame.design_strata
    codes = np.column_stack([np.zeros(len(frame), dtype=np.int32), *(frame.codes[name] for name in names)])
    stratum = dict(zip(map(tuple, codes[:, 1:].tolist()), frame.design_stratum.tolist(), strict=True))
    found = np.array([stratum[unit[:-1]] for unit in units if unit[:-1] in stratum], dtype=np.int64)
    return np.bincount(found, minlength=int(frame.design_stratum.max()) + 1)


def _populations(job: Job, source: Source, frame: Frame, keys: Ints, sizes: list[pd.DataFrame]) -> Populations:
    """Population sizes, each the same for all records of its stratum or PSU. Raises `DataError`."""
    told = pd.concat(sizes)
    told["stratum"] = frame.design_stratum[np.searchsorted(keys, told["key"])]
    problems = []
    remedy = "correct the column: it holds the size of the population that the record's stratum or PSU was sampled from"
    for column, name, by in zip(("first", "second"), job.survey.fpc, (["stratum"], ["stratum", "psu"]), strict=False):
        several = int((told.groupby(by)[column].nunique() > 1).sum())
        if several:
            which = "design stratum" if column == "first" else "PSU"
            problems.append(Problem(name, f"different sizes in one {which}", f"one size a {which}", remedy, several))
    if problems:
        raise DataError(source.name, problems)
    strata = told.groupby("stratum")["first"].first().to_numpy(dtype=float)
    if len(job.survey.fpc) == 1:
        return Populations(strata, None)
    psus = told.groupby(["stratum", "psu"], as_index=False).agg(second=("second", "first"), records=("records", "sum"))
    return Populations(strata, psus)


def _tally(records: pd.DataFrame) -> pd.DataFrame:
    """Number of records and extent of outcomes and weight (lognormal: their logs) per combination."""
    names = [name for name in records if name not in ("key", "records")]
    extent = {f"{name}_{end}": (name, how) for name in names for end, how in (("low", "min"), ("high", "max"))}
    return records.groupby("key").agg(records=("records", "sum"), **extent)


def _added(groups: Any) -> pd.DataFrame:
    """The tally of groups of tallies."""
    hows = {"records": "sum", "low": "min", "high": "max"}
    tally: pd.DataFrame = groups.agg({name: hows[name.rpartition("_")[2]] for name in groups.obj})
    return tally


def place(job: Job, source: Source, census: Census, scratch: Path, tick: Tick = lambda rows: None) -> Records:
    """Records of the whole file in frame order, as memory maps under `scratch` (which the caller removes).

    Within a frame row the file's order is kept. Raises `DataError` if the file changed since the census.
    """
    frame = census.frame
    total = int(frame.count.sum())
    kinds = {"record": np.int64, "frame": np.int32, "weight": np.float64, "psu": np.int32}
    maps = {name: _map(scratch / f"{name}.npy", kind, total) for name, kind in kinds.items()}
    maps["outcomes"] = _map(scratch / "outcomes.npy", np.float64, total, len(job.outcomes))
    known = _key(frame.codes, frame.levels, len(frame))
    changed = changed_while_read(source)
    start = np.concatenate([[0], np.cumsum(frame.count)])
    filled = np.zeros(len(frame), dtype=np.int64)
    psu_values = pa.array(census.psu_levels, type=pa.string())
    for checked in checked_batches(job, source, Findings(), tick):
        row = _rows(checked, frame, known, source)
        order = np.argsort(row, kind="stable")
        sorted_row = row[order]
        number = np.bincount(row, minlength=len(frame))
        rank = np.arange(len(row)) - np.concatenate([[0], np.cumsum(number)])[sorted_row]
        position = start[sorted_row] + filled[sorted_row] + rank
        if np.any(filled + number > frame.count):
            raise changed
        filled += number
        maps["record"][position] = checked.row[order]
        maps["frame"][position] = sorted_row
        for k, outcome in enumerate(checked.outcomes):
            maps["outcomes"][position, k] = outcome[order]
        maps["weight"][position] = checked.weight[order]
        maps["psu"][position] = _psu_codes(checked, psu_values, source)[order]
        let_go(maps.values())
    if not np.array_equal(filled, frame.count):
        raise changed
    return Records(**maps)


def records_as_they_came(job: Job, source: Source, census: Census, outcome: int) -> Iterator[Records]:
    """The file's records in its own order, with an outcome as it stands there, in one more pass over the file: clipped
    values alone are stored. Raises `DataError` if the file changed since the census."""
    frame, met = census.frame, np.zeros(len(census.frame), dtype=np.int64)
    known, psu_values = _key(frame.codes, frame.levels, len(frame)), pa.array(census.psu_levels, type=pa.string())
    for checked in checked_batches(job, source):
        row = _rows(checked, frame, known, source)
        met += np.bincount(row, minlength=len(frame))
        assert checked.unclipped is not None
        values, psu = checked.unclipped[:, outcome], _psu_codes(checked, psu_values, source)
        yield Records(checked.row, row, values, checked.weight, psu)
    if not np.array_equal(met, frame.count):
        raise changed_while_read(source)


def _rows(checked: Checked, frame: Frame, known: Ints, source: Source) -> Codes:
    """Frame row of every record (record,); `known` holds the frame's keys. Raises `DataError` if it has none."""
    key = _key(checked.codes, frame.levels, len(checked.row))
    row = np.searchsorted(known, key).astype(np.int32)
    if not np.array_equal(known[np.minimum(row, len(known) - 1)], key):
        raise changed_while_read(source)
    return row


def _psu_codes(checked: Checked, levels: pa.Array, source: Source) -> Codes:
    """Code of every record's PSU (record,), −1 where the job declares none. Raises `DataError` for an unknown one."""
    if checked.psu is None:
        return np.full(len(checked.row), -1, dtype=np.int32)
    code = pc.index_in(checked.psu, value_set=levels)
    if code.null_count:
        raise changed_while_read(source)
    return np.asarray(code, dtype=np.int32)


def replicate_sums(job: Job, source: Source, frame: Frame, outcome: int = 0) -> Replicated | None:
    """Sums of the replicate weights and of their products with an outcome, unclipped, per frame row, in one more pass
    over the file; None where the job names none."""
    said = job.survey.replicate_weights
    if said is None:
        return None
    a, b = (np.zeros((len(frame), said.number)) for _ in range(2))
    products = np.zeros((said.number, said.number))
    known = _key(frame.codes, frame.levels, len(frame))
    for checked in checked_batches(job, source):
        row = np.searchsorted(known, _key(checked.codes, frame.levels, len(checked.row)))
        if said.df is None:
            products += crossed_products(checked.replicates)
        np.add.at(a, row, checked.replicates)
        values = checked.outcomes[outcome] if checked.unclipped is None else checked.unclipped[:, outcome]
        np.add.at(b, row, checked.replicates * values[:, None])
    return Replicated(a, b, replication(said), said.df or replicate_df(products))


def design_of(job: Job, census: Census) -> Design:
    """The design beside the frame: population sizes by stratum and by (stratum, PSU code)."""
    told, none = census.populations, np.empty(0)
    psus = None
    if told is not None and told.psus is not None:
        code = pd.Index(census.psu_levels).get_indexer(pd.Index(told.psus["psu"]))
        psus = told.psus.assign(psu=code).set_index(["stratum", "psu"])["second"]
    lonely = job.survey.lonely_record if job.sizes_secret else job.survey.lonely_psu
    return Design(lonely, none if told is None else told.strata, psus, census.psus.astype(np.float64))


def _map(path: Path, kind: type, *shape: int) -> np.memmap[Any, Any]:
    """A memory map whose space is taken at once: on a full disk a write to a map would kill the process without a word.

    A column's values lie next to each other.
    """
    made = np.lib.format.open_memmap(path, "w+", kind, shape, fortran_order=True)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return made


def let_go(arrays: Iterable[NDArray[Any] | None]) -> None:
    """Leave what those that are memory maps hold to the system's cache of files: the maps are shared, so it stays as it is,
    and counts no more as ours. Slices are passed over."""
    for each in arrays:
        if each is not None and isinstance(each.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            each.base.madvise(mmap.MADV_DONTNEED)


def changed_while_read(source: Source) -> DataError:
    return DataError(source.name, [Problem("file", "it changed while it was read", "a file at rest", "run again")])


def checked_batches(
    job: Job, source: Source, findings: Findings | None = None, tick: Tick = lambda rows: None
) -> Iterator[Checked]:
    """Typed batches of the records that belong to the release; problems go to `findings`."""
    findings = Findings() if findings is None else findings
    first = 0
    needed = needed_columns(job)
    columns = list(source.columns)
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        remedy = "rename or delete one"
        raise DataError(source.name, [Problem(n, "stands twice in the file", "each column once", remedy) for n in twice])
    if problems := check_replicates(job, columns):
        raise DataError(source.name, problems)
    missing = [name for name in needed if name not in columns]
    if source.text_only and len(missing) == len(needed):
        found, remedy = "its first line names none of the job's columns", "give a header line, names separated by commas"
        raise DataError(source.name, [Problem("file", found, ", ".join(needed), remedy)])
    if missing:
        empty = pa.schema([(name, pa.string()) for name in source.columns])
        raise DataError(source.name, check_schema(job, empty, text_only=True))
    bounded = Bounded(job, findings)
    for batch in source.batches(needed):
        if first == 0 and (problems := check_schema(job, batch.schema, source.text_only)):
            raise DataError(source.name, problems)
        checked = bounded(check(job, batch, first, findings, source.text_only))
        first += batch.num_rows
        tick(batch.num_rows)
        if len(checked.row):
            yield checked


def _strides(levels: Mapping[str, tuple[Level, ...]]) -> dict[str, int]:
    strides: dict[str, int] = {}
    stride = 1
    for name in reversed(list(levels)):
        strides[name] = stride
        stride *= len(levels[name])
    return strides


def _key(codes: Mapping[str, Codes], levels: Mapping[str, tuple[Level, ...]], size: int) -> Ints:
    """One number per combination of categories, in the frame's sort order (all 0 where there is no category)."""
    key = np.zeros(size, dtype=np.int64)
    for name, stride in _strides(levels).items():
        key += codes[name].astype(np.int64) * stride
    return key
