"""Errors of two releases of one reference, drawn together: against products of dense covariances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy
from test_tables import Population, Run, of_file, population, release, released, system_of

from dpdist.core.records import Floats
from dpdist.mechanisms.tables.periods import Estimated, common_history, errors_of_two, learned_from, rescaled_as
from dpdist.mechanisms.tables.posterior import Posterior, errors_of
from dpdist.mechanisms.tables.residual_prior import ResidualPrior

DRAWS = 2_000
TOLERANCE = 5.5 / np.sqrt(DRAWS)
"""Of a correlation by draws: all of some 15,000 within it, but for one set of draws in 1,000."""


def dense(prior: ResidualPrior) -> Floats:
    """Covariance of the prediction's errors and drift of all cells' sums, (cell and coordinate, twice)."""
    cells, numbers = len(prior.size), range(prior.coordinates)
    every = scipy.sparse.eye_array(cells * prior.coordinates).tocsr()
    rows = [scipy.sparse.csr_array(every[:, j :: prior.coordinates]) for j in numbers]
    return prior.with_drift(rows, rows) - by_sample(prior)


def by_sample(prior: ResidualPrior) -> Floats:
    blocks = [[np.diag(prior.diagonal(j, k)) for k in range(prior.coordinates)] for j in range(prior.coordinates)]
    joined = np.array(blocks).transpose(2, 0, 3, 1)
    return joined.reshape(2 * (len(prior.size) * prior.coordinates,))


def gains(of: Posterior, own: int) -> tuple[Floats, Floats]:
    """What the estimates of a release's own sums take of sums, and of errors of observations."""
    cells, coordinates = len(of.prior.size), of.prior.coordinates
    unit = np.eye(cells * coordinates).reshape(cells, coordinates, -1)
    of_sums = of.answers(unit)
    of_noise = of.answers(np.zeros((cells, coordinates, len(of.noise))), np.eye(len(of.noise)))
    return tuple(part[:own].reshape(own * coordinates, -1) for part in (of_sums, of_noise))  # type: ignore[return-value]


def flat(errors: Floats) -> Floats:
    return errors.reshape(-1, errors.shape[2])


def indices(cells: Floats, coordinates: int) -> Floats:
    return (cells[:, None] * coordinates + np.arange(coordinates)).ravel()


def own_release(run: Run, period: str) -> Estimated:
    return Estimated(
        run.posterior, run.system.file.history, replace(run.totals, period=period), run.posterior.prior.drift[-1]
    )


def two(seed: int, epsilon: float, chained: bool) -> tuple[Estimated, Estimated, ResidualPrior]:
    """A later and an earlier release with the law of both files; records of both are independent samples."""
    told: Population = population(seed, records=700)
    first = own_release(release(told, epsilon, seed), "2020")
    system, base = system_of(told._replace(file=told.other), epsilon)
    system = of_file(system, history=(first.totals,)) if chained else system
    last = own_release(released(system, base, told.other, seed + 100), "2021")
    periods = common_history(last, first)
    assert periods is not None
    assert [one.period for one in periods] == ["2020"]
    return last, first, rescaled_as(of_file(system, history=periods).file.prior_of_periods, last, first)


@pytest.mark.parametrize(("seed", "epsilon", "chained"), [(0, 0.2, False), (1, 2.0, True)])
def test_errors_of_two_releases_have_the_covariances_of_the_law(seed: int, epsilon: float, chained: bool) -> None:
    """Variances of both as each release states them, and the covariance between them. Control: independent errors."""
    last, first, prior = two(seed, epsilon, chained)
    assert learned_from(last, first) is chained
    drawn = errors_of_two(last, first, prior, DRAWS, np.random.default_rng(5))
    own, others, coordinates = len(last.totals.count), len(first.totals.count), prior.coordinates
    at = indices(np.arange(own), coordinates), indices(own + np.arange(others), coordinates)
    shared = dense(prior.moving(last.posterior.prior.drift[-1]) if chained else walking(prior, last, first))[np.ix_(*at)]
    (of_last, by_noise), (of_first, noise) = gains(last.posterior, own), gains(first.posterior, others)
    left, right = of_last.copy(), of_first - np.eye(len(of_first))
    left[:, : len(at[0])] -= np.eye(len(at[0]))
    covariance = left[:, : len(at[0])] @ shared @ right.T
    errors = errors_of(first.posterior.noise, first.posterior.clipped)
    variance = right @ dense(first.posterior.prior) @ right.T + noise @ errors @ noise.T
    if chained:
        sample, before = by_sample(first.posterior.prior), left[:, len(at[0]) :]
        covariance += before @ dense(prior.moving(last.posterior.prior.drift[-1]))[np.ix_(at[1], at[1])] @ right.T
        covariance += before @ sample @ of_first.T
        rows = len(last.posterior.noise) - len(first.posterior.noise)
        covariance += by_noise[:, rows:] @ in_order(first, errors) @ noise.T
        variance += of_first @ sample @ of_first.T
    else:
        later = left @ dense(last.posterior.prior) @ left.T
        noise_of_last = errors_of(last.posterior.noise, last.posterior.clipped)
        later += by_noise @ noise_of_last @ by_noise.T
        assert np.allclose(flat(drawn.later).var(axis=1) / np.diag(later), 1.0, atol=0.2)
    assert np.allclose(flat(drawn.earlier).var(axis=1) / np.diag(variance), 1.0, atol=0.2)
    scale = np.sqrt(np.outer(flat(drawn.later).var(axis=1), np.diag(variance)))
    found = (flat(drawn.later) @ flat(drawn.earlier).T) / DRAWS / scale
    assert np.abs(found - covariance / scale).max() <= TOLERANCE
    assert np.abs(covariance / scale).max() > 3.0 * TOLERANCE


def in_order(first: Estimated, errors: Floats) -> Floats:
    """Covariance of errors of totals, by coordinate and table, with errors of a release's rows, by table and coordinate."""
    names = list[tuple[int, int, int]]()
    start = 0
    for ends in (first.totals.row.max(axis=1) + 1).tolist():
        names += [(j, start, cell) for j in range(2) for cell in range(ends - start)]
        start = ends
    order = sorted(range(len(names)), key=lambda k: names[k])
    return errors[order]


def walking(prior: ResidualPrior, last: Estimated, first: Estimated) -> ResidualPrior:
    """The law with the smaller of both drifts since the reference in the first period, and none after it."""
    smaller = np.minimum(*(one.posterior.prior.drift[-1] for one in (last, first)))
    return replace(prior, drift=(smaller, np.zeros_like(smaller)))


@pytest.fixture(scope="module")
def chain() -> tuple[Estimated, Estimated]:
    return two(0, 1.0, chained=True)[:2]


def test_releases_of_other_histories_share_no_error(chain: tuple[Estimated, Estimated]) -> None:
    last, first = chain
    stranger = replace(first.totals, period="1999")
    assert common_history(last, first._replace(history=(stranger,))) is not None, "what the later one does not remember"
    assert common_history(last._replace(history=(stranger,)), first) is None
    changed = replace(first.totals, total=first.totals.total + np.sqrt(first.totals.variance))
    assert common_history(last._replace(history=(changed,)), first) is None, "totals of another release of the period"


def test_totals_with_other_last_digits_are_of_the_same_release(chain: tuple[Estimated, Estimated]) -> None:
    """As other threads or another machine compute them again. Control: totals of the same period with other noise."""
    last, first = chain
    digits = 1.0 + 1e-9 * np.random.default_rng(1).choice([-1.0, 1.0], first.totals.total.shape)
    again = replace(first.totals, total=first.totals.total * digits, variance=first.totals.variance * digits)
    assert common_history(last, first._replace(totals=again)) is not None
    noise = np.sqrt(first.totals.variance) * np.random.default_rng(2).standard_normal(first.totals.total.shape)
    other = replace(first.totals, total=first.totals.total + noise)
    assert common_history(last, first._replace(totals=other)) is None
    wider = replace(first.totals, variance=2.0 * first.totals.variance)
    assert common_history(last, first._replace(totals=wider)) is None
    fewer = replace(first.totals, total=first.totals.total[:, :1], variance=first.totals.variance[:, :1])
    assert common_history(last, first._replace(totals=fewer)) is None, "without the outcome"
