"""The exact path of one stratum: fits, bounds, fixed point, released draws, synthesis."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from conftest import simulated

from dpdist.core.keys import Key
from dpdist.engine.protocol import BlockRecorder, StratumRecorder, run_rounds
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.sampling import sampler_of


class Nowhere(BlockRecorder, StratumRecorder):
    """Takes by-products and keeps none."""


def path(job, model, records, key):
    recorder = Nowhere()
    rounds = MECHANISMS["weighted"].protect(job, model, recorder)
    released = run_rounds(rounds, model, sampler_of(job, Path()), key, "all", [records], [recorder])
    return [model.simulate(theta, records.row, key.generator("synthesis")) for theta in released.parameters]


def test_strata_per_second_and_core(ratio, tmp_path):
    """n = 2000, S = 1000; beside the bound passes alone, the part that must touch every record × draw."""
    job, model, records = simulated(2000, tmp_path)
    keys = iter(range(1, 10_000))
    theta = model.draw(model.statistics(records, np.ones(2000)), 1000, Key(bytes(32)).generator("bench"))
    seconds = []
    for _ in range(40):
        start = perf_counter()
        path(job, model, records, Key(next(keys).to_bytes(32, "little")))
        seconds.append(perf_counter() - start)
    print(f"\nstrata per second and core: {1 / median(seconds):.1f} (median), {1 / min(seconds):.1f} (undisturbed)")

    def bounds():
        for _ in range(6):
            model.extremes(theta, records)

    ratio("share of the time that six bound passes take", lambda: path(job, model, records, Key(bytes(32))), bounds)
