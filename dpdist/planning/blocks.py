"""Division of strata into blocks and tasks, and their projected memory, from sizes alone.

A *block* holds the records that a kernel processes in one call. A *span* is a run of blocks of one stratum that one task
visits. A stratum with one span is *small*: one task runs all its rounds, and several small strata share a task in a *bin*.
Other strata are *giant*: each round is one task for each span, and partial results are added in order. So is a job's only
stratum if its work between passes is long. Blocks and spans never depend on the number of workers. Bins may, because
results of a stratum do not depend on its bin.

A scheduler handles about 640 tasks a second (deploy/README.md), so tasks are longer with many workers. The first tasks
are long. Each later task takes at most two thirds of one worker's share of the remaining work, so that all workers end
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpdist.core.records import BATCH_STRATA, Crosstab, Ints
from dpdist.job import Job, family_facts
from dpdist.mechanisms.parts import builder_of
from dpdist.models.protocol import supports
from dpdist.storage.arrays import RaggedAxis

STRATUM_SECONDS = 0.0035
"""Seconds for the files and rounds of one stratum with 1,000 draws (docs/explanation/scaling.md)."""
OF_DRAWS = 0.2
"""Share of `STRATUM_SECONDS` that grows with the number of draws."""
VALUE_SECONDS = 0.55 / 2**24
"""Seconds for each record and draw, over all rounds, where log likelihoods are stored too."""
SHORT, LONG = 1.5, 20.0
"""Length in seconds of the longest tasks: on few workers, and on any number of workers."""
RATE = 100.0
"""Number of long tasks that the scheduler may get in a second."""
LAST, LAST_LONG, LAST_RATE = 0.5, 4.0, 1000.0
"""Limits for the shortest tasks, at the end of a stage.

They are the length in seconds on few workers, its maximum on many workers, and the tasks that the scheduler may get in a
second.
"""
AHEAD = 1.5
"""A task takes at most 1 / AHEAD of one worker's share of the remaining work."""
MOST_STRATA = 1000
"""Largest number of strata in a task. One listing of an object store can name that many completion records."""
LEAST_BATCHES = 128
"""Batches of a fit, at least, if batches have several strata: so many workers have work, and a killed one loses little."""
BATCH_BYTES = 2**25
"""Posterior draws of a batch, and an encoded shard of its log likelihoods, take at most 32 MiB each."""


def seconds(records: Sequence[int], draws: int) -> list[float]:
    """Returns the projected seconds of each stratum on one worker."""
    alone = STRATUM_SECONDS * (1.0 - OF_DRAWS + OF_DRAWS * draws / 1000)
    projected: list[float] = (alone + VALUE_SECONDS * draws * np.asarray(records, dtype=np.float64)).tolist()
    return projected


def limits(workers: int) -> tuple[float, float]:
    """Returns the length, in seconds, of the longest and of the shortest tasks."""
    return min(LONG, max(SHORT, workers / RATE)), min(LAST_LONG, max(LAST, workers / LAST_RATE))


def cut(times: Sequence[float], workers: int, most: int = MOST_STRATA) -> list[range]:
    """Groups consecutive strata into tasks of at most `most` strata. `times` are the strata's seconds.

    A stratum that takes longer than a task should take is a task alone.
    """
    longest, shortest = limits(workers)
    remaining, start, filled, tasks = float(sum(times)), 0, 0.0, list[range]()
    limit = min(longest, max(shortest, remaining / (AHEAD * workers)))
    for k, seconds in enumerate(times):
        if k > start and (k - start == most or filled + seconds > limit):
            tasks.append(range(start, k))
            remaining, start, filled = remaining - filled, k, 0.0
            limit = min(longest, max(shortest, remaining / (AHEAD * workers)))
        filled += seconds
    return [*tasks, range(start, len(times))] if times else tasks


TENSOR_BYTES = 2**26
"""A block's (draw, record) tensor in float64 must stay below 64 MiB."""
SPAN_VALUES = 2**28
"""Largest number of records × draws in a span; a pass for bounds then takes about a quarter of a second."""
LOG_LIK_LIMIT = 4 * 2**30
"""`record: {log_lik: auto}` stores log likelihoods up to this projected size, in bytes."""
PROCESS_BYTES = 380 * 2**20
"""Memory, in bytes, of a worker process after all imports and compilations."""
STAN_BYTES = 240 * 2**20
"""Memory, in bytes, of cmdstanpy and ArviZ in a process together with the process of a Stan program."""
GATHERED_BYTES = 250
"""Memory, in bytes, of a record in a fit that uses single records: as numbers and as a program's data."""
GENERATED_BYTES = 160 * 2**20
"""Memory, in bytes, of a block of a user program's generated quantities, as text and as numbers."""
BYTES_PER_RECORD = 110
"""Memory, in bytes, of a record with its carry of two rounds and a kernel's temporary arrays."""
TENSORS = 2.6
"""Memory of a block's log likelihoods while they are written, in tensors of the block."""

BYTES_PER_SUM = 6 * 8
"""Memory, in bytes, of a figure that a pass sums: of a block, twice; of all blocks, twice; its noise, and its answer."""


def block_rows(draws: int) -> int:
    """Number of records in a block: a power of two between 128 and 65,536."""
    return int(2 ** np.clip(np.floor(np.log2(TENSOR_BYTES / (8 * draws))), 7, 16))


def blocks_of_a_part(draws: int) -> int:
    """Number of blocks in a span."""
    return max(1, SPAN_VALUES // (draws * block_rows(draws)))


@dataclass(frozen=True)
class Blocks:
    """The blocks of all strata in order. `edges` are their borders, in records.

    `first[k]` is the first block of stratum k, (stratum + 1,). A stratum without records has one empty block.
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
    """How a fit's strata are divided into blocks, spans and bins, and how much memory they take."""

    crosstab: Crosstab
    draws: int
    """Number of posterior draws over all chains."""
    parameters: int
    """Number of coefficients for each component (outcomes and weight), in the stratum with the largest model."""
    log_lik: bool
    process: int = PROCESS_BYTES
    """Memory, in bytes, of a worker process before it reads a record."""
    gathered: int = 0
    """Memory, in bytes, of each record of a stratum, where a fit gathers records from all blocks; else 0."""
    bin_strata: int = MOST_STRATA
    """Largest number of strata in a bin."""
    record_bytes: int = BYTES_PER_RECORD
    """Memory, in bytes, of a record in a kernel."""
    sums: int = 0
    """Memory, in bytes, of the figures that a pass over records sums, where they are many."""
    batch_limit: int = BATCH_STRATA
    """Largest number of strata in a batch; 1 where strata are fitted again one by one."""
    long: bool = False
    """True if there is one stratum, which takes longer than any task should, whatever its records."""

    @classmethod
    def of(cls, job: Job, crosstab: Crosstab) -> Layout:
        model = builder_of(job)
        parameters = [
            model.build(job, crosstab, crosstab.rows_of(k)).identified for k in range(len(crosstab.stratum_labels))
        ]
        mode, small = job.record.log_lik, log_lik_bytes(crosstab, job.sampler.total) <= LOG_LIK_LIMIT
        mode = "never" if job.mechanism.adds_noise else mode
        process = PROCESS_BYTES + STAN_BYTES * (job.sampler.name == "stan") + GENERATED_BYTES * family_facts(job).program
        stores = mode == "always" or (mode == "auto" and small)
        first = model.build(job, crosstab, crosstab.rows_of(0))
        gathered = GATHERED_BYTES if supports(first, "log_lik") and first.combine == "concat" else 0
        bin_strata = 1 if job.sampler.name == "stan" else MOST_STRATA
        further = len(job.outcomes) - 1
        largest = max(parameters) * (2 + further) // 2 + further
        record = BYTES_PER_RECORD * (3 + further) * (4 + further) // 12
        sums = BYTES_PER_SUM * first.most_sums if supports(first, "tables_beside") else 0
        batch = 1 if bin_strata == 1 or job.mechanism.fallback == "proper_prior" else BATCH_STRATA
        long = len(parameters) == 1 and supports(first, "with_donors") and first.cost(0).seconds > LONG
        return cls(crosstab, job.sampler.total, largest, stores, process, gathered, bin_strata, record, sums, batch, long)

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(self.crosstab.stratum_count, self.draws)

    @cached_property
    def axis(self) -> RaggedAxis:
        return RaggedAxis.of(self.crosstab.stratum_count, block_rows(self.draws), self.batch_strata)

    @cached_property
    def batch_strata(self) -> int:
        """Number of strata in a batch, a power of two. One task protects a batch, and its strata share files.

        It depends on sizes alone, never on workers. It is 1 if there are few strata, or a giant one.
        """
        count, most = self.crosstab.stratum_count, min(self.batch_limit, len(self.crosstab.stratum_count) // LEAST_BATCHES)
        if most < 2 or self.giants:
            return 1
        times = np.array(seconds(count.tolist(), self.draws))
        size = 1 << int(np.log2(min(most, max(1, BATCH_BYTES // self._batch_bytes))))
        while size > 1 and np.add.reduceat(times, np.arange(0, len(times), size)).max() > max(SHORT, times.max()):
            size //= 2
        return size

    @cached_property
    def _batch_bytes(self) -> int:
        """Memory, in bytes, of a batch for each of its strata: posterior draws, or an encoded shard."""
        chunk = RaggedAxis.of(self.crosstab.stratum_count, block_rows(self.draws)).chunk if self.log_lik else 0
        return 8 * self.draws * max(chunk, 3 * (2 * self.parameters + 4))

    def batch_of(self, stratum: int) -> range:
        """The strata of a stratum's batch."""
        start = stratum - stratum % self.batch_strata
        return range(start, min(start + self.batch_strata, len(self.crosstab.stratum_count)))

    def spans(self, stratum: int) -> list[range]:
        """The numbers of a stratum's blocks, one range for each span."""
        blocks, size = self.blocks.of_stratum(stratum), blocks_of_a_part(self.draws)
        return [range(start, min(start + size, blocks.stop)) for start in range(blocks.start, blocks.stop, size)]

    @cached_property
    def part_edges(self) -> tuple[int, ...]:
        """The borders of all spans, in records."""
        strata = range(len(self.crosstab.stratum_labels))
        return (0, *(self.blocks.edges[span.stop] for k in strata for span in self.spans(k)))

    @cached_property
    def giants(self) -> tuple[int, ...]:
        """Strata with more than one span, and a job's only stratum whose work between passes is long: workers share it."""
        return tuple(k for k in range(len(self.crosstab.stratum_labels)) if self.long or len(self.spans(k)) > 1)

    @cached_property
    def _small(self) -> tuple[list[int], list[float]]:
        """Small strata in order, and the projected seconds of each."""
        giants = set(self.giants)
        small = [k for k in range(len(self.crosstab.stratum_labels)) if k not in giants]
        return small, seconds(self.crosstab.stratum_count[small].tolist(), self.draws)

    def bins(self, workers: int) -> tuple[tuple[int, ...], ...]:
        """Small strata grouped in tasks for this number of workers.

        Each task has consecutive strata, in whole batches; the longest come first.
        """
        if workers not in self._binned:
            small, times = self._small
            starts = range(0, len(small), self.batch_strata)
            batches = [small[start : start + self.batch_strata] for start in starts]
            of_batch = [sum(times[start : start + self.batch_strata]) for start in starts]
            most = max(1, self.bin_strata // self.batch_strata)
            tasks = [(sum(of_batch[k] for k in task), task) for task in cut(of_batch, workers, most)]
            ordered = sorted(tasks, key=lambda timed: -timed[0])
            self._binned[workers] = tuple(tuple(k for number in task for k in batches[number]) for _, task in ordered)
        return self._binned[workers]

    @cached_property
    def _binned(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {}

    def task_bytes(self, stratum: int) -> int:
        """Projected peak memory, in bytes, of a task on this stratum, with the worker process."""
        count = min(int(self.crosstab.stratum_count[stratum]), blocks_of_a_part(self.draws) * block_rows(self.draws))
        block = min(count, block_rows(self.draws))
        tensor = int(TENSORS * 8 * self.draws * block) if self.log_lik else 0
        draws = 8 * self.draws * (16 * self.parameters + 100)
        gathered = self.gathered * int(self.crosstab.stratum_count[stratum])
        batch = 4 * self.batch_strata * self._batch_bytes if self.batch_strata > 1 else 0
        return self.process + self.record_bytes * count + tensor + draws + gathered + self.sums + batch

    @cached_property
    def largest_task_bytes(self) -> int:
        return self.task_bytes(int(np.argmax(self.crosstab.stratum_count)))


def log_lik_bytes(crosstab: Crosstab, draws: int) -> int:
    """Projected size of log_lik.zarr in bytes, without compression."""
    return RaggedAxis.of(crosstab.stratum_count, block_rows(draws)).size * draws * 8
