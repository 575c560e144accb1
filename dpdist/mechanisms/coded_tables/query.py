"""Base query of `privbayes` and `weighted_marginals`: sums records into weighted tables, and adds noise to every cell."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats
from dpdist.engine.protocol import Measurement, Pass
from dpdist.mechanisms.coded_tables.fitting import Marginal
from dpdist.mechanisms.coded_tables.post import CodedTables
from dpdist.mechanisms.coded_tables.sensitivity import tables
from dpdist.mechanisms.stratum_sums import Defined, Summing

ENTERED = (
    "A record enters one cell of every measured table, by its weight in units of the weight's public upper bound, to "
    "which it is clipped; without weights by 1. Switching it off moves a table by at most 1 unit in L1, and any other "
    "values of its columns and weight by at most 2. All cells have discrete Laplace noise."
)


@dataclass(frozen=True)
class TableSums(Summing):
    """Kernel: Σv of every cell of the model's measured tables, (cell,), in whole units of 1/UNIT."""

    model: CodedTables

    def sums(self, records: Records) -> Floats:
        v = np.rint(UNIT * records.weight / self.model.weights[1])
        codes = self.model.codes(records)
        tables = [
            np.bincount(self.model.cell(codes, key), weights=v, minlength=prod(self.model.shape(key)))
            for key in self.model.measured
        ]
        return np.concatenate(tables) if tables else np.empty(0)


def measured(
    model: CodedTables, keys: tuple[Marginal, ...], numbers: count[int]
) -> Generator[Pass | Measurement, Any, Floats]:
    """The named tables under noise, one after another, (cell,); all noise has the first table's scale."""
    if not keys:
        return np.empty(0)
    return (yield from under_noise(TableSums(model.measuring(keys)), numbers))


def under_noise(kernel: TableSums, numbers: count[int]) -> Generator[Pass | Measurement, Any, Floats]:
    """The kernel's sums of one pass, under the noise of its first table."""
    model = kernel.model
    exact = yield Pass(kernel, "sum")
    query = tables(model.tables_summed, model.scale_of(model.measured[0]))
    noisy: Floats = yield Defined.by_content(model).sums(exact, query, next(numbers))
    return noisy
