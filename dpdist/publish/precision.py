"""Standard errors of tables from parameters, without a look at the confidential fit (METHODS §6; DESIGN decision 8).

The estimate under θ_1..θ_m errs by four parts: the sample's composition over x (public: the Taylor variance of E(w|x) over
the frame), the sampling error of the α-weighted fit's centre, the released draws' spread around it (over m), and the bias
that the weights bring by trimming tails: T = V_x + V_c + V_α/m + bias². The last three come from re-running the whole
weight search on one synthetic sample drawn under θ_1, which is post-processing. V_c is the sandwich variance: the fit's
statistics are sums over records, so they are redrawn from their normal limit with the weights held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy.special import ndtri

from dpdist.cells import Cells
from dpdist.estimates import Sums, counts_and_means, stratum_sizes
from dpdist.job import CLAMPED
from dpdist.keys import Key
from dpdist.models.protocol import Draws, Exact, Expectation, Improper, StratumModel, Synthesizer, expected_of
from dpdist.privacy.weights import NotReached, Summary, among, at, search_of
from dpdist.publish.released import Release
from dpdist.raking import Margin, factors, margins_of, raked_counts_and_means
from dpdist.records import Codes, Floats, Records
from dpdist.variances import Stage

DRAWS = 400
LARGEST = 4_000
"""Records of a stratum that the search is re-run on; spreads of a larger stratum are scaled to its own size."""
SMALLEST = 200
"""Records of a frame row that are kept all the same."""
SEARCH_DRAWS = 200
"""Draws of a re-run search at most; F grows slowly with their number (1.71 at 100, 1.79 at 1,000: METHODS §1)."""


@runtime_checkable
class Recentred(StratumModel, Exact, Synthesizer, Expectation, Protocol):
    """A model whose fit can be had in closed form for many redrawn samples at once."""

    def scatter(self, records: Records, alpha: Floats) -> Floats:
        """Covariance of the statistics over samples with the same x and weights, (pattern, statistic, statistic)."""
        ...

    def centre(self, statistics: Floats) -> Draws:
        """Centres of the posteriors of many sets of statistics, (set, pattern, statistic)."""
        ...

    def as_sampled(self) -> Synthesizer:
        """The model that simulates samples as they were observed."""
        ...


@runtime_checkable
class Resampled(StratumModel, Expectation, Protocol):
    """A model whose released parameters can be sampled anew, from records and from noise."""

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Parameters of other samples, without noise."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The same sample's parameters under other noise."""
        ...


class Spread(NamedTuple):
    """Draws of E(w|x) and E(wy|x) per frame row, (draw, row); NaN where a stratum's could not be had."""

    weight: Floats
    product: Floats


class Spreads(NamedTuple):
    """On one synthetic sample: redrawn centres and posterior draws of the weighted fit; centres of both fits (1, row)."""

    centres: Spread
    draws: Spread
    weighted: Spread
    unweighted: Spread


def spreads(release: Release, tick: Callable[[int], None]) -> list[Spreads] | None:
    """Spreads of every outcome's expectations for every frame row, stratum by stratum; None where the model cannot tell
    them. Those of a clamped fit, which has no sufficient statistics, no model can.
    """
    if release.job.mechanism.name in CLAMPED or not isinstance(release.model(0), Recentred | Resampled):
        return None
    rows = len(release.frame)
    found = [
        Spreads(*(Spread(np.full((n, rows), np.nan), np.full((n, rows), np.nan)) for n in (DRAWS, DRAWS, 1, 1)))
        for _ in release.job.model.outcomes
    ]
    for stratum in range(len(release.frame.stratum_labels)):
        own = release.frame.rows_of(stratum)
        with np.errstate(all="ignore"):
            simulated = _simulated(release, stratum)
            told = [simulated] if simulated is not None else _expectations(release, stratum)
            for outcome, of_outcome in zip(found, told, strict=True):
                for spread, expected in zip(outcome, of_outcome, strict=True):
                    spread.weight[:, own], spread.product[:, own] = expected
        tick(1)
    rake = margins_of(release.job, release.frame)
    return [Spreads(*(_raked(spread, release, rake) for spread in each)) for each in found] if rake else found


def _raked(spread: Spread, release: Release, rake: Sequence[Margin]) -> Spread:
    """Every draw raked by itself; those that are not known everywhere stay as they are."""
    known = np.isfinite(spread.weight).all(axis=1)
    factor = np.ones_like(spread.weight)
    factor[known] = factors(release.frame.count * spread.weight[known], rake)
    return Spread(spread.weight * factor, spread.product * factor)


def variances(
    release: Release, cells: Cells, expected: Sequence[tuple[Floats, Floats]], found: Spreads | None
) -> list[Floats]:
    """T of counts, means and totals per cell; `expected` holds E(w|x), E(wy|x) per frame row for every set.

    Without spreads T = V_x + (1 + 1/m) B, with B the variance between the m released draws: the draws spread at least as
    the centre of their fit does over samples. NaN where m = 1.
    """
    frame, sets = release.frame, len(release.sets)
    n = frame.count.astype(float)
    a, b = (np.mean([pair[i] for pair in expected], axis=0) for i in range(2))
    stage = Stage.of(stratum_sizes(frame), lonely=release.job.survey.lonely_record)
    rake, sums = margins_of(release.job, frame), Sums(n * a, n * b, n * a * a, n * a * b, n * b * b)
    raked = bool(rake)
    composition = (
        raked_counts_and_means(sums, frame, cells, rake, stage) if raked else counts_and_means(sums, frame, cells, stage)
    )
    if found is None:
        per_set = cell_estimates(cells, n, *(np.array([pair[i] for pair in expected]) for i in range(2)))
        between = [v.var(axis=0, ddof=1) if sets > 1 else np.full(len(cells), np.nan) for v in per_set]
        return [each.variance + (1.0 + 1.0 / sets) * b for each, b in zip(composition, between, strict=True)]
    figures = [cell_estimates(cells, n, spread.weight, spread.product) for spread in found]
    total = []
    for k in range(len(composition)):
        centres, draws, weighted, unweighted = (figure[k] for figure in figures)
        bias = (weighted - unweighted)[0]
        total.append(composition[k].variance + _variance(centres) + _variance(draws) / sets + bias**2)
    return total


def cell_estimates(cells: Cells, n: Floats, weight: Floats, product: Floats) -> tuple[Floats, Floats, Floats]:
    """Counts Σ n E(w|x), means Σ n E(wy|x) / Σ n E(w|x) and totals Σ n E(wy|x) of every cell, (draw, cell)."""
    with np.errstate(all="ignore"):
        count = (cells.membership @ (n * weight).T).T
        total = (cells.membership @ (n * product).T).T
        return count, total / count, total


def _variance(drawn: Floats) -> Floats:
    """Variance of a normal law with the draws' central 90 % range: the expectations' own tails may have no variance."""
    with np.errstate(all="ignore"):
        low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
        return np.asarray(((high - low) / (2.0 * ndtri(0.95))) ** 2)


def _expectations(release: Release, stratum: int) -> list[list[tuple[Floats, Floats]]]:
    """For every outcome: E(w|x), E(wy|x) under redrawn centres, posterior draws, and the centres of the weighted and the
    unweighted fit."""
    model, own = release.model(stratum), release.frame.rows_of(stratum)
    assert isinstance(model, Recentred)
    key = release.seed.child(f"precision {release.frame.stratum_labels[stratum]}")
    frame_row, shrink = _subsample(release, own)
    outcome, weight = model.as_sampled().simulate(release.theta(model, stratum, 0), frame_row, key.generator("sample"))
    number, outcomes = np.arange(len(frame_row), dtype=np.int64), range(len(release.job.model.outcomes))
    first, others = (outcome, None) if outcome.ndim == 1 else (outcome[:, 0], outcome[:, 1:])
    records = Records(number, frame_row, first, weight, np.full(len(frame_row), -1, dtype=np.int32), others)
    ones = np.ones(len(records))
    try:
        alpha = _weights(release, model, records, key.child("search"))
        weighted = model.statistics(records, alpha)
        centre = model.centre(weighted[None])
        unweighted = model.centre(model.statistics(records, ones)[None])
        redrawn = model.centre(_redrawn(model, records, alpha, key.generator("centres")))
        drawn = model.draw(weighted, DRAWS, key.generator("draws"))
    except (Improper, np.linalg.LinAlgError):
        missing = np.full((1, own.stop - own.start), np.nan)
        return [[(missing, missing)] * 4 for _ in outcomes]

    def scaled(values: Floats, about: Floats) -> Floats:
        return about + (values - about) * shrink

    found = []
    for j in outcomes:
        told = [expected_of(model, theta, j) for theta in (redrawn, drawn, centre, unweighted)]
        weights, products = told[2]
        shrunk = [(scaled(w, weights), scaled(wy, products)) for w, wy in told[:2]]
        found.append([*shrunk, *told[2:]])
    return found


def _simulated(release: Release, stratum: int) -> list[tuple[Floats, Floats]] | None:
    """The same of a model that is sampled anew as it was released; None of another."""
    model, label = release.model(stratum), release.frame.stratum_labels[stratum]
    if not isinstance(model, Resampled):
        return None
    theta, n = release.theta(model, stratum, 0), int(release.frame.stratum_count[stratum])
    key = release.seed.child(f"precision {label}")
    centre = model.expect(theta)
    redrawn = model.expect(model.resampled(theta, n, DRAWS, key.generator("centres")))
    drawn = model.expect(model.noised_again(theta, n, DRAWS, key.generator("draws")))
    return [redrawn, drawn, centre, centre]


def _subsample(release: Release, own: slice) -> tuple[Codes, Floats]:
    """Frame rows of the synthetic sample, and √(kept/own) records per frame row, by which its spreads are shrunk."""
    count = release.frame.count[own]
    share = min(1.0, LARGEST / float(count.sum()))
    kept = np.maximum(np.minimum(count, SMALLEST), np.round(count * share)).astype(np.int64)
    rows = np.repeat(np.arange(own.start, own.stop, dtype=np.int32), kept)
    return rows, np.sqrt(kept / count)


def _weights(release: Release, model: Recentred, records: Records, key: Key) -> Floats:
    """Privacy weights of the synthetic sample that the job's search ends with, its last ones if it misses the target."""
    aim = release.job.mechanism.aim if release.job.frozen else 1.0
    steps = search_of(release.job.mechanism, aim * release.target)
    step = next(steps)
    alpha = bound = np.ones(len(records))
    unweighted: Floats | None = None
    while True:
        told = at(among(step, np.sort(records.outcome)), records.outcome)
        alpha = told(alpha if unweighted is None else unweighted, alpha, bound)
        statistics = model.statistics(records, alpha)
        draws = model.draw(statistics, min(SEARCH_DRAWS, release.job.sampler.draws), key.generator("posterior"))
        bound = model.extremes(draws, records).bound
        unweighted = bound if unweighted is None else unweighted
        summary = Summary(float((alpha * bound).max()), float(unweighted.max()), float(unweighted.min()))
        try:
            step = steps.send(summary)
        except (StopIteration, NotReached):
            return alpha


def _redrawn(model: Recentred, records: Records, alpha: Floats, rng: np.random.Generator) -> Floats:
    """The weighted statistics as they would vary over samples with the same x, (DRAWS, pattern, statistic)."""
    statistics = model.statistics(records, alpha)
    noise = rng.standard_normal((DRAWS, *statistics.shape))
    for pattern, covariance in enumerate(model.scatter(records, alpha)):
        values, vectors = np.linalg.eigh(covariance)
        noise[:, pattern] = noise[:, pattern] @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return statistics + noise
