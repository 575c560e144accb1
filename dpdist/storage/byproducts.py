"""A stratum's confidential by-products; the completion record comes last and lists all files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.records import Floats, Ints
from dpdist.engine.protocol import BlockRecorder, Columns, StratumRecorder
from dpdist.models.protocol import Draws, Parameter
from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis
from dpdist.storage.store import checksums
from dpdist.storage.tables import write_part
from dpdist.storage.workspace import Workspace


class StratumFinished(Exception):
    """Another task has finished the stratum in the meantime. Its files stay."""


@dataclass
class StratumStore(StratumRecorder):
    """Stores the by-products of one stratum.

    `close` writes its summary, its release and, last, the completion record of all its files. After that nothing is
    written. If a worker was cut off, and another worker has done its task, it gets `StratumFinished`. Two workers that
    write at the same moment write the same bytes, and each file is whole.
    """

    space: Workspace
    fit: str
    stratum: int
    axis: RaggedAxis
    log_lik: bool
    parameters: tuple[Parameter, ...]
    _summary: dict[str, Any] = field(default_factory=dict)
    _fits: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.space.part(self.fit, self.stratum)

    def refuse_late(self) -> None:
        """Raises `StratumFinished` if the stratum is finished; not in an object store, where a conditional put decides."""
        if self.space.store.shared and self.space.completion(self.folder.name).exists():
            raise StratumFinished

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        self.refuse_late()
        self._fits.append(fit)
        arrays.write_draws(self.space.posterior, fit, self.stratum, [draws.disclose_to_custodian()])

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        self._summary = _disclosed(values)

    def part(self, number: int) -> PartStore:
        return PartStore(self, number)

    def chunks(self, start: int, stop: int) -> list[Path]:
        """Files of the log likelihood store that contain records start:stop of the stratum, if its batch has no other."""
        return arrays.chunk_files(self.space.log_lik, self.axis.chunk, self.axis.region(self.stratum, start, stop))

    def close(self, described: Sequence[Mapping[str, Any]], elsewhere: Mapping[str, str] | None = None) -> None:
        """Writes summary, release and completion record.

        `elsewhere` holds checksums of files that other processes stored and this one does not see.
        """
        self.refuse_late()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "stratum.json", {"summary": self._summary, "released": list(described)}, durable=False)
        files = [path for path in self.folder.iterdir() if path.suffix in (".json", ".arrow")]
        files += arrays.posterior_files(self.space.posterior, self.parameters, self.stratum, self._fits)
        if self.log_lik:
            files += self.chunks(0, int(self.axis.length[self.stratum]))
        written_here = [
            path for path in files if path.relative_to(self.space.confidential).as_posix() not in (elsewhere or {})
        ]
        self.refuse_late()
        self.space.mark(self.folder.name, written_here, elsewhere)
        self.space.store.discard(written_here)


@dataclass
class PartStore:
    """Collects the bounds of a range of blocks, and writes them as one file of the stratum."""

    stratum: StratumStore
    number: int
    bounds_of_blocks: dict[int, Columns] = field(default_factory=dict)
    _chunks: list[Path] = field(default_factory=list)

    def block(self, start: int) -> BlockStore:
        """The recorder of the block that begins at this record of the stratum."""
        return BlockStore(self, start)

    @property
    def log_lik(self) -> bool:
        return self.stratum.log_lik

    def add_log_lik(self, start: int, values: Floats, record: Ints) -> None:
        """Writes the log likelihoods of a block, (draw, record)."""
        store, stop = self.stratum, start + values.shape[1]
        store.refuse_late()
        arrays.write_log_lik(store.space.log_lik, store.axis.region(store.stratum, start, stop), values, record)
        self._chunks += store.chunks(start, stop)

    def close(self) -> dict[str, str]:
        """Writes the bounds, if a pass recorded any. Returns the checksums of all files that the blocks wrote."""
        if not self.bounds_of_blocks:
            return {}
        self.stratum.refuse_late()
        self.stratum.folder.mkdir(parents=True, exist_ok=True)
        bounds = self.stratum.folder / f"bounds-{self.number:05d}.arrow"
        write_part(
            bounds, [pa.RecordBatch.from_pydict(self.bounds_of_blocks[start]) for start in sorted(self.bounds_of_blocks)]
        )
        return checksums([bounds, *self._chunks], self.stratum.space.confidential)


@dataclass(frozen=True)
class BlockStore(BlockRecorder):
    """The recorder of one block, which owns its chunks of the log likelihood store."""

    owner: PartStore | MemberStore
    start: int

    @property
    def wants_log_lik(self) -> bool:
        return self.owner.log_lik

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.owner.bounds_of_blocks[self.start] = columns.disclose_to_custodian()

    def log_lik(self, values: Confidential[Floats]) -> None:
        record = np.asarray(self.owner.bounds_of_blocks[self.start]["record"], dtype=np.int64)
        self.owner.add_log_lik(self.start, values.disclose_to_custodian(), record)


def _disclosed(values: Confidential[dict[str, Any]]) -> dict[str, Any]:
    """A stratum's summary; figures that are not defined, such as R-hat of one chain, become null."""
    summary = values.disclose_to_custodian()
    figures = {name: None if np.isnan(value) else value for name, value in summary["diagnostics"].items()}
    return {**summary, "diagnostics": figures}


@dataclass
class BatchStore:
    """Stores the by-products of a batch of small strata, which share files.

    Log likelihoods are written shard by shard, everything else by `close`, with the completion record last. So a batch is
    finished as a whole, or done again as a whole. Late writers are refused as by `StratumStore`.
    """

    space: Workspace
    unit: str
    strata: range
    axis: RaggedAxis
    log_lik: bool
    parameters: tuple[Parameter, ...]
    chains: int
    _members: list[MemberStore] = field(default_factory=list)
    _shard: int = -1
    _chunks: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """Encoded chunks of the present shard, by their position in it."""
    _files: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.space.parts / self.unit

    def refuse_late(self) -> None:
        """Raises `StratumFinished` if the batch is finished; not in an object store, where a conditional put decides."""
        if self.space.store.shared and self.space.completion(self.unit).exists():
            raise StratumFinished

    def member(self, stratum: int) -> MemberStore:
        """The recorder of the next stratum."""
        self._members.append(MemberStore(self, stratum))
        return self._members[-1]

    def add_chunks(self, region: slice, values: Floats, record: Ints) -> None:
        """Adds the log likelihoods of a region, (draw, record), which follows the regions before it."""
        encoded = arrays.log_lik_chunks(self.chains, self.axis.chunk, values, record)
        for number, chunks in enumerate(encoded, region.start // self.axis.chunk):
            shard, position = divmod(number, self.axis.batch)
            if shard != self._shard:
                self._write_shard()
                self._shard = shard
            self._chunks[position] = chunks

    def _write_shard(self) -> None:
        if self._chunks:
            self.refuse_late()
            self._files += arrays.write_shards(self.space.log_lik, self._shard, self._chunks, self.axis.batch)
            self._chunks = {}

    def close(self) -> None:
        """Writes what the strata recorded and released, and the completion record."""
        self._write_shard()
        self.refuse_late()
        self.folder.mkdir(parents=True, exist_ok=True)
        number = self.strata.start // self.axis.batch
        fits = list(self._members[0].draws)
        for fit in fits:
            arrays.write_draws(self.space.posterior, fit, number, [member.draws[fit] for member in self._members])
        files = self._files + arrays.posterior_files(self.space.posterior, self.parameters, number, fits)
        if self._members[0].bounds_of_blocks:
            files.append(self.folder / "bounds-00000.arrow")
            write_part(files[-1], [member.bounds() for member in self._members])
        files.append(self.folder / "strata.json")
        write_json(files[-1], [member.content for member in self._members], durable=False)
        self.refuse_late()
        self.space.mark(self.unit, files)
        self.space.store.discard(files)


@dataclass
class MemberStore(StratumRecorder):
    """The recorder of one stratum of a batch, and of its blocks. It keeps by-products until the batch is finished."""

    batch: BatchStore
    stratum: int
    draws: dict[str, Draws] = field(default_factory=dict)
    bounds_of_blocks: dict[int, Columns] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        self.draws[fit] = draws.disclose_to_custodian()

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        self.content = {"summary": _disclosed(values)}

    def release(self, described: Sequence[Mapping[str, Any]]) -> None:
        self.content = {"summary": self.content.get("summary", {}), "released": list(described)}

    def bounds(self) -> pa.RecordBatch:
        """The columns of all blocks, in their order, as one batch of records."""
        blocks = [self.bounds_of_blocks[start] for start in sorted(self.bounds_of_blocks)]
        return pa.RecordBatch.from_pydict({name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]})

    def block(self, start: int) -> BlockStore:
        """The recorder of the block that begins at this record of the stratum."""
        return BlockStore(self, start)

    @property
    def log_lik(self) -> bool:
        return self.batch.log_lik

    def add_log_lik(self, start: int, values: Floats, record: Ints) -> None:
        """Adds the log likelihoods of a block, (draw, record)."""
        region = self.batch.axis.region(self.stratum, start, start + values.shape[1])
        self.batch.add_chunks(region, values, record)
