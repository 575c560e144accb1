"""For `publish.refit`: synthetic records in the form of `Records`, so that public code can fit models."""

from __future__ import annotations

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats


class SyntheticRecords(Records):
    """Records that a released model simulated. They are public, unlike all other records."""

    @classmethod
    def of(cls, frame_row: Codes, outcome: Floats, weight: Floats) -> SyntheticRecords:
        """Records of these rows of the frame, numbered from 0 and without primary sampling units."""
        number = np.arange(len(frame_row), dtype=np.int64)
        return cls(number, frame_row, outcome, weight, np.full(len(frame_row), -1, dtype=np.int32))
