"""Clamped posteriors by rejection: the proposal covers the density, and draws follow it; the oracle is a dense grid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.models.beta import Beta
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.protocol import Clamped, Draws
from dpdist.models.public_model import design
from dpdist.sampling import samplers
from dpdist.sampling.samplers import IndependentSampler

KEY = Key(b"tests/sampling/test_rejection")
MODELS = {"beta": (Beta, (0.0, 1.0)), "negative_binomial": (NegativeBinomial, (0.0, 1e9))}
Z_LIMIT = 4.9
"""Two-sided normal tail 1e-6 a figure."""


def model_of(family, size):
    built, bounds = MODELS[family]
    return built(design(Crosstab({}, {}, np.array([size]), (), ()), (), slice(0, 1)), bounds)


def posterior(family, size, law, clamp, alpha=1.0, offset=0.0, seed=1):
    rng = np.random.default_rng(seed)
    if family == "beta":
        y = np.clip(rng.beta(*law, size), 1e-300, 1 - 2.0**-53)
    else:
        y = rng.poisson(law[0] * rng.gamma(law[1], 1 / law[1], size)).astype(float)
    columns = [np.zeros(size), y, np.ones(size), np.broadcast_to(alpha, size), np.broadcast_to(offset, size)]
    return Clamped(np.column_stack(columns), clamp)


CASES = [
    ("beta", 1, (2, 2), 2.5, 1e-5),
    ("beta", 3, (30, 3), 0.5, 1e-5),
    ("beta", 30, (0.5, 3), 0.05, 1e-5),
    ("beta", 300, (0.5, 3), 1.5, 1e-5),
    ("beta", 300, (800, 800), 0.5, 1e-5),
    ("beta", 1000, (0.05, 0.05), 50.0, 1e-5),
    ("negative_binomial", 3, (100, 5), 2.5, 1e-3),
    ("negative_binomial", 300, (100, 5), 0.5, 1e-3),
    ("negative_binomial", 300, (0.3, 0.5), 2.5, 1e-3),
]


@pytest.mark.parametrize(("family", "size", "law", "clamp", "variation"), CASES)
def test_the_proposal_covers_the_density(family, size, law, clamp, variation):
    """Sixteen random points in every square; control: a proposal of a third of the height does not cover it."""
    model, said = model_of(family, size), posterior(family, size, law, clamp)
    squares = samplers.squares_of(model, said)
    records, count = said.distinct()
    assert (squares.side**2).sum() == 1.0
    own = np.repeat(np.arange(len(squares.side)), 16)
    shares = squares.corner[own] + squares.side[own, None] * np.random.default_rng(2).random((len(own), 2))
    density = samplers.log_density(model, records, count, samplers._inside(model, shares))
    area = 2 * np.log(squares.side[own])
    top = (density + area).max()
    mass, cover = np.exp(density + area - top), np.exp(squares.log_height[own] + area - top)
    assert np.maximum(mass - cover, 0).sum() / mass.sum() <= variation <= samplers.VARIATION
    assert np.maximum(mass - cover / 3, 0).sum() / mass.sum() > 0.1
    assert mass.sum() / cover.sum() > 0.2


@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize(("family", "law", "clamp"), [("beta", (0.5, 3), 1.0), ("negative_binomial", (20, 5), 4.0)])
def test_draws_follow_the_density_of_a_much_finer_grid(family, law, clamp, alpha):
    """Shares of draws below quantiles of both coordinates; control: half the clamp does not fit."""
    model, rng = model_of(family, 200), KEY.generator("draws", family)
    said = posterior(family, 200, law, clamp * alpha, alpha, 0.1)
    draws = IndependentSampler(20_000).sample(model, said, rng)
    drawn = coordinates(family, draws)
    centre, spread = drawn.mean(axis=0), drawn.std(axis=0)
    axes = [np.linspace(c - 6 * s, c + 6 * s, 401) for c, s in zip(centre, spread, strict=True)]

    def fits(share_of_clamp):
        records, count = Clamped(said.rows, share_of_clamp * said.clamp).distinct()
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        inside = ((points >= np.array(model.box).T[0]) & (points <= np.array(model.box).T[1])).all(axis=1)
        log_density = np.full(len(points), -np.inf)
        log_density[inside] = samplers.log_density(model, records, count, points[inside])
        density = np.exp(log_density - log_density.max()).reshape(401, 401)
        found = []
        for axis, own, marginal in zip(axes, drawn.T, (density.sum(axis=1), density.sum(axis=0)), strict=True):
            below = np.cumsum(marginal) / marginal.sum() - marginal / marginal.sum() / 2
            for share in (0.1, 0.5, 0.9):
                expected = np.interp(np.interp(share, below, axis), axis, below)
                observed = (own <= np.interp(share, below, axis)).mean()
                found.append(abs(observed - expected) / np.sqrt(expected * (1 - expected) / len(own)))
        return max(found) < Z_LIMIT

    assert fits(1.0)
    assert not fits(0.5)


def coordinates(family, draws):
    if family == "beta":
        return np.column_stack([stats.logistic.ppf(draws["mean"]), np.log(draws["precision"])])
    return np.column_stack([np.log(draws["mean"]), np.log(draws["dispersion"])])


def test_a_clamp_that_never_acts_leaves_the_ordinary_posterior():
    """The grid sampler of sufficient statistics is another algorithm altogether."""
    model, said = model_of("beta", 300), posterior("beta", 300, (2, 3), 1e6, 0.7)
    one = IndependentSampler(20_000).sample(model, said, KEY.generator("clamped"))
    other = IndependentSampler(20_000).sample(model, model.statistics(said.records, said.alpha), KEY.generator("plain"))
    for name in ("mean", "precision"):
        assert stats.ks_2samp(one[name], other[name]).pvalue > 1e-6
        assert stats.ks_2samp(one[name] * 1.05, other[name]).pvalue < 1e-6


def test_records_without_weight_leave_the_prior():
    """α all 0, a clamp of next to nothing, and no difference between records: the prior is drawn from."""
    model = model_of("beta", 50)
    for said in (
        posterior("beta", 50, (2, 3), 1.0, 0.0),
        posterior("beta", 50, (2, 3), 1e-12),
        Clamped(np.empty((0, 5)), 1.0),
    ):
        draws = IndependentSampler(5_000).sample(model, said, KEY.generator("prior"))
        assert stats.kstest(draws["mean"], "uniform").pvalue > 1e-6
        assert stats.kstest(draws["precision"], stats.pareto(1.5, scale=0.1).cdf).pvalue > 1e-6


def test_equal_records_stand_together_and_a_generator_decides_the_draws():
    model, once = model_of("beta", 40), posterior("beta", 40, (2, 3), 0.8, 0.5)
    twice = Clamped(np.repeat(once.rows, 2, axis=0), 0.8)
    rows, count = twice.distinct()
    assert len(rows.rows) == 40
    assert (count == 2).all()
    one, same = (IndependentSampler(50).draw(model, twice, KEY.generator("one")) for _ in range(2))
    assert type(one) is Draws
    assert len(one) == 1
    assert one["mean"] == same["mean"] != IndependentSampler(50).draw(model, once, KEY.generator("one"))["mean"]


def test_an_offset_of_the_record_alone_shifts_what_is_clamped_and_cancels_where_nothing_is():
    """Offsets cancel (METHODS §2): under a clamp that never acts the posterior is the same."""
    model = model_of("beta", 40)
    offsets = np.random.default_rng(5).normal(size=40)
    plain, shifted = posterior("beta", 40, (2, 3), 1e6), posterior("beta", 40, (2, 3), 1e6, 1.0, offsets)
    points = np.random.default_rng(6).normal(size=(30, 2))
    one, other = (samplers.log_density(model, *said.distinct(), points) for said in (plain, shifted))
    np.testing.assert_allclose(one - one[0], other - other[0], atol=1e-9)
    one, other = (samplers.log_density(model, *Clamped(p.rows, 0.5).distinct(), points) for p in (plain, shifted))
    assert not np.allclose(one - one[0], other - other[0], atol=1e-3)
