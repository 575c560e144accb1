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
from dpdist.mechanisms.coded_tables.sensitivity import tables
from dpdist.mechanisms.counting import Count
from dpdist.mechanisms.stratum_sums import Defined


def measured(
    model: CodedTables, keys: tuple[Marginal, ...], numbers: count[int]
) -> Generator[Pass | Measurement, Any, Floats]:
    """The named tables under noise, one after another, (cell,); all have the noise of the first."""
    if not keys:
        return np.empty(0)
    return (yield from under_noise(model.measuring(keys), numbers))


def under_noise(model: CodedTables, numbers: count[int]) -> Generator[Pass | Measurement, Any, Floats]:
    """All that the model sums in a pass under the noise of its first table."""
    exact = yield Pass(Count(model), "sum")
    stated = tables(model.tables_summed, model.scale_of(model.measured[0]))
    noisy: Floats = yield Defined.by(model).sums(exact, stated, next(numbers))
    return noisy
