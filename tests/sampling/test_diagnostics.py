"""Diagnostics: what ArviZ says of each scalar, the worst of it, and sentences where a policy is missed."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from dpdist.job import Diagnostics
from dpdist.sampling.markov import diagnose
from dpdist.sampling.stan import Chains

STRICT = Diagnostics(rhat=1.01, ess=400.0, ebfmi=0.3, divergences=0.0, treedepth_hits=0.0)


def independent(**changes):
    rng = np.random.default_rng(1)
    shape = (4, 1000)
    chains = Chains(
        {"mu": rng.normal(size=shape), "beta": rng.normal(size=(*shape, 2, 3))},
        lp=rng.normal(size=shape),
        energy=rng.normal(size=shape),
        divergent=np.zeros(shape, dtype=bool),
        treedepth=np.full(shape, 3),
    )
    return dataclasses.replace(chains, **changes)


def test_the_worst_is_the_worst_that_arviz_finds(chains):
    import arviz as az  # takes long, for few tests

    names = ("mu", "z")
    found, data = diagnose(chains, names), az.convert_to_dataset({name: chains.draws[name] for name in names})
    assert found.worst_rhat == pytest.approx(float(az.rhat(data).to_array().max()))
    assert found.min_ess_bulk == pytest.approx(float(az.ess(data, method="bulk").to_array().min()))
    assert found.min_ess_tail == pytest.approx(float(az.ess(data, method="tail").to_array().min()))
    assert found.min_ebfmi == pytest.approx(az.bfmi(chains.energy).min())


def test_a_good_fit_has_no_problem(chains):
    assert diagnose(chains, ("mu", "z", "R")).problems(STRICT) == []


def test_constant_entries_have_no_diagnostics_and_do_no_harm(chains):
    assert diagnose(chains, ("mu", "R")).worst_rhat_of in {"mu", "R[1,2]", "R[2,1]"}
    still = diagnose(independent(draws={"rho": np.ones((4, 1000))}, energy=np.ones((4, 1000))))
    assert (still.worst_rhat, still.min_ess_bulk, still.min_ess_tail, still.min_ebfmi) == (None,) * 4
    assert still.problems(STRICT) == []


def test_chains_that_disagree_are_named():
    apart = independent()
    apart.draws["beta"][0, :, 1, 2] += 3
    found = diagnose(apart)
    assert found.worst_rhat_of == "beta[2,3]"
    assert [problem.partition(" is ")[0] for problem in found.problems(STRICT)] == [
        "R-hat of beta[2,3]",
        "bulk ESS",
        "tail ESS",
    ]


def test_divergences_depth_energy_and_nonsense_are_told():
    rng = np.random.default_rng(2)
    found = diagnose(
        independent(
            draws={"mu": np.where(np.arange(1000) == 5, np.nan, rng.normal(size=(4, 1000)))},
            divergent=np.arange(4000).reshape(4, 1000) < 3,
            treedepth=np.where(np.arange(1000) < 2, 10, 3) + np.zeros((4, 1), dtype=int),
            energy=np.cumsum(rng.normal(size=(4, 1000)), axis=1),
        )
    )
    assert (found.divergences, found.treedepth_hits, found.not_finite) == (3, 8, 1)
    said = "\n".join(found.problems(STRICT))
    for part in ("not finite", "3 of 4000 draws diverged", "8 of 4000 draws reached", "E-BFMI"):
        assert part in said
    assert len(found.problems(STRICT.model_copy(update={"divergences": 0.01, "treedepth_hits": 0.01}))) == 2


@pytest.mark.parametrize("shape", [(1, 1000), (4, 3), (1, 1)])
def test_few_chains_or_draws_give_none_where_nothing_can_be_said(shape):
    rng = np.random.default_rng(3)
    few = Chains({"mu": rng.normal(size=shape)}, *rng.normal(size=(2, *shape)), np.zeros(shape, bool), np.ones(shape, int))
    assert diagnose(few).worst_rhat is None


def test_they_are_plain_json():
    assert json.loads(json.dumps(dataclasses.asdict(diagnose(independent()))))["chains"] == 4
