"""The Recorder of one stratum: confidential by-products into stores made from templates, then a completion mark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpdist.confidential import Confidential
from dpdist.files import write_json
from dpdist.mechanisms.protocol import Columns
from dpdist.models.protocol import Draws
from dpdist.records import Floats
from dpdist.storage import arrays
from dpdist.storage.marks import mark
from dpdist.storage.ragged import RaggedAxis
from dpdist.storage.tables import gather
from dpdist.storage.workspace import Workspace


@dataclass
class StratumStore:
    """Everything one stratum leaves; `close` writes its part files and, last, its mark."""

    space: Workspace
    fit: str
    stratum: int
    axis: RaggedAxis
    log_lik: bool
    _bounds: dict[int, Columns] = field(default_factory=dict)
    _summary: dict[str, Any] = field(default_factory=dict)

    def posterior(self, fit: str, draws: Confidential[Draws]) -> None:
        arrays.write_draws(arrays.open_group(self.space.posterior), fit, self.stratum, draws.disclose_to_custodian())

    def summary(self, values: Confidential[dict[str, Any]]) -> None:
        self._summary = values.disclose_to_custodian()

    def block(self, number: int, start: int) -> BlockStore:
        """Recorder of the stratum's block that begins at record `start` of the stratum."""
        return BlockStore(self, number, start)

    def keep_bounds(self, block: int, columns: Columns) -> None:
        self._bounds[block] = columns

    def close(self, described: Sequence[Mapping[str, Any]]) -> None:
        """Write bounds, summary and what is released of this stratum, then the mark over all of its files."""
        folder = self.space.part(self.fit, self.stratum)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        gather(folder / "bounds.parquet", [pa.table(self._bounds[k]) for k in sorted(self._bounds)])
        write_json(folder / "stratum.json", {"summary": self._summary, "released": list(described)})
        files: list[Path] = [folder / "bounds.parquet", folder / "stratum.json"]
        files += arrays.posterior_files(self.space.posterior, self.stratum)
        if self.log_lik:
            files += arrays.chunk_files(self.space.log_lik, self.axis, self.stratum)
        mark(self.space.marks, folder.name, files, self.space.confidential)


@dataclass(frozen=True)
class BlockStore:
    """Recorder of one block."""

    stratum: StratumStore
    number: int
    start: int

    @property
    def wants_log_lik(self) -> bool:
        return self.stratum.log_lik

    def bounds(self, columns: Confidential[Columns]) -> None:
        self.stratum.keep_bounds(self.number, columns.disclose_to_custodian())

    def log_lik(self, values: Confidential[Floats]) -> None:
        tensor = values.disclose_to_custodian()
        store = self.stratum
        record = store._bounds[self.number]["record"]
        region = store.axis.region(store.stratum, self.start, self.start + tensor.shape[1])
        group = arrays.open_group(store.space.log_lik)
        arrays.write_log_lik(group, region, tensor, np.asarray(record, dtype=np.int64))
