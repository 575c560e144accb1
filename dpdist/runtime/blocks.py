"""Computes sizes of record blocks, ranges and memory, from (n, p, S) only, never from the number of workers.

A *block* holds the records that a kernel processes in one call. A *span* is a run of blocks of one stratum that one task
visits. A stratum of one span is small, and all its rounds run inside one task. Small strata share tasks in *bins*. Bins
may depend on the number of workers, because a stratum's results do not depend on its bin. A stratum of more spans is
giant. Each of its rounds is one task per span, and the partial results are added in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpdist.core.records import Frame, Ints
from dpdist.job import Job
from dpdist.job.families import family_facts
from dpdist.mechanisms.models import builder_of
from dpdist.runtime.bins import MOST_STRATA, cut, seconds
from dpdist.storage.record_axis import RaggedAxis

TENSOR_BYTES = 2**26
"""A block's (draw, record) tensor in float64 must stay below 64 MiB."""
SPAN_VALUES = 2**28
"""Records × draws of a span, which take about a quarter of a second per bound pass."""
LOG_LIK_LIMIT = 4 * 2**30
"""`record: {log_lik: auto}` keeps tensors up to this projected size."""
PROCESS_BYTES = 420 * 2**20
"""A worker process with everything imported and compiled."""
STAN_BYTES = 240 * 2**20
"""Memory of cmdstanpy and ArviZ in a process, and of a program's own process, in bytes."""
GATHERED_BYTES = 250
"""Bytes of a record in a fit that uses single records: as numbers and as a program's data."""
GENERATED_BYTES = 160 * 2**20
"""A block of a user's generated quantities, as text and as numbers."""
BYTES_PER_RECORD = 240
"""A record, its carry of two rounds and the temporaries of a kernel."""


def block_rows(draws: int) -> int:
    """Records per block: a power of two between 128 and 65,536."""
    return int(2 ** np.clip(np.floor(np.log2(TENSOR_BYTES / (8 * draws))), 7, 16))


def blocks_of_a_part(draws: int) -> int:
    """Blocks per span."""
    return max(1, SPAN_VALUES // (draws * block_rows(draws)))


@dataclass(frozen=True)
class Blocks:
    """The record blocks of all strata in order; `first[k]` is the first block of stratum k, (stratum + 1,).

    A stratum without a record has an empty block.
    """

    edges: tuple[int, ...]
    first: tuple[int, ...]

    @classmethod
    def of(cls, stratum_count: Ints, draws: int) -> Blocks:
        size = block_rows(draws)
        edges, first = [0], [0]
        for count in stratum_count.tolist():
            start = edges[-1]
            edges += [min(start + k, start + count) for k in range(size, max(count, 1) + size, size)]
            first.append(len(edges) - 1)
        return cls(tuple(edges), tuple(first))

    def of_stratum(self, stratum: int) -> range:
        return range(self.first[stratum], self.first[stratum + 1])

    def __len__(self) -> int:
        return len(self.edges) - 1


@dataclass(frozen=True)
class Layout:
    """The layout of a fit's strata in blocks, spans and bins, on the record axis and in memory."""

    frame: Frame
    draws: int
    """Draws of all chains."""
    parameters: int
    """Coefficients per component of the largest stratum model."""
    log_lik: bool
    process: int = PROCESS_BYTES
    """Bytes of a worker process before it reads a record."""
    gathered: int = 0
    """Bytes per record of a stratum that a fit gathers from all its blocks."""
    bin_strata: int = MOST_STRATA
    """Strata of a task at most."""
    record_bytes: int = BYTES_PER_RECORD
    """A record in a kernel."""

    @classmethod
    def of(cls, job: Job, frame: Frame) -> Layout:
        model = builder_of(job)
        parameters = [model.build(job, frame, frame.rows_of(k)).identified for k in range(len(frame.stratum_labels))]
        wanted, small = job.record.log_lik, log_lik_bytes(frame, job.sampler.total) <= LOG_LIK_LIMIT
        wanted = "never" if job.mechanism.adds_noise else wanted
        process = PROCESS_BYTES + STAN_BYTES * (job.sampler.name == "stan") + GENERATED_BYTES * family_facts(job).program
        kept = wanted == "always" or (wanted == "auto" and small)
        first = model.build(job, frame, frame.rows_of(0))
        gathered = GATHERED_BYTES if first.combine == "concat" else 0
        bin_strata = 1 if job.sampler.name == "stan" else MOST_STRATA
        further = len(job.outcomes) - 1
        largest = max(parameters) * (2 + further) // 2 + further
        record = BYTES_PER_RECORD * (3 + further) * (4 + further) // 12
        return cls(frame, job.sampler.total, largest, kept, process, gathered, bin_strata, record)

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.frame.stratum_count, self.draws)

    @cached_property
    def axis(self) -> RaggedAxis:
        return RaggedAxis.of(self.frame.stratum_count, block_rows(self.draws))

    def spans(self, stratum: int) -> list[range]:
        """Block numbers of each span of a stratum."""
        own, size = self.blocks.of_stratum(stratum), blocks_of_a_part(self.draws)
        return [range(start, min(start + size, own.stop)) for start in range(own.start, own.stop, size)]

    @cached_property
    def part_edges(self) -> tuple[int, ...]:
        """Borders of all spans, in records."""
        strata = range(len(self.frame.stratum_labels))
        return (0, *(self.blocks.edges[span.stop] for k in strata for span in self.spans(k)))

    @cached_property
    def giants(self) -> tuple[int, ...]:
        """Strata of more than one span."""
        return tuple(k for k in range(len(self.frame.stratum_labels)) if len(self.spans(k)) > 1)

    @cached_property
    def _small(self) -> tuple[list[int], list[float]]:
        """Small strata in order, with the projected time of each."""
        giants = set(self.giants)
        small = [k for k in range(len(self.frame.stratum_labels)) if k not in giants]
        return small, seconds(self.frame.stratum_count[small].tolist(), self.draws)

    def bins(self, workers: int) -> tuple[tuple[int, ...], ...]:
        """Small strata in tasks for so many workers, consecutive, the longest tasks first."""
        if workers not in self._binned:
            small, times = self._small
            tasks = [(sum(times[k] for k in task), task) for task in cut(times, workers, self.bin_strata)]
            ordered = sorted(tasks, key=lambda each: -each[0])
            self._binned[workers] = tuple(tuple(small[k] for k in task) for _, task in ordered)
        return self._binned[workers]

    @cached_property
    def _binned(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {}

    def task_bytes(self, stratum: int) -> int:
        """Projected peak memory of a task on this stratum, the worker process included."""
        count = min(int(self.frame.stratum_count[stratum]), blocks_of_a_part(self.draws) * block_rows(self.draws))
        block = min(count, block_rows(self.draws))
        tensor = 3 * 8 * self.draws * block if self.log_lik else 0
        draws = 8 * self.draws * (16 * self.parameters + 100)
        gathered = self.gathered * int(self.frame.stratum_count[stratum])
        return self.process + self.record_bytes * count + tensor + draws + gathered

    @cached_property
    def largest_task_bytes(self) -> int:
        return self.task_bytes(int(np.argmax(self.frame.stratum_count)))


def log_lik_bytes(frame: Frame, draws: int) -> int:
    """Projected size of log_lik.zarr without compression."""
    return RaggedAxis.of(frame.stratum_count, block_rows(draws)).size * draws * 8
