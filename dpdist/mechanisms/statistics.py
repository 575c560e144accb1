"""The form of noisy statistics: sums over records, noise that is drawn once and kept, nothing else (METHODS §10)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpdist.confidential import Confidential
from dpdist.digests import digest
from dpdist.mechanisms.learned import Learned
from dpdist.mechanisms.protocol import BlockRecorder, Carry, Noise, Pass, Released, Rounds, Sample, StratumRecorder
from dpdist.models.cell_sums import CellSums
from dpdist.models.deconvolution import deconvolved
from dpdist.models.histogram import Histogram
from dpdist.models.noisy_tables import FINE_SCALE, FINER, NoisyTables
from dpdist.models.protocol import Draws
from dpdist.models.reference_cells import ReferenceCells
from dpdist.models.reference_histograms import Histograms
from dpdist.models.reference_refresh import Refresh
from dpdist.models.sanitized import SanitizedLognormal
from dpdist.privacy.noisy_tables import sensitivities
from dpdist.records import Floats, Records


class Count(NamedTuple):
    """Kernel: statistics of the records, unweighted: records in each bin (1, bin), or sums of each cell or row (…, sum)."""

    model: Histogram | CellSums | NoisyTables | ReferenceCells | Histograms | Refresh | SanitizedLognormal

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


class Extremes(NamedTuple):
    """Kernel: the largest of w, −w, wy and −wy in every frame row, (row, 4); −∞ without a record."""

    rows: int

    def __call__(self, records: Records, carry: Carry, recorder: BlockRecorder) -> Floats:
        found, product = np.full((self.rows, 4), -np.inf), records.weight * records.outcome
        for column, values in enumerate((records.weight, -records.weight, product, -product)):
            np.maximum.at(found[:, column], records.frame, values)
        return found


def noisy_tables(model: NoisyTables, recorder: StratumRecorder) -> Rounds:
    """Every figure of every table under noise of its own (METHODS §7); local sensitivities stay confidential."""
    sums = yield Pass(Count(model), "sum")
    local = None
    if model.bounds is None:
        high_w, low_w, high_p, low_p = (yield Pass(Extremes(len(sums)), "max")).T
        local = [sensitivities(sums[:, 0], (-low_w, high_w), (-low_p, high_p), table.cells) for table in model.tables]
    # sums that are not whole are rounded as blocks fall, and nothing is promised of them
    query, exact = digest(model), digest(sums) if local is None else ""
    noise = yield Noise(model.scale, model.size, 1, "laplace", query, exact)
    if local is not None:
        # whole multiples of Δ/UNIT would tell Δ: differences of figures that should agree have it as their divisor
        fine = yield Noise(FINE_SCALE, model.size, 2, "laplace", query, exact)
        noise = noise + fine / FINER
    told = {"database_bound": None, "epsilon_local": None, "epsilon_local_range": None}
    found = {f"{name} of {t.name}": each[name] for t, each in zip(model.tables, local or (), strict=False) for name in each}
    recorder.summary(Confidential({**told, "diagnostics": {"figures": float(model.size), **found}}))
    return Released((model.noisy(sums, noise, local),))


def cell_sums(model: CellSums, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """Bounded sums of every finest cell; every set releases them under noise of its own (METHODS §7)."""
    sums = yield Pass(Count(model), "sum")
    released, query, exact = [], digest(model), digest(sums)
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, sums.size, number, "laplace", query, exact)
        released.append(Draws({"sums": (sums + noise.reshape(sums.shape))[None]}))
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(sums))}}))
    return Released(tuple(released))


def reference_tables(
    model: ReferenceCells, known: Learned | Histograms | Refresh, epsilon: float, recorder: StratumRecorder
) -> Rounds:
    """Sums of every finest cell, clipped where the reference tells, under noise; the rest is post-processing (§7b).

    Histograms, in place of what a reference fixed or to bring it up to date, are released first, under noise of their own.
    """
    if isinstance(known, Histograms | Refresh):
        counts = yield Pass(Count(known), "sum")
        noise = yield Noise(known.scale, counts.size, 0, "laplace", digest(known), digest(counts))
        noisy_counts = counts + noise.reshape(counts.shape)
        told = known.told(noisy_counts)
        limits = model.limited(told)
    else:
        assert known.told is not None
        assert known.limits is not None
        told, limits = known.told, known.limits
    model = model.within(limits, model.units(told))
    sums = yield Pass(Count(model), "sum")
    (cells, columns), (first, other) = sums.shape, model.scales
    query, exact = digest(model), digest(sums)
    if first == other:
        noise = yield Noise(first, sums.size, 1, "laplace", query, exact)
        noise = noise.reshape(sums.shape)
    else:
        of_weight = yield Noise(first, cells, 1, "laplace", query, exact)
        others = yield Noise(other, cells * (columns - 1), 2, "laplace", query, exact)
        noise = np.column_stack([of_weight, others.reshape(cells, columns - 1)])
    summary = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**summary, "diagnostics": {"cells": float(cells)}}))
    noisy = sums + noise
    if isinstance(known, Histograms):
        told = deconvolved(known, noisy_counts, told, model, noisy)
    return Released((model.unclipped(noisy, told),))


def sanitized_statistics(
    model: SanitizedLognormal, learned: Learned, epsilon: float, sets: int, recorder: StratumRecorder
) -> Rounds:
    """Whitened, winsorised sums under noise; fit and synthetic sets are post-processing (METHODS §8)."""
    assert learned.whitened is not None
    model = model.within(learned.whitened)
    statistics = yield Pass(Count(model), "sum")
    sums = model.released(statistics)
    noise = yield Noise(model.scale, sums.size, 1, model.noise, digest(model), digest(sums))
    released = []
    for number in range(1, sets + 1):
        theta = yield Sample(sums + noise, "release", number, model)
        released.append(theta)
    told = {"database_bound": None, "epsilon_local": epsilon, "epsilon_local_range": None}
    recorder.summary(Confidential({**told, "diagnostics": {"cells": float(len(statistics))}}))
    return Released(tuple(released))


def perturbed_histogram(model: Histogram, epsilon: float, sets: int, recorder: StratumRecorder) -> Rounds:
    """[G], Supplement 1: every set releases the counts under noise of its own. `epsilon`: a set's, for the summary."""
    counts = yield Pass(Count(model), "sum")
    released, query, exact = [], digest(model), digest(counts)
    for number in range(1, sets + 1):
        noise = yield Noise(model.scale, model.bins, number, "laplace", query, exact)
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
