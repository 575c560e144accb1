"""Zarr stores of posteriors and log likelihoods, full-sized before any task runs.

Each task then fills only regions that it owns. Stores are Zarr v3, without consolidated metadata or fixed-width strings, in
float64, compressed by blosc lz4 with byte shuffle (measured fastest).
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpdist.core.files import replaced
from dpdist.core.records import Floats, Ints
from dpdist.models.protocol import Draws, Parameter
from dpdist.storage.objects import Bucket, Objects
from dpdist.storage.store import Store

if TYPE_CHECKING:
    import zarr


@dataclass(frozen=True)
class RaggedAxis:
    """Offsets (multiples of `chunk`) and lengths of the strata along the padded axis, (stratum,) each.

    Each batch of strata starts on a border of shards. A shard has a file, and `batch` chunks.
    """

    offset: Ints
    length: Ints
    chunk: int
    batch: int = 1
    """Number of strata in a batch, whose task writes whole shards."""

    @classmethod
    def of(cls, length: Ints, largest_chunk: int, batch: int = 1) -> RaggedAxis:
        """The axis for strata of these lengths.

        A chunk is a power of two, at least the median length but between 128 and the size of a record block.
        """
        median = float(np.median(length)) if len(length) else 1.0
        chunk = int(2 ** np.ceil(np.log2(max(128.0, min(median, float(largest_chunk))))))
        chunk = min(chunk, max(128, largest_chunk))
        chunks = -(-length // chunk)
        before = np.cumsum(chunks) - chunks
        starts = np.arange(0, len(length), batch)
        shards = -(-np.add.reduceat(chunks, starts) // batch) if len(length) else chunks
        shift = (np.cumsum(shards) - shards) * batch - before[starts]
        offset = (before + np.repeat(shift, batch)[: len(length)]).astype(np.int64) * chunk
        return cls(offset, length, chunk, batch)

    @property
    def shard(self) -> int:
        """Number of positions in a shard."""
        return self.chunk * self.batch

    @property
    def size(self) -> int:
        """Length of the padded axis, in whole shards."""
        end = int(self.offset[-1] + self.length[-1]) if len(self.length) else 0
        return -(-end // self.shard) * self.shard

    def region(self, stratum: int, start: int, stop: int) -> slice:
        """The region of records start:stop of a stratum. Asserts that it shares no chunk with another writer."""
        if not 0 <= start < stop <= self.length[stratum]:
            raise AssertionError(f"records {start}:{stop} are not the stratum's")
        if start % self.chunk or (stop % self.chunk and stop != self.length[stratum]):
            raise AssertionError(f"records {start}:{stop} share a chunk of {self.chunk} with another writer")
        first = int(self.offset[stratum])
        return slice(first + start, first + stop)


BLOSC: tuple[Literal["lz4"], int] = ("lz4", 1)
"""Compressor and level of arrays of float64."""
FLAT: dict[str, Any] = {"name": "default", "separator": "."}
"""Chunks lie in the folder of their array: a folder for each of them would take as long as its file."""
GROUPS = {"unweighted": "unweighted", "weighting": "weighting", "final": "posterior"}
"""Groups of posterior.zarr, by fit. ArviZ expects the name `posterior` for the final fit."""


@dataclass(frozen=True)
class Template:
    axis: RaggedAxis
    strata: tuple[str, ...]
    chains: int
    draws: int
    """Number of draws of each chain."""
    parameters: tuple[Parameter, ...]


def create_posterior(path: Path, template: Template) -> None:
    """Creates posterior.zarr: all parameters of the model, (chain, draw, stratum, *dims), with coordinates for dims.

    The group `posterior` holds the final fit, `unweighted` the fit with α = 1, and `weighting` the fit that gave the final
    α.
    """
    root = _new_group(path)
    chains, draws, strata = template.chains, template.draws, len(template.strata)
    for name in GROUPS.values():
        group = root.create_group(name)
        _coordinates(group, template)
        _strings(group, "stratum", template.strata)
        for dim, entries in {dim: entries for parameter in template.parameters for dim, entries in parameter.dims}.items():
            _strings(group, dim, entries)
        for parameter in template.parameters:
            _array(
                group,
                parameter.name,
                (chains, draws, strata, *parameter.shape),
                (chains, draws, template.axis.batch, *(max(1, size) for size in parameter.shape)),
                ("chain", "draw", "stratum", *(dim for dim, _ in parameter.dims)),
                {"units": parameter.units},
            )


def create_log_lik(path: Path, template: Template) -> None:
    """Creates log_lik.zarr: log_lik (chain, draw, record) of the final fit. Padding has NaN, and −1 as `record`.

    `offset` and `length` (stratum) give the position of each stratum's records.
    """
    root, axis = _new_group(path), template.axis
    chains, draws = template.chains, template.draws
    _coordinates(root, template)
    _strings(root, "stratum", template.strata)
    _filled(root, "offset", axis.offset, ("stratum",), "first position of the stratum on the record axis")
    _filled(root, "length", axis.length, ("stratum",), "records of the stratum")
    _array(
        root,
        "log_lik",
        (chains, draws, axis.size),
        (chains, draws, axis.chunk),
        ("chain", "draw", "record"),
        {"units": "natural logarithm of a density", "long_name": "record log likelihood under the final fit"},
        None if axis.batch == 1 else (chains, draws, axis.shard),
    )
    root.create_array(
        "record",
        shape=(axis.size,),
        chunks=(axis.chunk,),
        shards=None if axis.batch == 1 else (axis.shard,),
        dtype="int64",
        fill_value=-1,
        chunk_key_encoding=FLAT,
        dimension_names=("record",),
        attributes={"long_name": "row number in the input; -1 is padding"},
    )


# Tasks write whole chunks of their own, so they encode and write them here. Zarr would ask an event loop for each of them,
# which takes twenty times as long as a small chunk itself. A test compares the bytes with Zarr's.
def write_draws(path: Path, fit: str, batch: int, draws: Sequence[Draws]) -> None:
    """Writes the draws of all strata of a batch, in their order. The last batch is padded with NaN."""
    for name in draws[0].values:
        array = path / GROUPS[fit] / name
        chains, _, strata, *_ = _chunk_of(array)
        values = np.stack([each.values[name] for each in draws], axis=1)
        padding = [(0, 0), (0, strata - len(draws)), *[(0, 0)] * (values.ndim - 2)]
        padded = np.pad(values, padding, constant_values=np.nan)
        chunk = _encode(padded.reshape(chains, -1, *padded.shape[1:]))
        _write_file(array / _draws_chunk(batch, values.ndim - 2), chunk)


def write_log_lik(path: Path, region: slice, values: Floats, record: Ints) -> None:
    """Writes values (draw, record) into a region that the caller owns, where a chunk has a file.

    It writes whole chunks, of which the last one is padded. So nothing of a killed run remains in a chunk.
    """
    chains, _, chunk = _chunk_of(path / "log_lik")
    for number, (tensor, records) in enumerate(log_lik_chunks(chains, chunk, values, record), region.start // chunk):
        _write_file(path / "log_lik" / f"c.0.0.{number}", tensor)
        _write_file(path / "record" / f"c.{number}", records)


def log_lik_chunks(chains: int, chunk: int, values: Floats, record: Ints) -> Iterator[tuple[bytes, bytes]]:
    """Encoded chunks of values (draw, record) and of the records' numbers. The last chunk is padded."""
    by_chain = values.reshape(chains, -1, values.shape[1])
    for start in range(0, len(record), chunk):
        padding = (0, max(0, start + chunk - len(record)))
        part = slice(start, start + chunk)
        tensor = np.pad(by_chain[..., part], ((0, 0), (0, 0), padding), constant_values=np.nan)
        yield _encode(tensor), _encode(np.pad(record[part], padding, constant_values=-1))


def write_shards(path: Path, shard: int, chunks: Mapping[int, tuple[bytes, bytes]], size: int) -> list[Path]:
    """Writes a shard of log_lik and one of record, from encoded chunks by their position among the shard's `size` ones."""
    files = [path / "log_lik" / f"c.0.0.{shard}", path / "record" / f"c.{shard}"]
    for file, encoded in zip(files, zip(*chunks.values(), strict=True), strict=True):
        _write_file(file, _shard_of(dict(zip(chunks, encoded, strict=True)), size))
    return files


_ABSENT = 2**64 - 1
"""Offset and length of a chunk that a shard lacks, which Zarr reads as the fill value."""


def _shard_of(chunks: Mapping[int, bytes], size: int) -> bytes:
    """Zarr's `sharding_indexed` form: chunks, their offsets and lengths (chunk, 2), and the CRC-32C of these."""
    from google_crc32c import value

    index, offset = np.full((size, 2), _ABSENT, dtype="<u8"), 0
    for position, chunk in chunks.items():
        index[position] = offset, len(chunk)
        offset += len(chunk)
    table = index.tobytes()
    return b"".join([*chunks.values(), table, value(table).to_bytes(4, "little")])


def _encode(values: Floats | Ints) -> bytes:
    """A chunk as its array encodes it."""
    from numcodecs.blosc import Blosc
    from numcodecs.zstd import Zstd

    codec = Blosc(*BLOSC, shuffle=Blosc.SHUFFLE) if values.dtype == np.float64 else Zstd(level=0)
    encoded: bytes = codec.encode(np.ascontiguousarray(values))
    return encoded


def _write_file(path: Path, content: bytes) -> None:
    """Writes a whole file. A stored checksum shows whether it is complete."""
    with replaced(path, durable=False) as temporary:
        temporary.write_bytes(content)


def _draws_chunk(batch: int, dims: int) -> str:
    return ".".join(["c", "0", "0", str(batch), *("0" * dims)])


def source(path: Path, store: Store) -> Any:
    """What xarray opens a store by, in a folder or an object store."""
    if not isinstance(store, Bucket):
        return path
    from zarr.storage import ObjectStore

    return ObjectStore(Objects(f"{store.url}/{path.relative_to(store.root).as_posix()}").store, read_only=True)


def files_of(path: Path) -> list[Path]:
    """All files of a store. A new store has only metadata and coordinates."""
    return [file for file in path.rglob("*") if file.is_file()]


def chunk_files(path: Path, chunk: int, region: slice) -> list[Path]:
    chunks = range(region.start // chunk, -(-region.stop // chunk))
    values = [path / "log_lik" / f"c.0.0.{k}" for k in chunks]
    return values + [path / "record" / f"c.{k}" for k in chunks]


def posterior_files(path: Path, parameters: Sequence[Parameter], batch: int, fits: Iterable[str]) -> list[Path]:
    tail = [f"{parameter.name}/{_draws_chunk(batch, len(parameter.dims))}" for parameter in parameters]
    return [path / GROUPS[fit] / name for fit in fits for name in tail]


def _chunk_of(path: Path) -> tuple[int, ...]:
    """The shape of an array's chunks. A process reads it once, and again only if the array's metadata file has changed."""
    stat = (path / "zarr.json").stat()
    return _read_chunk(path, (stat.st_ino, stat.st_mtime_ns))


@lru_cache(maxsize=16)
def _read_chunk(path: Path, stamp: tuple[int, int]) -> tuple[int, ...]:
    metadata = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
    return tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])


def _new_group(path: Path) -> zarr.Group:
    import zarr

    if path.exists():
        shutil.rmtree(path)
    return zarr.create_group(path, zarr_format=3)


def _array(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dims: tuple[str, ...],
    array: dict[str, str],
    shards: tuple[int, ...] | None = None,
) -> None:
    from zarr.codecs import BloscCodec

    group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype="float64",
        fill_value=float("nan"),
        chunk_key_encoding=FLAT,
        compressors=BloscCodec(cname=BLOSC[0], clevel=BLOSC[1], shuffle="shuffle"),
        dimension_names=dims,
        attributes=dict(array),
    )


def _coordinates(group: zarr.Group, template: Template) -> None:
    _filled(group, "chain", np.arange(template.chains, dtype=np.int64), ("chain",), "chain")
    _filled(group, "draw", np.arange(template.draws, dtype=np.int64), ("draw",), "posterior draw of the chain")


def _filled(group: zarr.Group, name: str, values: Ints, dims: tuple[str, ...], meaning: str) -> None:
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=values.shape,
        dtype=values.dtype,
        dimension_names=dims,
        attributes={"long_name": meaning},
    )
    array[...] = values


def _strings(group: zarr.Group, name: str, values: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        array = group.create_array(
            name, shape=(len(values),), chunks=(len(values),), dtype="string", dimension_names=(name,)
        )
        array[...] = np.array(values, dtype=np.dtypes.StringDType())
