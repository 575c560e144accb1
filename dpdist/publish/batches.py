"""For `folder`, `synthesis` and `standard_errors` in `publish`: fixed batches of strata, and who does the work of each.

Batches depend on sizes alone, never on workers. A batch's result is small, or in proportion to its records. The driver
takes results in the order of batches. So the same bytes follow, whoever does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dpdist.core.records import Crosstab
from dpdist.publish.released import ReleasedObject

R = TypeVar("R")
MOST_STRATA = 64
"""Largest number of strata in a batch: half a second of work, and few enough for 10,000 strata to occupy 64 workers."""
MOST_RECORDS = 2**18
"""Largest number of records in a batch of several strata."""

Work = Callable[[ReleasedObject, range], R]
"""What is done with a batch: it reads the release's parameters of these strata only."""


class ByBatch(Protocol):
    """Does some work for each batch, here or on an executor, and gives the results in the order of the batches."""

    def __call__(self, work: Work[R], released: ReleasedObject, batches: Sequence[range]) -> Iterator[R]: ...


def run_here(work: Work[R], released: ReleasedObject, batches: Sequence[range]) -> Iterator[R]:
    """Does the work in this process, one batch after another."""
    return (work(released, batch) for batch in batches)


def batches_of(crosstab: Crosstab) -> list[range]:
    """Consecutive strata in batches. A stratum with more than `MOST_RECORDS` is a batch alone."""
    batches, start, records = list[range](), 0, 0
    for stratum, count in enumerate(crosstab.stratum_count.tolist()):
        if stratum > start and (stratum - start == MOST_STRATA or records + count > MOST_RECORDS):
            batches.append(range(start, stratum))
            start, records = stratum, 0
        records += count
    return [*batches, range(start, len(crosstab.stratum_count))]


def is_large(crosstab: Crosstab, batch: range) -> bool:
    """True for a stratum whose records are too many for one result."""
    return int(crosstab.stratum_count[batch.start]) > MOST_RECORDS


def rows_of_batch(crosstab: Crosstab, batch: range) -> slice:
    """The crosstab rows of a batch, which are contiguous."""
    return slice(crosstab.rows_of(batch.start).start, crosstab.rows_of(batch.stop - 1).stop)
