"""Builds the part of a Stan program's data that holds records; it is empty in an ordinary fit, which uses sums only.

A clamped likelihood ∏ exp(clamp(α(f − reference), ±M)) has no sufficient statistics ([G]; METHODS §4b). So its records
enter one by one: f is a record's log likelihood, α its privacy weight and M the clamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdist.core.records import Codes, Floats


def no_records(*columns: str) -> dict[str, Any]:
    """Data of a fit without a clamp; `columns` are further columns that the program needs of a record."""
    return {"N": 0, "alpha": [], "reference": [], "clamp": 0.0, **{column: [] for column in columns}}


def clamped_records(
    alpha: Floats, reference: Floats, clamp: float, columns: Mapping[str, Floats | Codes]
) -> dict[str, Any]:
    """Data of records (record,) that enter by exp(clamp(α(f − reference), ±clamp)); Stan counts patterns from 1."""
    one_based = {name: np.asarray(v) + 1 if name == "pattern" else v for name, v in columns.items()}
    entries = {"alpha": alpha, "reference": reference, **one_based}
    return {"N": len(alpha), "clamp": float(clamp), **{name: np.asarray(v).tolist() for name, v in entries.items()}}
