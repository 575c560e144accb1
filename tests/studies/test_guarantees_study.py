"""The shipped study of guarantees: what its table promises, what its negative control exceeds."""

from __future__ import annotations

import pandas as pd
import pytest

from dpdist.core.errors import StudyError
from dpdist.studies.file import load_study, parse_study
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
