"""Gives records their positions in arrays. Every stratum begins with a new chunk, so that each chunk has one writer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.records import Ints


@dataclass(frozen=True)
class RaggedAxis:
    """Offsets (multiples of `chunk`) and lengths of the strata along the padded axis, (stratum,) each."""

    offset: Ints
    length: Ints
    chunk: int

    @classmethod
    def of(cls, length: Ints, largest_chunk: int) -> RaggedAxis:
        """The axis for strata of these lengths.

        A chunk is a power of two, at least the median length but between 128 and the size of a record block.
        """
        median = float(np.median(length)) if len(length) else 1.0
        chunk = int(2 ** np.ceil(np.log2(max(128.0, min(median, float(largest_chunk))))))
        chunk = min(chunk, max(128, largest_chunk))
        chunks = -(-length // chunk)
        offset = np.concatenate([[0], np.cumsum(chunks)[:-1]]).astype(np.int64) * chunk
        return cls(offset, length, chunk)

    @property
    def size(self) -> int:
        """Length of the padded axis."""
        return int(-(-self.length // self.chunk).sum()) * self.chunk

    def region(self, stratum: int, start: int, stop: int) -> slice:
        """The region of records start:stop of a stratum. Asserts that it shares no chunk with another writer."""
        if not 0 <= start < stop <= self.length[stratum]:
            raise AssertionError(f"records {start}:{stop} are not the stratum's")
        if start % self.chunk or (stop % self.chunk and stop != self.length[stratum]):
            raise AssertionError(f"records {start}:{stop} share a chunk of {self.chunk} with another writer")
        first = int(self.offset[stratum])
        return slice(first + start, first + stop)
