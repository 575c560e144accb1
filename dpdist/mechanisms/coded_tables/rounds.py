"""Measures weighted tables of coded columns under noise: one pass over the records, then noise on every cell."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

import numpy as np

from dpdist.core.records import Floats
from dpdist.engine.protocol import Measurement, Pass
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.model import CodedTables
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.stratum_sums import Defined


def measured(
    model: CodedTables, keys: tuple[Marginal, ...], numbers: count[int]
) -> Generator[Pass | Measurement, Any, Floats]:
    """The named tables under noise, one after another, (cell,); all have the noise of the first."""
    if not keys:
        return np.empty(0)
    own = model.measuring(keys)
    exact = yield Pass(Count(own), "sum")
    noisy: Floats = yield Defined.by(own).sums(exact, model.scale_of(keys[0]), next(numbers))
    return noisy
