"""Sums statistics of records in one pass, for mechanisms that then add noise to the sums (METHODS §10)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats
from dpdist.engine.protocol import BlockRecorder, Carry, Columns


class Summing(ABC):
    """Kernel, which runs on each block of records: sums statistics to which a mechanism then adds noise.

    A subclass is a frozen dataclass of public values.
    """

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        recorder.bounds(Confidential(_unbounded(records)))
        return self.sums(records)

    @abstractmethod
    def sums(self, records: Records) -> Floats:
        """Sums over the records: counts by bin, (1, bin), or sums by cell or frame row, (…, sum)."""


def _unbounded(records: Records) -> Columns:
    """The by-products of records that have neither bounds nor privacy weights."""
    none, ones = np.full(len(records), np.nan), np.ones(len(records))
    return {
        "record": records.record,
        "sampling_weight": records.weight,
        "unweighted_record_bound": none,
        "privacy_weight": ones,
        "record_bound": none,
        "weighted_record_bound": none,
    }


class Additive(Protocol):
    """A model whose statistics of records can be added over blocks."""

    def statistics(self, records: Records, alpha: Floats) -> Floats: ...


class Count(NamedTuple):
    """Kernel, which runs on each block of records: sums the model's statistics with a privacy weight of 1 for every record.

    The sums are counts by bin, (1, bin), or sums by cell or frame row, (…, sum).
    """

    model: Additive

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        recorder.bounds(Confidential(_unbounded(records)))
        return self.model.statistics(records, np.ones(len(records)))
