"""Sums statistics of records in one pass; noise is then added to the sums (METHODS §10)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dpdist.core.confidential import Confidential
from dpdist.core.records import Floats, Records
from dpdist.engine.protocol import BlockRecorder, Carry


class Additive(Protocol):
    """A model whose statistics of records can be added over blocks."""

    def statistics(self, records: Records, alpha: Floats) -> Floats: ...


class Count(NamedTuple):
    """Kernel: unweighted statistics of the records: counts in each bin (1, bin), or sums of each cell or row (…, sum)."""

    model: Additive

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        none, ones = np.full(len(records), np.nan), np.ones(len(records))
        carry["alpha"] = ones
        recorder.bounds(
            Confidential(
                {
                    "record": records.record,
                    "sampling_weight": records.weight,
                    "unweighted_record_bound": none,
                    "privacy_weight": ones,
                    "record_bound": none,
                    "weighted_record_bound": none,
                }
            )
        )
        return self.model.statistics(records, ones)
