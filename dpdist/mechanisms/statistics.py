"""The form of noisy statistics: sums over records, noise that is drawn once and kept, nothing else (METHODS §10)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.confidential import Confidential
from dpdist.mechanisms.learned import Learned
from dpdist.mechanisms.protocol import BlockRecorder, Carry, Noise, Pass, Released, Rounds, StratumRecorder
from dpdist.models.cell_sums import CellSums
from dpdist.models.histogram import Histogram
from dpdist.models.protocol import Draws
from dpdist.models.reference_cells import ReferenceCells
from dpdist.records import Floats, Records


class Count(NamedTuple):
    """Kernel: statistics of the records, unweighted: records in each bin (1, bin), or sums of each cell (cell, 2)."""

    model: Histogram | CellSums | ReferenceCells

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


def cell_sums(model: CellSums, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Bounded sums of every finest cell; every set releases them under noise of its own (METHODS §7)."""
    sums = yield Pass(Count(model), "sum")
    released = []
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, sums.size, number)
        released.append(Draws({"sums": (sums + noise.reshape(sums.shape))[None]}))
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(sums))}}))
    return Released(tuple(released))


def reference_tables(model: ReferenceCells, learned: Learned, epsilon: float, recorder: StratumRecorder) -> Rounds:
    """Sums of every finest cell, clipped where the reference tells, under noise; the rest is post-processing (§7b)."""
    assert learned.cells is not None
    assert learned.limits is not None
    model = model.within(learned.limits)
    sums = yield Pass(Count(model), "sum")
    noise = yield Noise(model.scale, sums.size, 1)
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(sums))}}))
    return Released((model.unclipped(sums + noise.reshape(sums.shape), learned.cells),))


def perturbed_histogram(model: Histogram, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """[G], Supplement 1: every set releases the counts under noise of its own. `epsilon`: a set's, for the summary."""
    counts = yield Pass(Count(model), "sum")
    released = []
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, model.bins, number)
        released.append(Draws({"counts": counts + noise}))
    empty = [float((theta["counts"] <= 0).mean()) for theta in released]
    recorder.summary(
        Confidential(
            {
                "database_bound": None,
                "epsilon_local": epsilon,
                "epsilon_local_range": None,
                "diagnostics": {"bins": float(model.bins), "share_of_empty_bins": float(np.mean(empty))},
            }
        )
    )
    return Released(tuple(released))
