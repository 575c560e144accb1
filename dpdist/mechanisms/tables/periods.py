"""Joint draws of the errors of two `tables` releases with one reference, from which the error of a change follows.

A release P estimates residual sums z_P = n e + d_P + s_P: e is the error of the reference's prediction per record, d_P the
drift since the reference, and s_P the sampling error of the records. With rows M_P, errors of observations η_P and the
linear estimate G_P, the error about the population is

    (G_P M_P − I)(n e + d_P) + G_P (M_P s_P + η_P).

- e is the same in both releases.
- Drift is a random walk (`posterior`): the periods share the drift up to the earlier of the two. Where each release
  learned its own size since one reference, they share the smaller one. Estimates G_P have typical sizes of drift. Where
  noise hides drift, estimates follow the reference, and a change errs by what was hidden: so d_P has root mean square sizes
  (`mean_square_drift`), which are larger there.
- If the later release learned from the totals of the earlier one, s_P and η_P of the earlier release are errors of both.
- Records are taken to be of independent samples. People in both samples correlate errors further, and no file tells how
  many there are; where this correlation is positive, the error of the change is overstated.

So cov(later, earlier) = (G M − I) cov(n e + d, n' e + d') (G' M' − I)ᵀ for two releases of one reference. Draws of e, d, s
and η go through both estimates. `tests/mechanisms/test_periods_of_tables.py` compares them with this product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpdist.core.records import Floats, Ints
from dpdist.estimation.donors import PeriodTotals
from dpdist.mechanisms.tables.posterior import Posterior
from dpdist.mechanisms.tables.residual_prior import ResidualPrior


class Estimated(NamedTuple):
    """The posterior of a release, totals of the periods that it learned from, and its own."""

    posterior: Posterior
    history: tuple[PeriodTotals, ...]
    totals: PeriodTotals
    drift: Floats
    """Root mean square sizes of drift since the period before, (family, coordinate)."""


class ErrorsOfTwo(NamedTuple):
    """Errors of base cells' residual sums of both releases, (cell, 1 + outcome, draw).

    Those of `earlier` have the error of its sample if the later release learned from its totals.
    """

    later: Floats
    earlier: Floats


ERRORS_APART = 0.1
"""Largest difference of the same totals: relative to their standard errors, and of variances relative to these."""
ROUNDING = 1e-9
"""Largest relative difference of totals without noise."""


def common_history(later: Estimated, earlier: Estimated) -> tuple[PeriodTotals, ...] | None:
    """Periods since the reference up to the later release, among them the earlier one; None if the releases have no such
    history in common.
    """
    of_later, of_earlier = ([totals.period for totals in release.history] for release in (later, earlier))
    if learned_from(later, earlier):
        further = later.history[of_later.index(earlier.totals.period) + 1 :]
        periods = (*earlier.history, earlier.totals, *further)
    elif of_later == of_earlier:
        periods = (*earlier.history, earlier.totals)
    else:
        return None
    by_period = {totals.period: totals for totals in periods}
    shared = all(totals.period in by_period and _same(totals, by_period[totals.period]) for totals in later.history)
    return periods if shared else None


def learned_from(later: Estimated, earlier: Estimated) -> bool:
    return any(totals.period == earlier.totals.period for totals in later.history)


def _same(totals: PeriodTotals, other: PeriodTotals) -> bool:
    """Whether totals are the same; the first remembered period counts those before it, too."""
    if not all(np.array_equal(getattr(totals, name), getattr(other, name)) for name in ("codes", "row")):
        return False
    if totals.total.shape != other.total.shape:
        return False
    # Totals are computed again from the release, and their last digits depend on threads and on the machine. Totals with
    # other noise differ by whole standard errors.
    apart = ERRORS_APART * np.sqrt(other.variance) + ROUNDING * np.abs(other.total)
    same_totals = np.abs(totals.total - other.total) <= apart
    return bool(np.all(same_totals) and np.allclose(totals.variance, other.variance, rtol=ERRORS_APART, atol=0.0))


def errors_of_two(
    later: Estimated, earlier: Estimated, prior: ResidualPrior, draws: int, rng: np.random.Generator
) -> ErrorsOfTwo:
    """`prior` is the law of the later release's file and of all periods of `common_history`."""
    periods, prior = common_history(later, earlier), rescaled_as(prior, later, earlier)
    assert periods is not None
    chained = learned_from(later, earlier)
    number = len(later.totals.count)
    ends = np.cumsum([number, *(len(totals.count) for totals in periods)])
    places = {totals.period: np.arange(*ends[k : k + 2]) for k, totals in enumerate(periods)}
    last, place = later.drift, len(earlier.history)
    common = earlier.drift if chained else np.minimum(later.posterior.prior.drift[-1], earlier.posterior.prior.drift[-1])
    drift = list(prior.moving(later.posterior.prior.drift[-1]).drift)
    drift[place], drift[-1] = common, last if chained else _less(last, common)
    prior = replace(prior, drift=tuple(drift))
    deviated, sampled = prior.deviated(draws, rng), prior.sampled(draws, rng)
    if not chained:
        alone = _less(earlier.drift, common)
        deviated[places[earlier.totals.period]] += _drifted(earlier.posterior.prior, alone, draws, rng)
    sampled[:number] = 0.0
    of_file = earlier.posterior.prior.sampled(draws, rng)[: len(earlier.totals.count)]
    sampled[places[earlier.totals.period]] = of_file if chained else 0.0

    noise = {totals.period: _noise(totals, earlier.posterior, draws, rng) for totals in periods}
    of_own = earlier.posterior.disturbed(rng.standard_normal((len(earlier.posterior.noise), draws)), rng)
    of_own = of_own[: len(of_own) - sum(len(noise[totals.period]) for totals in earlier.history)]
    noise[earlier.totals.period] = of_own[_as_totals(earlier.totals, len(of_own))]
    errors = []
    for release, at in ((later, np.arange(number)), (earlier, places[earlier.totals.period])):
        here = np.concatenate([at, *(places[totals.period] for totals in release.history)])
        before = [noise[totals.period] for totals in release.history]
        if release is earlier:
            observed = np.concatenate([of_own, *before])
        else:
            observed = release.posterior.disturbed(rng.standard_normal((len(release.posterior.noise), draws)), rng)
            first = len(observed) - sum(map(len, before))
            observed = np.concatenate([observed[:first], *before])
        z = deviated[here] + sampled[here]
        errors.append(release.posterior.answers(z, observed)[: len(at)] - deviated[at])
    return ErrorsOfTwo(*errors)


def rescaled_as(prior: ResidualPrior, later: Estimated, earlier: Estimated) -> ResidualPrior:
    """The law of both releases' files, and of periods between, where records of both vary as each release has it."""
    number, before = len(later.totals.count), sum(len(totals.count) for totals in earlier.history)
    assert prior.earlier is not None
    factor, spread, raised = prior.factors_of_cells.copy(), prior.earlier.spread.copy(), np.ones_like(prior.earlier.spread)
    for release, first in ((later, 0), (earlier, number + before)):
        cells = len(release.totals.count)
        factor[first : first + cells] = release.posterior.prior.factors_of_cells[:cells]
        spread[first : first + cells] = release.posterior.prior.spread[:cells]
        raised[first : first + cells] = np.broadcast_to(
            release.posterior.prior.raised, release.posterior.prior.spread.shape
        )[:cells]
    return replace(prior, factor=factor, raised=raised, earlier=prior.earlier._replace(spread=spread))


def _less(drift: Floats, common: Floats) -> Floats:
    return np.sqrt(np.maximum(drift**2 - common**2, 0.0))


def _drifted(prior: ResidualPrior, drift: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Draws of drift of these sizes in the last period of a release, of the file's cells, (cell, 1 + outcome, draw)."""
    last = len(prior.since)
    columns = [prior.drifted(j, last, sizes[prior.families], draws, rng) for j, sizes in enumerate(drift.T)]
    return np.stack(columns, axis=1)[: prior.cells_of_file]


def _noise(totals: PeriodTotals, posterior: Posterior, draws: int, rng: np.random.Generator) -> Floats:
    """Draws of errors of a period's totals, in the order of rows in which a later release has them, (row, draw)."""
    first = int(posterior.prior.prediction.weights_known)
    variance = totals.variance[:, first:].T.ravel()
    return np.asarray(np.sqrt(variance)[:, None] * rng.standard_normal((len(variance), draws)))


def _as_totals(totals: PeriodTotals, rows: int) -> Ints:
    """Where a release's own rows, by table and coordinate, stand in the order of its totals, by coordinate and table."""
    ends = [0, *(totals.row.max(axis=1) + 1).tolist()]
    coordinates = rows // ends[-1]
    places: Sequence[Ints] = [
        coordinates * start + j * (end - start) + np.arange(end - start)
        for j in range(coordinates)
        for start, end in pairwise(ends)
    ]
    return np.concatenate(places)
