"""For `runtime.tasks`: stores a stratum's confidential by-products; the completion record comes last, listing all files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.records import Floats
from dpdist.engine.protocol import Columns
from dpdist.models.protocol import Draws, Parameter
from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis
from dpdist.storage.store import checksums
from dpdist.storage.tables import write_part
from dpdist.storage.workspace import Workspace


class Superseded(Exception):
    """Another task has finished the stratum in the meantime. Its files stay."""


@dataclass
class StratumStore:
    """Stores the by-products of one stratum.

    `close` writes its summary, its release and, last, the completion record of all its files. After that nothing is
    written. If a worker was cut off, and another worker has done its task, it gets `Superseded`. Two workers that write at
    the same moment write the same bytes, and each file is whole.
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
        """Raises `Superseded` if the stratum is finished; not in an object store, where a conditional put decides."""
        if self.space.store.shared and (self.space.completions / f"{self.folder.name}.json").exists():
            raise Superseded

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        self.refuse_late()
        self._fits.append(fit)
        arrays.write_draws(self.space.posterior, fit, self.stratum, draws.disclose_to_custodian())

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        """Keeps a summary; figures that are not defined, such as R-hat of one chain, become null."""
        summary = values.disclose_to_custodian()
        figures = {name: None if np.isnan(value) else value for name, value in summary["diagnostics"].items()}
        self._summary = {**summary, "diagnostics": figures}

    def part(self, number: int) -> PartStore:
        return PartStore(self, number)

    def chunks(self, start: int, stop: int) -> list[Path]:
        """Files of the log likelihood store that contain records start:stop of the stratum."""
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
        self.space.store.forget(written_here)


@dataclass
class PartStore:
    """Collects the bounds of a range of blocks, and writes them as one file of the stratum."""

    stratum: StratumStore
    number: int
    _bounds: dict[int, Columns] = field(default_factory=dict)
    _chunks: list[Path] = field(default_factory=list)

    def block(self, start: int) -> BlockStore:
        """The recorder of the block that begins at this record of the stratum."""
        return BlockStore(self, start)

    def close(self) -> dict[str, str]:
        """Writes the bounds, if a pass recorded any. Returns the checksums of all files that the blocks wrote."""
        if not self._bounds:
            return {}
        self.stratum.refuse_late()
        self.stratum.folder.mkdir(parents=True, exist_ok=True)
        bounds = self.stratum.folder / f"bounds-{self.number:05d}.arrow"
        write_part(bounds, pa.concat_tables(pa.table(self._bounds[start]) for start in sorted(self._bounds)))
        return checksums([bounds, *self._chunks], self.stratum.space.confidential)


@dataclass(frozen=True)
class BlockStore:
    """The recorder of one block, which owns its chunks of the log likelihood store."""

    span: PartStore
    start: int

    @property
    def wants_log_lik(self) -> bool:
        return self.span.stratum.log_lik

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.span._bounds[self.start] = columns.disclose_to_custodian()

    def log_lik(self, values: Confidential[Floats]) -> None:
        tensor, store = values.disclose_to_custodian(), self.span.stratum
        record = np.asarray(self.span._bounds[self.start]["record"], dtype=np.int64)
        stop = self.start + tensor.shape[1]
        store.refuse_late()
        arrays.write_log_lik(store.space.log_lik, store.axis.region(store.stratum, self.start, stop), tensor, record)
        self.span._chunks += store.chunks(self.start, stop)
