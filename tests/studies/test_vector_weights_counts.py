"""[V]'s studies of counts beside METHODS §4's figures: mean bounds (R = 100, n = 1000) and the table of intervals.

Tolerances: four Monte Carlo standard errors of the difference between our mean over R = 8 and the oracle's over 100, from
standard deviations between replicates measured over R = 100. [V]'s intervals are those of one file: they must lie within
four standard deviations of our files' intervals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpdist.studies.kinds import load_study
from dpdist.studies.run import run

pytestmark = pytest.mark.long

BOUNDS = {
    ("poisson", "unweighted"): (9.5, 1.3),
    ("poisson", "LW"): (3.64, 0.25),
    ("poisson", "LW_final"): (3.5, 0.25),
    ("nb", "unweighted"): (15.5, 3.0),
    ("nb", "LW"): (5.9, 0.8),
    ("nb", "LW_final"): (5.8, 0.75),
}
"""Mean Δ of the oracle, and our standard deviation between replicates."""
INTERVALS = {
    "data": {"q15": (70.0, 75.0), "q90": (132.0, 140.0), "mean": (98.8, 102.3), "median": (96.0, 101.0)},
    "LW": {"q15": (70.0, 74.3), "q90": (132.1, 139.0), "mean": (98.0, 101.4), "median": (95.6, 99.7)},
    "CW": {"q15": (77.2, 80.8), "q90": (128.5, 134.0), "mean": (100.6, 103.3), "median": (98.7, 102.4)},
    "CW_final": {"q15": (71.6, 75.8), "q90": (131.0, 137.7), "mean": (98.6, 101.8), "median": (96.1, 100.1)},
    "LW_final": {"q15": (70.6, 74.8), "q90": (133.1, 140.3), "mean": (98.7, 102.0), "median": (96.0, 100.0)},
}
"""[V], appendix, table 1: negative binomial mixture, n = 1000."""
REPLICATES = 8


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    study = load_study("vector_weights_counts")
    runtime = study.runtime.model_copy(update={"executor": "serial"})
    small = study.model_copy(update={"figures": (), "beside": (), "runtime": runtime})
    folder = run(small, tmp_path_factory.mktemp("counts") / "out", replicates=REPLICATES)
    return pd.read_parquet(folder / "replicates.parquet").set_index(["case", "mechanism", "measure"]).sort_index().value


@pytest.mark.parametrize(("which", "oracle"), BOUNDS.items(), ids=lambda x: "-".join(map(str, x)))
def test_mean_bounds_agree_with_the_oracle(found, which, oracle):
    mean, sd = oracle
    close = 4 * sd * np.sqrt(1 / REPLICATES + 1 / 100)
    assert found[(*which, "database_bound")].mean() == pytest.approx(mean, abs=close)


def test_a_scalar_weight_that_reaches_the_same_bound_is_about_three_eighths(found):
    """[V]: around .375 for Poisson."""
    assert found["poisson", "SW", "privacy_weight"].mean() == pytest.approx(0.375, abs=0.03)
    apart = found["poisson", "SW", "database_bound"].to_numpy() / found["poisson", "LW", "database_bound"].to_numpy()
    assert apart == pytest.approx(np.ones(REPLICATES), abs=0.01)


@pytest.mark.parametrize("mechanism", INTERVALS)
def test_the_published_intervals_could_be_those_of_one_of_our_files(found, mechanism):
    for measure, published in INTERVALS[mechanism].items():
        for end, value in zip(("_lower", "_upper"), published, strict=True):
            ours = found["nb", mechanism, measure + end]
            assert value == pytest.approx(ours.mean(), abs=4 * max(ours.std(), 0.25)), (measure, end)


def test_isolation_weights_pull_both_tails_in_and_re_weighting_undoes_most_of_it(found):
    """[V] §3.2 and §4.2, on the same files; CW and LW have about the same bound."""
    q15, q90, mean = (
        {m: found["nb", m, q].mean() for m in ("LW", "CW", "CW_final", "data")} for q in ("q15", "q90", "mean")
    )
    assert q15["CW"] > q15["data"] + 3 > q15["LW"] + 2
    assert q90["CW"] < q90["data"] - 3
    assert mean["CW"] > mean["LW"]
    assert abs(q15["CW_final"] - q15["data"]) < abs(q15["CW"] - q15["data"]) / 2
    bounds = {m: found["nb", m, "database_bound"].mean() for m in ("LW", "CW")}
    assert bounds["CW"] == pytest.approx(bounds["LW"], rel=0.1)


def test_bounds_rise_with_n_while_the_cost_of_a_record_falls(found):
    """METHODS §3: what contracts with n is the range of a record's log likelihood, not max |f|."""
    for law in ("poisson", "nb"):
        for mechanism in ("unweighted", "LW"):
            small, large = (found[f"{law}_{n}", mechanism, "database_bound"].mean() for n in (250, 16000))
            assert small < large
            small, large = (found[f"{law}_{n}", mechanism, "epsilon_local_range"].mean() for n in (250, 16000))
            assert large < small / 3
