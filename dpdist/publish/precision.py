"""Standard errors of tables from parameters, without a look at the confidential fit (METHODS §6; DESIGN decision 8).

The estimate under θ_1..θ_m errs by three independent parts: the sample's composition over x (public: Taylor variance of
E(w|x) over the frame), the sampling error of the fit (the full-power posterior's variance V), and the released draws'
own spread (V_α/m, V_α the variance of the α-weighted posterior): T = V_x + V + V_α/m, which is V(1 + 1/(a m)) for a draw
of power a. V and V_α come from re-running the whole weight search on one synthetic sample: post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpdist.cells import Cells
from dpdist.estimates import Sums, counts_and_means
from dpdist.keys import Key
from dpdist.models.lognormal import Lognormal
from dpdist.models.protocol import Draws, Improper
from dpdist.privacy.weights import NotReached, Summary, search
from dpdist.publish.released import Release
from dpdist.records import Floats, Records

DRAWS = 400
LARGEST = 4_000
"""Records of a stratum that the search is re-run on; variances of a larger stratum are scaled by this over its n."""
SEARCH_DRAWS = 200
"""Draws of a re-run search at most: the weights, and with them the variances, hardly depend on their number."""


class Spread(NamedTuple):
    """Draws of E(w|x) and E(wy|x) per frame row, (draw, row), centred and scaled to the stratum's n."""

    weight: Floats
    product: Floats


def spreads(release: Release) -> tuple[Spread, Spread]:
    """Draws of the expectations under the full-power and under the α-weighted posterior, for every frame row."""
    target = release.target
    shape = (DRAWS, len(release.frame))
    full, tilted = (Spread(np.empty(shape), np.empty(shape)) for _ in range(2))
    for stratum, label in enumerate(release.frame.stratum_labels):
        own = release.frame.rows_of(stratum)
        key = release.seed.child(f"precision {label}")
        scale, powers = _posteriors(release, stratum, key, target)
        for spread, (model, draws) in zip((full, tilted), powers, strict=True):
            with np.errstate(over="ignore"):
                expected = model.expect(draws)
            for kept, drawn in zip(spread, expected, strict=True):
                centre = np.median(drawn, axis=0)
                kept[:, own] = centre + (drawn - centre) * scale
    return full, tilted


def variances(
    release: Release, cells: Cells, expected: Sequence[tuple[Floats, Floats]], full: Spread, tilted: Spread
) -> tuple[Floats, Floats]:
    """T of counts and of means per cell; `expected` holds E(w|x), E(wy|x) per frame row for every set."""
    frame, sets = release.frame, len(release.sets)
    n = frame.count.astype(float)
    a, b = (np.mean([pair[i] for pair in expected], axis=0) for i in range(2))
    composition = counts_and_means(Sums(n * a, n * b, n * a * a, n * a * b, n * b * b), frame, cells)
    found = []
    for statistic in range(2):
        fit, draw = (_variance(cell_estimates(cells, n, each.weight, each.product)[statistic]) for each in (full, tilted))
        found.append(composition[statistic].variance + fit + draw / sets)
    return found[0], found[1]


def _variance(drawn: Floats) -> Floats:
    """Variance of a normal law with the draws' central 90 % range: the expectations' own tails may have no variance."""
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    return np.asarray(((high - low) / (2.0 * ndtri(0.95))) ** 2)


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats]:
    """Counts Σ n E(w|x) and means Σ n E(wy|x) / Σ n E(w|x) of every cell, (draw, cell)."""
    count = (cells.membership @ (n * weight).T).T
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (cells.membership @ (n * product).T).T / count
    return count, mean


def _posteriors(release: Release, stratum: int, key: Key, target: float) -> tuple[float, list[tuple[Lognormal, Draws]]]:
    """Scale of the spread, and DRAWS draws of the full-power and of the α-weighted posterior on a synthetic sample."""
    frame = release.frame
    own = frame.rows_of(stratum)
    frame_row = np.repeat(np.arange(own.start, own.stop, dtype=np.int32), frame.count[own])
    size = len(frame_row)
    if size > LARGEST:
        frame_row = frame_row[np.linspace(0, size - 1, LARGEST).astype(np.int64)]
    last: Exception | None = None
    for proper in (False, True):
        model = release.model(stratum, proper)
        as_sampled = replace(model, synthesis="fbs")
        outcome, weight = as_sampled.simulate(release.theta(model, stratum, 0), frame_row, key.generator("sample"))
        number = np.arange(len(frame_row), dtype=np.int64)
        records = Records(number, frame_row, outcome, weight, np.full(len(frame_row), -1, dtype=np.int32))
        try:
            powers = [model.statistics(records, np.ones(len(records))), _weighted(release, model, records, key, target)]
            draws = [(model, model.draw(s, DRAWS, key.generator("draws", set=k))) for k, s in enumerate(powers)]
            return float(np.sqrt(len(frame_row) / size)), draws
        except Improper as error:
            last = error
    raise AssertionError("a proper posterior cannot be improper") from last


def _weighted(release: Release, model: Lognormal, records: Records, key: Key, target: float) -> Floats:
    """Statistics of the synthetic sample under the weights that the job's search ends with."""
    steps = search(release.job.mechanism.weights, target)
    step = next(steps)
    alpha = bound = np.ones(len(records))
    unweighted: Floats | None = None
    while True:
        alpha = step(alpha if unweighted is None else unweighted, alpha, bound)
        statistics = model.statistics(records, alpha)
        draws = model.draw(statistics, min(SEARCH_DRAWS, release.job.sampler.draws), key.generator("search"))
        bound = model.extremes(draws, records).bound
        unweighted = bound if unweighted is None else unweighted
        summary = Summary(float((alpha * bound).max()), float(unweighted.max()), float(unweighted.min()))
        try:
            step = steps.send(summary)
        except (StopIteration, NotReached):
            return statistics
