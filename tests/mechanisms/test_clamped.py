"""The clamped form in memory: its rounds, its by-products, blocks, and records or jobs at the edge of what is defined."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaincinv, betaln

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.engine.protocol import run_rounds
from dpdist.job import Job
from dpdist.mechanisms.pseudo_posterior.on_reference import KAPPA, Centre, power
from dpdist.mechanisms.pseudo_posterior.query import CentredMechanism, WeightedMechanism
from dpdist.mechanisms.pseudo_posterior.tilted import Censor
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.beta import Beta
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.protocol import Draws, Extremes
from dpdist.privacy.guarantees import Asymptotic, NoGuarantee, Strict
from dpdist.privacy.weights import NotReached
from dpdist.sampling import sampler_of

KEY = Key(b"tests/mechanisms/test_clamped")
BUILT = {"beta": Beta, "negative_binomial": NegativeBinomial}


def job(name, epsilon="4", family="beta", adjacency="zero_out", sets=1, **mechanism):
    return Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {"y": {"bounds": [0, 1] if family == "beta" else [0, 1e6]}},
            "outcome": "y",
            "model": {"family": family},
            "mechanism": {"name": name, **mechanism},
            "budget": {"epsilon": epsilon, "adjacency": adjacency},
            "synthetic_sets": sets,
            "sampler": {"name": "grid", "draws": 200},
            "tables": [{"name": "t", "statistics": ["count"]}],
        }
    )


class Notes:
    """Keeps what is handed over, as it was handed over."""

    wants_log_lik = False

    def __init__(self):
        self.received = []

    def posterior(self, fit, draws):
        self.received.append((fit, draws))

    def summary(self, values):
        self.received.append(("summary", values))

    def bounds(self, columns):
        self.received.append(("bounds", columns))

    def log_lik(self, values):
        raise AssertionError

    def __getitem__(self, name):
        return dict(self.received)[name].disclose_to_custodian()


def run(said, y, mechanism=None, edges=None, key=KEY, learned=None):
    """Released parameters and what the stratum and its blocks handed over."""
    y, edges = np.asarray(y, dtype=float), edges or [0, len(y)]
    model = BUILT[said.family].build(said, Crosstab({}, {}, np.array([len(y)]), (), ()), slice(0, 1))
    records = Records.of_outcomes(y)
    blocks = [records.part(a, b) for a, b in pairwise(edges)]
    notes, own = Notes(), [Notes() for _ in blocks]
    rounds = (mechanism or MECHANISMS[said.mechanism.name]).protect(said, model, notes, learned)
    released = run_rounds(rounds, model, sampler_of(said, Path("unused")), key, "all", blocks, own)
    return released.parameters, notes, own


def shares(size=400, seed=0, law=(0.5, 3)):
    return np.clip(np.random.default_rng(seed).beta(*law, size), 1e-300, 1 - 2.0**-53)


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
@pytest.mark.parametrize("name", ["censor_uw", "censor_w"])
def test_every_record_is_within_the_clamp_of_the_adjacency(name, adjacency):
    _, notes, own = run(job(name, adjacency=adjacency), shares())
    clamp = 1.0 if adjacency == "substitution" else 2.0
    bounds = own[0]["bounds"]
    assert notes["summary"]["database_bound"] == bounds["weighted_record_bound"].max() == pytest.approx(clamp)
    over = bounds["privacy_weight"] * bounds["record_bound"] > clamp
    assert notes["summary"]["diagnostics"]["records_censored"] == over.sum() > 0


def test_the_weights_of_censor_w_are_linear_and_re_weighted():
    """Recomputed from the recorded fits (METHODS §4): LW with c = 1 from fit 0, then min(1, .95 α Δ/Δ_i) from fit 1."""
    y = shares()
    _, notes, own = run(job("censor_w"), y)
    terms = np.column_stack([np.ones(len(y)), np.log(y), np.log1p(-y)])

    def bound(draws):
        a, b = draws["mean"] * draws["precision"], (1 - draws["mean"]) * draws["precision"]
        return np.abs(np.column_stack([-betaln(a, b), a - 1, b - 1]) @ terms.T).max(axis=0)

    first, second = bound(notes["unweighted"]), bound(notes["weighting"])
    linear = 1 - (first - first.min()) / (first.max() - first.min())
    delta = (linear * second).max()
    expected = np.where(linear > 0, np.minimum(1, 0.95 * linear * delta / np.where(linear > 0, linear * second, 1)), 0)
    np.testing.assert_allclose(own[0]["bounds"]["privacy_weight"], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["censor_uw", "censor_w", "weighted_e"])
def test_blocks_change_nothing_but_rounding_and_a_key_decides_all(name):
    said, y = job(name, epsilon="6", sets=2), shares(seed=2)
    free = WeightedMechanism(enforced=False) if name == "weighted_e" else None
    whole, notes, _ = run(said, y, free)
    again, _, _ = run(said, y, free)
    split, parts, _ = run(said, y, free, edges=[0, 0, 37, 400])
    other, _, _ = run(said, y, free, key=KEY.child("other"))
    for a, b, c, d in zip(whole, again, split, other, strict=True):
        assert a["mean"] == b["mean"] != d["mean"]
        assert a["mean"] == pytest.approx(c["mean"], rel=1e-6)
    censored = [n["summary"]["diagnostics"]["records_censored"] for n in (notes, parts)]
    assert censored[0] == censored[1]
    assert all(type(value) is Confidential for _, value in notes.received)


def test_weighted_e_counts_what_it_cuts_off_and_is_refused_over_its_target():
    """[G] lets the final bound be over ε/2; a release does not, and promises nothing where it is let pass."""
    said = job("weighted_e", "3")
    _, notes, own = run(said, shares(2000), WeightedMechanism(enforced=False))
    assert notes["summary"]["diagnostics"]["records_censored"] == (own[0]["bounds"]["privacy_weight"] == 0).sum() - 1 > 0
    assert notes["summary"]["database_bound"] > 1.5
    with pytest.raises(NotReached):
        run(said, shares(2000))
    assert WeightedMechanism(enforced=False).promise(said).total == NoGuarantee()


PROMISES = {"censor_uw": Strict, "censor_w": Asymptotic, "weighted_e": Asymptotic, "unweighted": NoGuarantee}


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_made_from_the_job_alone(name):
    promise = MECHANISMS[name].promise(job(name, "6", sets=3))
    assert type(promise.total) is type(promise.per_set) is PROMISES[name]
    if name != "unweighted":
        assert (promise.total.epsilon, promise.per_set.epsilon, promise.target) == (6, 2, 1.0)


STRATA = {
    "one record": [0.3],
    "equal records": [0.25] * 50,
    "next to the ends": [1e-300] * 20 + [1 - 2.0**-53] * 20,
    "one far off": [*np.linspace(0.4, 0.6, 50), 1e-250],
}


@pytest.mark.parametrize("stratum", STRATA)
@pytest.mark.parametrize("name", ["censor_uw", "censor_w"])
def test_extreme_strata_have_a_release(name, stratum):
    (theta,), notes, _ = run(job(name), STRATA[stratum])
    assert 0 < theta["mean"][0] < 1
    assert np.isfinite(theta["precision"][0])
    assert notes["summary"]["database_bound"] <= 2.0


@pytest.mark.parametrize("name", ["censor_uw", "censor_w", "weighted_e"])
def test_a_budget_so_small_that_all_is_censored_leaves_the_prior(name):
    """Weighted-e cuts every record off: nothing is learned, nothing is lost."""
    _, notes, _ = run(job(name, "1e-6"), shares(100, law=(2, 3)))
    said = notes["summary"]["diagnostics"]["records_censored"]
    assert said >= (100 if name == "censor_uw" else 95)
    assert notes["final"]["mean"].std() == pytest.approx(np.sqrt(1 / 12), rel=0.2)


def test_counts_have_a_clamped_release():
    y = np.random.default_rng(1).poisson(20 * np.random.default_rng(2).gamma(5, 0.2, 500))
    (theta,), notes, _ = run(job("censor_uw", "12", "negative_binomial"), y)
    assert 5 < theta["mean"][0] < 60
    assert notes["summary"]["database_bound"] <= 6


def ecdf_distance(y, theta, key):
    """Largest difference between the distribution functions of the records and of as many synthetic ones."""
    synthetic = np.sort(betaincinv(*shapes(theta), key.generator("synthesis").random(len(y))))
    pooled = np.sort(np.concatenate([y, synthetic]))
    return np.abs(ecdf(np.sort(y), pooled) - ecdf(synthetic, pooled)).max()


def ecdf(ordered, at):
    return np.searchsorted(ordered, at, side="right") / len(ordered)


def shapes(theta):
    return theta["mean"] * theta["precision"], (1 - theta["mean"]) * theta["precision"]


@cache
def reference():
    """θ_ref: the posterior mean of another sample of the same law."""
    notes = run(job("unweighted"), shares(2000, seed=99))[1]
    return Draws({name: notes["final"][name].mean(keepdims=True) for name in ("mean", "precision")})


def centred(epsilon, kappa=KAPPA):
    return Centre(reference(), power(float(epsilon) / 2, 2, 2000, 2000, 0.1, kappa))


def test_a_centred_clamp_at_a_small_budget_beats_censoring_at_a_large_one():
    """METHODS §4b: max-ECDF .045/.036/.026 at ε = .25/1/3, Censor_uw at ε = 5 .098; unprotected .028. Three samples."""
    found = {"censored": [], "0.25": [], "1": [], "3": []}
    for seed in range(3):
        y, key = shares(2000, seed), KEY.child(str(seed))
        (theta,), _, _ = run(job("censor_uw", "5"), y, key=key)
        found["censored"].append(ecdf_distance(y, theta, key))
        for epsilon in ("0.25", "1", "3"):
            (theta,), notes, _ = run(job("centred", epsilon), y, key=key, learned=centred(epsilon))
            found[epsilon].append(ecdf_distance(y, theta, key))
            assert notes["summary"]["database_bound"] <= float(epsilon) / 2
    mean = {name: np.mean(values) for name, values in found.items()}
    assert mean["0.25"] < mean["censored"] / 1.5
    assert mean["1"] < 0.05
    assert mean["3"] < 0.04


def test_without_kappa_a_spurious_mode_wins():
    """METHODS §4b: at ε = 1 and a = 1 the clamped optimum is not the law's: its precision is far off; with κ it is not."""
    y, said = shares(2000, seed=3), job("centred", "1")
    with_kappa, without = centred("1"), centred("1")._replace(power=1.0)
    log_ratio = [
        np.log(run(said, y, learned=learned)[1]["final"]["precision"] / with_kappa.theta["precision"]).mean()
        for learned in (with_kappa, without)
    ]
    assert abs(log_ratio[0]) < 0.1 < abs(log_ratio[1])


def test_the_power_is_1_where_nothing_is_near_the_clamp_and_falls_with_it():
    assert power(5.0, 2, 2000, 2000, 0.1) == 1.0
    found = [power(clamp, 2, 2000, 2000, 0.1) for clamp in (0.5, 0.25, 0.125, 1e-6)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(1 / 3)
    local = power(0.5, 2, 100, 100, 0.66, 0.1)
    assert 9 * (local**2 * (0.66**2 + 0.02 + 0.02) + local * 0.02) == pytest.approx(0.25)


def test_a_centred_clamp_promises_the_budget_for_exact_draws():
    promise = CentredMechanism().promise(job("centred", "1"))
    assert (promise.total.name, promise.total.epsilon) == ("strict for exact draws", 1)
    assert any("use the reference only" in assumption for assumption in promise.assumptions)


RULES = ["linear", "inverse", "scalar", "fixed_point", "cluster"]


@pytest.mark.parametrize("stratum", ["one record", "equal records"])
@pytest.mark.parametrize("rule", RULES)
def test_equal_likelihoods_have_equal_weights(rule, stratum):
    """All F equal: [V]'s scaled F is 0, and every other rule gives one weight to all; a defined result for one record."""
    (theta,), notes, own = run(job("weighted", "3", weights=rule), STRATA[stratum])
    alpha = own[0]["bounds"]["privacy_weight"]
    assert (alpha == alpha[0]).all()
    assert 0 < theta["mean"][0] < 1
    assert notes["summary"]["database_bound"] <= 1.5


@pytest.mark.parametrize(("rule", "meets"), [("linear", False), ("inverse", True), ("scalar", True), ("fixed_point", True)])
def test_a_budget_that_no_weights_meet_is_refused_or_met(rule, meets):
    """At ε = 1e-6 a proper prior's tails keep bounds finite: what has a release meets the target, the rest is refused."""
    met = []
    with suppress(NotReached):
        met.append(run(job("weighted", "1e-6", weights=rule), shares(60, law=(2, 3)))[1])
    assert all(notes["summary"]["database_bound"] <= 5e-7 for notes in met)
    assert bool(met) == meets


class Unsupported:
    """Three records; the first two cannot have been drawn under some parameters."""

    def extremes(self, draws, records):
        return Extremes(np.array([-1.0, -1.0, -2.0]), np.array([-np.inf, -np.inf, -3.0]))


def test_a_record_without_weight_has_no_bound_even_where_its_likelihood_is_zero():
    """By hand, M = 2: α = 0 with f = −∞ is no factor at all; α = 1 with f = −∞ is cut to −M."""
    records = Records.of_outcomes(np.ones(3))
    carry = {"alpha": np.array([0.0, 1.0, 0.5]), "offset": np.zeros(3)}
    partial = Censor(Unsupported(), Draws({}), 2.0)(records, carry, Notes())
    assert carry["clamped"].tolist() == [0.0, 2.0, 1.5]
    assert partial.tolist() == [[1.0, 2.0, 1.0]]
