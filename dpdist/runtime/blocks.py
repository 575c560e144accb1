"""Record blocks and memory: functions of (n, p, S) only, never of workers, so how work is spread changes no result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpdist.records import Frame, Ints
from dpdist.storage.ragged import RaggedAxis

TENSOR_BYTES = 2**26
"""A block's (draw, record) tensor in float64 stays under 64 MiB."""
LOG_LIK_LIMIT = 4 * 2**30
"""`record: {log_lik: auto}` keeps tensors up to this projected size."""
PROCESS_BYTES = 350 * 2**20
"""A worker process with dpdist, NumPy, SciPy, pandas, Arrow and Zarr imported (measured 290–330 MiB)."""
BYTES_PER_RECORD = 200
"""A record, its carry and the temporaries of one kernel."""


def block_rows(draws: int) -> int:
    """Records per block: a power of two between 128 and 65,536."""
    return int(2 ** np.clip(np.floor(np.log2(TENSOR_BYTES / (8 * draws))), 7, 16))


@dataclass(frozen=True)
class Blocks:
    """The record blocks of all strata in order; `first[k]` is the first block of stratum k, (stratum + 1,)."""

    edges: tuple[int, ...]
    first: tuple[int, ...]

    @classmethod
    def of(cls, stratum_count: Ints, draws: int) -> Blocks:
        size = block_rows(draws)
        edges, first = [0], [0]
        for count in stratum_count.tolist():
            start = edges[-1]
            edges += [min(start + k, start + count) for k in range(size, count + size, size)]
            first.append(len(edges) - 1)
        return cls(tuple(edges), tuple(first))

    def of_stratum(self, stratum: int) -> range:
        return range(self.first[stratum], self.first[stratum + 1])

    def __len__(self) -> int:
        return len(self.edges) - 1


@dataclass(frozen=True)
class Layout:
    """How a fit's strata lie in blocks, on the ragged axis and in memory."""

    frame: Frame
    draws: int
    predictors: int
    log_lik: bool

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.frame.stratum_count, self.draws)

    @cached_property
    def axis(self) -> RaggedAxis:
        return RaggedAxis.of(self.frame.stratum_count, block_rows(self.draws))

    def task_bytes(self, stratum: int) -> int:
        """Projected peak memory of one stratum's task, the worker process included."""
        count = int(self.frame.stratum_count[stratum])
        tensor = 3 * 8 * self.draws * min(count, block_rows(self.draws)) if self.log_lik else 0
        draws = 8 * self.draws * (20 * self.predictors + 60)
        return PROCESS_BYTES + BYTES_PER_RECORD * count + tensor + draws

    @property
    def largest_task_bytes(self) -> int:
        return max(self.task_bytes(k) for k in range(len(self.frame.stratum_labels)))


def log_lik_bytes(frame: Frame, draws: int) -> int:
    """Projected size of log_lik.zarr without compression."""
    return RaggedAxis.of(frame.stratum_count, block_rows(draws)).size * draws * 8
