"""Synthetic records in the form of `Records`, so that public code can fit models."""

from __future__ import annotations

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats


class SyntheticRecords(Records):
    """Records that a released model simulated. They are public, unlike all other records."""

    @classmethod
    def of(cls, crosstab_row: Codes, outcome: Floats, weight: Floats) -> SyntheticRecords:
        """Records of these rows of the crosstab, numbered from 0 and without primary sampling units."""
        number = np.arange(len(crosstab_row), dtype=np.int64)
        return cls(number, crosstab_row, outcome, weight, np.full(len(crosstab_row), -1, dtype=np.int32))
