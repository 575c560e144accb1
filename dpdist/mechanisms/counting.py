"""Sums statistics of records in one pass, for mechanisms that then add noise to the sums (METHODS §10)."""

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
    """Kernel, which runs on each block of records: sums the model's statistics with a privacy weight of 1 for every record.

    The sums are counts by bin, (1, bin), or sums by cell or frame row, (…, sum).
    """

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
