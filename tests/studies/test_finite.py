"""Exact losses on finite spaces: constants that are attained, and three mistakes that they show."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from dpdist.studies.kinds.guarantees import clamped, databases, learned, linear, random_space, two_point_space, worst_loss

EPSILON = 1.0
SPACES = [random_space(3, 4, np.random.default_rng(seed)) for seed in range(40)]
ROUNDING = 1e-9


def losses(make, neighbours, n=3, spaces=SPACES):
    return np.array([worst_loss(space, make(space), n, neighbours) for space in spaces]) / EPSILON


def clamp_to(share):
    return lambda space: clamped(space.log_density, share * EPSILON)


def loss_by_hand(space, factors, n, neighbours):
    """Files as ordered tuples of values, one θ at a time."""
    values, parameters = range(len(space.log_density)), range(len(space.log_prior))

    def posterior(file):
        logs = np.array([space.log_prior[t] + sum(factors[z, t] for z in file) for t in parameters])
        return logs - logsumexp(logs)

    worst = 0.0
    for size in range(1, n + 1) if neighbours == "zero_out" else [n]:
        for file in product(values, repeat=size):
            others = [file[1:]] if neighbours == "zero_out" else [(z, *file[1:]) for z in values]
            worst = max(worst, *(np.abs(posterior(file) - posterior(other)).max() for other in others))
    return worst


@pytest.mark.parametrize("neighbours", ["zero_out", "substitution"])
def test_the_loss_is_that_of_files_written_out_record_by_record(neighbours):
    for space in SPACES[:4]:
        factors = np.clip(space.log_density, -0.5, 0.5)
        found = worst_loss(space, clamped(space.log_density, 0.5), 3, neighbours)
        assert found == pytest.approx(loss_by_hand(space, factors, 3, neighbours), rel=1e-12)


def test_every_file_and_every_pair_of_neighbours_is_there_once():
    zero_out, substitution = databases(3, 4, "zero_out"), databases(3, 4, "substitution")
    assert len(zero_out.counts) == 35  # multisets of 0 to 4 records of 3 values
    assert len(substitution.counts) == 15
    assert len({tuple(pair) for pair in zero_out.pairs}) == len(zero_out.pairs) == 60
    assert len({frozenset(pair) for pair in substitution.pairs.tolist()}) == len(substitution.pairs) == 30


def test_a_clamp_to_half_epsilon_keeps_epsilon_where_a_record_is_switched_off_and_attains_it():
    found = losses(clamp_to(0.5), "zero_out")
    assert found.max() <= 1.0 + ROUNDING
    assert found.max() > 0.95
    assert losses(clamp_to(0.5), "zero_out", spaces=[two_point_space()])[0] == pytest.approx(1.0, abs=1e-6)


def test_against_substitution_the_same_clamp_costs_twice_epsilon_and_a_quarter_keeps_it():
    found = losses(clamp_to(0.5), "substitution")
    assert 1.5 < found.max() <= 2.0 + ROUNDING
    assert losses(clamp_to(0.5), "substitution", spaces=[two_point_space()])[0] == pytest.approx(2.0, abs=1e-6)
    quarter = losses(clamp_to(0.25), "substitution")
    assert quarter.max() <= 1.0 + ROUNDING
    assert losses(clamp_to(0.25), "substitution", spaces=[two_point_space()])[0] == pytest.approx(1.0, abs=1e-6)


def test_an_offset_that_is_fixed_in_advance_costs_nothing():
    centred = losses(lambda space: clamped(space.log_density - space.log_density[:, :1], 0.5 * EPSILON), "zero_out")
    assert 0.95 < centred.max() <= 1.0 + ROUNDING


def test_weights_fixed_in_advance_keep_epsilon_and_weights_learned_on_the_file_keep_nothing():
    """Why a censored mechanism with weights of the file at hand is not strict: the loss grows with n."""

    def fixed(space):
        bound = np.abs(space.log_density).max(axis=1)
        return clamped(linear(bound, bound)[:, None] * space.log_density, 0.5 * EPSILON)

    assert losses(fixed, "zero_out").max() <= 1.0 + ROUNDING
    worst = [losses(lambda space: learned(space, 0.5 * EPSILON), "zero_out", n).max() for n in (2, 4, 8)]
    assert worst[0] > 1.5
    assert worst[1] > worst[0] + 1.0
    assert worst[2] > worst[1] + 2.0


def test_a_clamp_that_is_a_tenth_too_wide_is_noticed():
    assert losses(clamp_to(0.55), "zero_out").max() > 1.05


def test_of_probabilities_a_clamp_costs_half():
    """log p ≤ 0: the factors lie in [−M, 0]."""
    space = random_space(3, 4, np.random.default_rng(0))
    log_probability = np.minimum(space.log_density, 0.0)
    assert worst_loss(space, clamped(log_probability, 0.5), 4, "zero_out") <= 0.5 + ROUNDING


def test_an_offset_learned_on_the_file_itself_breaks_the_bound():
    """Centred at the file's own best θ, which one record decides here, all n records move: the control of METHODS §4b."""
    pair = np.array([[0.0, -1.0, -0.9], [-1.0, 0.0, -3.0]])
    records = np.vstack([np.tile(pair, (40, 1)), pair[1]])

    def loss(*centres):
        logs = [
            np.clip(f - f[:, [c]], -0.5, 0.5).sum(axis=0) for f, c in zip((records, records[:-1]), centres, strict=True)
        ]
        one, other = (log - logsumexp(log) for log in logs)
        return np.abs(one - other).max()

    assert loss(*(int(f.sum(axis=0).argmax()) for f in (records, records[:-1]))) > 10.0
    assert max(loss(centre, centre) for centre in range(3)) <= 1.0
