"""Exact losses on finite spaces are those of files written out; test_guarantees_study.py has what they show."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from dpdist.studies.kinds.guarantees import clamped, databases, random_space, worst_loss

SPACES = [random_space(3, 4, np.random.default_rng(seed)) for seed in range(4)]
ROUNDING = 1e-9


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
    for space in SPACES:
        factors = np.clip(space.log_density, -0.5, 0.5)
        found = worst_loss(space, clamped(space.log_density, 0.5), 3, neighbours)
        assert found == pytest.approx(loss_by_hand(space, factors, 3, neighbours), rel=1e-12)


def test_every_file_and_every_pair_of_neighbours_is_there_once():
    zero_out, substitution = databases(3, 4, "zero_out"), databases(3, 4, "substitution")
    assert len(zero_out.counts) == 35  # multisets of 0 to 4 records of 3 values
    assert len(substitution.counts) == 15
    assert len({tuple(pair) for pair in zero_out.pairs}) == len(zero_out.pairs) == 60
    assert len({frozenset(pair) for pair in substitution.pairs.tolist()}) == len(substitution.pairs) == 30


def test_of_probabilities_a_clamp_costs_half():
    """log p ≤ 0: the factors lie in [−M, 0]."""
    space = random_space(3, 4, np.random.default_rng(0))
    log_probability = np.minimum(space.log_density, 0.0)
    assert worst_loss(space, clamped(log_probability, 0.5), 4, "zero_out") <= 0.5 + ROUNDING
