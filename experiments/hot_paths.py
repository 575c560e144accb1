"""Pieces of code that decide how long a release takes; `compare.py` times them.

Each function prepares one piece in a folder and returns the call that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_path import path
from bench_study import one_replicate
from conftest import simulated

from dpdist.core.keys import Key
from dpdist.core.progress import silent
from dpdist.core.records import cross
from dpdist.estimation.estimators import counts_and_means, record_sums
from dpdist.models.protocol import Draws
from dpdist.planning.making import make_plan
from dpdist.privacy.weights import Linear
from dpdist.storage import arrays
from dpdist.storage.arrays import RaggedAxis
from dpdist.studies.kinds.simulation import replicate

Timed = Callable[[], object]
KEY = Key(bytes(32))


def fitted(folder: Path, n: int):
    """A model, n records and 1000 draws."""
    _, model, records = simulated(n, folder)
    return model, records, model.draw(model.statistics(records, np.ones(n)), 1000, KEY.generator("bench"))


def log_likelihood(folder: Path) -> Timed:
    model, records, draws = fitted(folder, 2000)
    return lambda: [model.log_lik(draws, records) for _ in range(20)]


def record_bounds(folder: Path) -> Timed:
    model, records, draws = fitted(folder, 8192)
    return lambda: [model.extremes(draws, records) for _ in range(4)]


def privacy_weights(folder: Path) -> Timed:
    bound = np.random.default_rng(1).gamma(2.0, 1.0, 200_000)
    rule = Linear(0.9, 0.0, float(bound.min()), float(bound.max()))
    return lambda: [rule(bound, bound, bound) for _ in range(40)]


def weighted_stratum(folder: Path) -> Timed:
    """The search of privacy weights, the released fit and synthesis, 2000 records."""
    job, model, records = simulated(2000, folder)
    return lambda: path(job, model, records, KEY)


def synthesis(folder: Path) -> Timed:
    model, records, draws = fitted(folder, 8192)
    theta = Draws({name: values[:1] for name, values in draws.values.items()})
    return lambda: [model.simulate(theta, records.row, KEY.generator("synthesis")) for _ in range(50)]


def study_replicate(folder: Path) -> Timed:
    """One file under five mechanisms of a study: weighting, weighted-e and two that censor the likelihood."""
    study = one_replicate()
    return lambda: replicate(study, study.cases[0], 1)


def log_likelihood_store(folder: Path) -> Timed:
    axis = RaggedAxis.of(np.array([8192]), 8192)
    arrays.create_log_lik(folder / "t.zarr", arrays.Template(axis, ("a",), 1, 1000, ()))
    rng, record = np.random.default_rng(1), np.arange(8192)
    tensor = -0.5 * rng.normal(size=(1000, 1)) ** 2 - 0.5 * rng.normal(size=8192) ** 2
    return lambda: arrays.write_log_lik(folder / "t.zarr", axis.region(0, 0, 8192), tensor, record)


def direct_tables(folder: Path) -> Timed:
    """Weighted estimates of all cells and their linearised variances."""
    job, _, records = simulated(20_000, folder)
    crosstab = make_plan(job, None, silent).crosstab
    cells = cross(crosstab, ("field", "sex"), True)

    def timed():
        sums = record_sums(records.row, records.weight, records.outcome, len(crosstab))
        return counts_and_means(sums, crosstab, cells)

    return lambda: [timed() for _ in range(20)]


PATHS = {
    made.__name__: made
    for made in (
        log_likelihood,
        record_bounds,
        privacy_weights,
        weighted_stratum,
        synthesis,
        study_replicate,
        log_likelihood_store,
        direct_tables,
    )
}
