"""The study of guarantees: exact losses on finite spaces are those of files written out; what its page promises."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp

from dpdist.core.errors import StudyError
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.kinds.guarantees import clamped, databases, random_space, worst_loss
from dpdist.studies.run import run

KEPT = ("censor_uw", "censor_w_reference", "centred", "censor_uw_quarter")
ROUNDING = 1e-9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(load_study("guarantees"), tmp_path_factory.mktemp("guarantees") / "out", replicates=8)


@pytest.fixture(scope="module")
def losses(folder):
    return pd.read_parquet(folder / "replicates.parquet").groupby(["mechanism", "case"]).value


def test_promises_are_kept_and_nearly_attained(losses):
    worst = losses.max()
    for name in KEPT:
        assert (worst[name] <= 1 + ROUNDING).all()
        assert worst[name]["random"] > 0.9


def test_the_constants_are_attained_on_two_points(losses):
    for name, constant in [("censor_uw", 1), ("censor_uw_quarter", 1), ("censor_uw_substitution", 2), ("wrong_clamp", 1.1)]:
        assert losses.min()[name, "two_point"] == pytest.approx(constant, abs=1e-6)


def test_what_promises_nothing_exceeds_and_grows_with_n(losses):
    worst = losses.max()
    assert worst["wrong_clamp", "random"] > 1
    assert worst["censor_uw_substitution", "random"] > 1.5
    current = worst["censor_w_current"]
    assert current["random"] + 2 < current["random_n8"] < current["random_n12"] - 2


def test_the_summary_names_the_case_last_where_there_are_several(folder):
    assert list(pd.read_csv(folder / "summary.csv").columns)[-1] == "case"


def test_a_misspelt_key_of_a_study_of_guarantees_is_told():
    with pytest.raises(StudyError, match="did you mean 'neighbours'"):
        parse_study(
            "kind: guarantees\nstudy: x\ntitle: x\nseed: 1\nreplicates: 1\nepsilons: [1]\n"
            "cases: [{name: a, space: two_point, n: 2}]\n"
            'mechanisms: [{label: a, clamp: "1/2", neighbors: substitution}]\n'
        )


SPACES = [random_space(3, 4, np.random.default_rng(seed)) for seed in range(4)]


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
