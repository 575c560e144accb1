"""The tilted posterior, run in memory over a simulated stratum, and recomputed from what it recorded."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.engine.protocol import Pass, Released, run_rounds
from dpdist.job import Job, Weights
from dpdist.mechanisms.pseudo_posterior import tilted
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.lognormal.model import Lognormal
from dpdist.models.protocol import Draws, Improper
from dpdist.privacy.guarantees import bound_target
from dpdist.privacy.weights import NotReached, search
from dpdist.sampling.samplers import IndependentSampler

KEY = Key(b"tests/mechanisms/test_tilted")
LEVELS = {"sex": ("male", "female")}
TARGET, DRAWS, SETS = 1.8, 200, 3
FIXED_POINT = Weights(rule="fixed_point")


def job(prior="improper", rule="fixed_point", epsilon="10.8", adjacency="zero_out", sets=SETS):
    return Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {"sex": {"levels": ["male", "female"]}, "salary": {"bounds": [0, 1e12]}},
            "survey": {"weight": "weight"},
            "outcome": "salary",
            "model": {"family": "lognormal", "predictors": ["sex"], "prior": {"name": prior}},
            "mechanism": {"name": "weighted", "weights": rule},
            "budget": {"epsilon": epsilon, "adjacency": adjacency},
            "synthetic_sets": sets,
            "sampler": {"draws": DRAWS},
            "tables": [{"name": "t", "by": ["sex"], "statistics": ["count"]}],
        }
    )


class Stratum:
    """A model and its records: log-normal salaries of two sexes, weights that fall with salary."""

    def __init__(self, men=250, women=150, prior="improper", seed=1):
        count = np.array([n for n in (men, women) if n])
        sex = np.array([k for k, n in enumerate((men, women)) if n], dtype=np.int32)
        self.crosstab = Crosstab({"sex": sex}, LEVELS, count, (), ())
        self.model = Lognormal.build(job(prior), self.crosstab, slice(0, len(count)))
        rng, row = np.random.default_rng(seed), self.crosstab.expand()
        self.x = np.column_stack([np.ones(len(row)), sex[row] == 1]).astype(float)
        salary = 11.0 - 0.2 * self.x[:, 1] + 0.4 * rng.standard_normal(len(row))
        weight = 4.0 - (salary - 11.0) + 0.4 * rng.standard_normal(len(row))
        number = rng.permutation(len(row))
        self.records = Records(number, row, np.exp(salary), np.exp(weight), np.full(len(row), -1, dtype=np.int32))

    @property
    def z(self):
        return np.log(np.column_stack([self.records.outcome, self.records.weight]))


class BlockNotes:
    """Keeps what a block hands over, as it was handed over."""

    def __init__(self, wants_log_lik):
        self.wants_log_lik = wants_log_lik
        self.received = []

    def bounds(self, columns):
        self.received.append(("bounds", columns))

    def log_lik(self, values):
        self.received.append(("log_lik", values))


class StratumNotes:
    """Keeps what a stratum hands over, as it was handed over."""

    def __init__(self):
        self.received = []

    def posterior(self, fit, draws):
        self.received.append((fit, draws))

    def summary(self, values):
        self.received.append(("summary", values))


class Run:
    """One run through `run_rounds`: what was released, what was recorded, and every total on its way."""

    def __init__(self, stratum, weights=FIXED_POINT, target=TARGET, edges=None, key=KEY, log_lik=False, sets=SETS):
        edges = [0, len(stratum.records)] if edges is None else edges
        blocks = [stratum.records.part(a, b) for a, b in pairwise(edges)]
        self.notes, self.blocks = StratumNotes(), [BlockNotes(log_lik) for _ in blocks]
        self.totals = []
        rounds = self._watched(tilted.protect(stratum.model, search(weights, target), target, sets, self.notes))
        with threadpool_limits(1):
            self.released = run_rounds(rounds, stratum.model, IndependentSampler(DRAWS), key, "here", blocks, self.blocks)

    def _watched(self, rounds):
        reply = None
        while True:
            try:
                request = rounds.send(reply)
            except StopIteration as end:
                return end.value
            reply = yield request
            if isinstance(request, Pass):
                self.totals.append(reply)

    def noted(self, name):
        return dict(self.notes.received)[name].disclose_to_custodian()

    def column(self, name):
        bounds = [dict(block.received)["bounds"].disclose_to_custodian()[name] for block in self.blocks]
        return np.concatenate(bounds)


def log_density(stratum, draws):
    """log N₂ by plain NumPy, (draw, record)."""
    u = stratum.z - stratum.x @ draws["coefficients"]
    square = np.einsum("sni,sij,snj->sn", u, np.linalg.inv(draws["covariance"]), u)
    return -np.log(2 * np.pi) - np.log(np.linalg.det(draws["covariance"]))[:, None] / 2 - square / 2


RULES = {
    "fixed_point": FIXED_POINT,
    "inverse, tuned": Weights(rule="inverse"),
    "inverse, given": Weights(rule="inverse", c=1.2),
    "linear": Weights(rule="linear"),
    "cluster": Weights(rule="cluster"),
    "scalar": Weights(rule="scalar"),
    "fixed_point, re-weighted": Weights(rule="fixed_point", reweight=0.95),
    "linear, re-weighted": Weights(rule="linear", reweight=0.95),
    "inverse, scaled": Weights(rule="inverse", scale=0.8),
}
every_rule = pytest.mark.parametrize("weights", RULES.values(), ids=RULES.keys())


@every_rule
def test_the_bound_recomputed_from_the_recorded_draws_is_the_recorded_one_and_under_the_target(weights):
    """Nothing random is compared; control: the draws of the unweighted fit do not reproduce the final bounds."""
    stratum = Stratum()
    run = Run(stratum, weights)
    unweighted = np.abs(log_density(stratum, run.noted("unweighted"))).max(axis=0)
    final = log_density(stratum, run.noted("final"))
    alpha, bound = run.column("privacy_weight"), np.abs(final).max(axis=0)
    np.testing.assert_allclose(run.column("unweighted_record_bound"), unweighted, rtol=1e-9)
    np.testing.assert_allclose(run.column("record_bound"), bound, rtol=1e-9)
    np.testing.assert_allclose(run.column("weighted_record_bound"), alpha * bound, rtol=1e-9)
    assert not np.allclose(run.column("record_bound"), unweighted, rtol=1e-4)

    summary = run.noted("summary")
    diagnostics = summary["diagnostics"]
    spread = (alpha * (final.max(axis=0) - final.min(axis=0))).max()
    assert summary["database_bound"] == pytest.approx((alpha * bound).max(), rel=1e-9)
    assert summary["epsilon_local"] == pytest.approx(2 * (alpha * bound).max(), rel=1e-9)
    assert summary["epsilon_local_range"] == pytest.approx(spread, rel=1e-9)
    assert diagnostics["unweighted_database_bound"] == pytest.approx(unweighted.max(), rel=1e-9)
    assert diagnostics["privacy_weight_total"] == pytest.approx(alpha.sum(), rel=1e-9)
    assert summary["database_bound"] <= TARGET < diagnostics["unweighted_database_bound"]
    assert np.all((alpha >= 0.0) & (alpha <= 1.0))


def test_fixed_point_weights_are_those_of_the_recorded_fit_before():
    stratum = Stratum()
    run = Run(stratum)
    before = np.abs(log_density(stratum, run.noted("weighting"))).max(axis=0)
    np.testing.assert_allclose(run.column("privacy_weight"), np.minimum(1.0, 0.999 * TARGET / before), rtol=1e-9)


def test_inverse_and_linear_weights_are_those_of_the_unweighted_fit():
    stratum = Stratum()
    inverse, linear = (Run(stratum, Weights(rule=rule, c=c)) for rule, c in (("inverse", 1.2), ("linear", 0.3)))
    f = np.abs(log_density(stratum, inverse.noted("unweighted"))).max(axis=0)
    np.testing.assert_allclose(inverse.column("privacy_weight"), np.minimum(1.0, 1.2 / f), rtol=1e-9)
    scaled = 0.3 * (1.0 - (f - f.min()) / (f.max() - f.min()))
    np.testing.assert_allclose(linear.column("privacy_weight"), scaled, rtol=1e-9, atol=1e-9)


@every_rule
def test_what_is_released_is_drawn_from_the_posterior_under_the_recorded_weights(weights):
    """Same statistics, a stream of its own: a released θ is one exact draw, and the S draws only measured the bound."""
    stratum = Stratum()
    run = Run(stratum, weights)
    statistics = stratum.model.statistics(stratum.records, run.column("privacy_weight"))
    measured = stratum.model.draw(statistics, DRAWS, KEY.generator("posterior", "here"))
    np.testing.assert_allclose(run.noted("final")["coefficients"], measured["coefficients"], rtol=1e-9)
    np.testing.assert_allclose(run.noted("final")["covariance"], measured["covariance"], rtol=1e-9)
    assert len(run.released.parameters) == SETS
    for number, theta in enumerate(run.released.parameters, start=1):
        own = stratum.model.draw(statistics, 1, KEY.generator("release", "here", set=number))
        np.testing.assert_allclose(theta["coefficients"], own["coefficients"], rtol=1e-9)
        np.testing.assert_allclose(theta["covariance"], own["covariance"], rtol=1e-9)


@pytest.mark.parametrize("edges", [[0, 37, 128, 250, 251, 400], [0, 0, 200, 400, 400]], ids=["five", "empty ones"])
def test_blocks_change_no_total_but_by_rounding(edges):
    stratum = Stratum()
    whole, split = Run(stratum), Run(stratum, edges=edges)
    assert len(whole.totals) == len(split.totals)
    for one, other in zip(whole.totals, split.totals, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    for one, other in zip(whole.released.parameters, split.released.parameters, strict=True):
        np.testing.assert_allclose(one["coefficients"], other["coefficients"], rtol=1e-9)
        np.testing.assert_allclose(one["covariance"], other["covariance"], rtol=1e-9)
    for name in ("privacy_weight", "record_bound", "unweighted_record_bound"):
        np.testing.assert_allclose(whole.column(name), split.column(name), rtol=1e-9)


def test_every_record_is_recorded_once_and_in_its_place():
    stratum = Stratum()
    run = Run(stratum, edges=[0, 37, 128, 250, 251, 400])
    np.testing.assert_array_equal(run.column("record"), stratum.records.record)
    np.testing.assert_array_equal(run.column("sampling_weight"), stratum.records.weight)


def test_everything_recorded_is_confidential_and_nothing_released_is():
    run = Run(Stratum(), edges=[0, 150, 400], log_lik=True)
    received = [*run.notes.received, *(note for block in run.blocks for note in block.received)]
    assert [name for name, _ in run.notes.received] == ["unweighted", "weighting", "final", "summary"]
    assert all(type(value) is Confidential for _, value in received)
    assert type(run.released) is Released
    assert Released._fields == ("parameters",)
    for theta in run.released.parameters:
        assert type(theta) is Draws
        assert len(theta) == 1
        assert all(type(part) is np.ndarray for part in (theta["coefficients"], theta["covariance"]))


def test_the_recorded_log_likelihood_is_that_of_the_final_draws():
    stratum = Stratum()
    run = Run(stratum, edges=[0, 150, 400], log_lik=True)
    tensors = [dict(block.received)["log_lik"].disclose_to_custodian() for block in run.blocks]
    np.testing.assert_allclose(np.hstack(tensors), log_density(stratum, run.noted("final")), rtol=1e-9, atol=1e-9)


def test_the_log_likelihood_is_not_made_where_it_is_not_wanted():
    run = Run(Stratum(), edges=[0, 150, 400])
    assert [name for block in run.blocks for name, _ in block.received] == ["bounds", "bounds"]


def test_no_weights_release_the_plain_posterior():
    stratum = Stratum()
    run = Run(stratum, Weights(rule="none"), target=float("inf"))
    np.testing.assert_array_equal(run.column("privacy_weight"), 1.0)
    assert run.noted("summary")["diagnostics"]["fits"] == 1
    statistics = stratum.model.statistics(stratum.records, np.ones(400))
    own = stratum.model.draw(statistics, 1, KEY.generator("release", "here", set=1))
    np.testing.assert_array_equal(run.released.parameters[0]["covariance"], own["covariance"])


@pytest.mark.parametrize(("adjacency", "changes"), [("zero_out", 2), ("substitution", 4)])
def test_the_preset_spends_no_more_than_it_promised(adjacency, changes):
    """ε of a set is 2Δ (4Δ under substitution) and the promise is made from the job alone."""
    asked, stratum, notes = job(adjacency=adjacency, epsilon="21.6"), Stratum(), StratumNotes()
    promise = MECHANISMS["weighted"].promise(asked)
    rounds = MECHANISMS["weighted"].protect(asked, stratum.model, notes)
    released = run_rounds(
        rounds, stratum.model, IndependentSampler(DRAWS), KEY, "here", [stratum.records], [BlockNotes(False)]
    )
    spent = changes * dict(notes.received)["summary"].disclose_to_custodian()["database_bound"]
    assert promise.total.epsilon == Fraction("21.6")
    assert promise.per_set.epsilon == Fraction("7.2")
    assert promise.target == bound_target(Fraction("7.2"), adjacency)
    assert spent <= 7.2
    assert len(released.parameters) == SETS


def altered(stratum, outcome=None, weight=None):
    outcome = stratum.records.outcome if outcome is None else outcome
    weight = stratum.records.weight if weight is None else weight
    stratum.records = Records(stratum.records.record, stratum.records.row, outcome, weight, stratum.records.psu)
    return stratum


def with_one_huge_weight(prior="improper"):
    stratum = Stratum(prior=prior)
    return altered(stratum, weight=np.where(np.arange(400) == 7, 1e9, stratum.records.weight))


def test_one_record_is_refused_by_name_under_an_improper_prior():
    with pytest.raises(Improper, match="p \\+ 1"):
        Run(Stratum(men=1, women=0))


def test_one_record_has_a_release_under_a_proper_prior():
    run = Run(Stratum(men=1, women=0, prior="proper"))
    assert run.noted("summary")["database_bound"] <= TARGET
    assert np.isfinite(run.released.parameters[0]["covariance"]).all()


@pytest.mark.parametrize("prior", ["improper", "proper"])
def test_an_extreme_weight_gets_little_privacy_weight_and_the_bound_holds(prior):
    run = Run(with_one_huge_weight(prior))
    alpha = run.column("privacy_weight")
    assert np.argmin(alpha) == 7
    assert run.noted("summary")["database_bound"] <= TARGET
    assert all(np.isfinite(theta["covariance"]).all() for theta in run.released.parameters)


@pytest.mark.parametrize("column", ["outcome", "weight"])
def test_a_constant_stratum_has_a_release_or_a_typed_refusal_under_a_proper_prior(column):
    try:
        run = Run(altered(Stratum(prior="proper"), **{column: np.full(400, 5e4)}))
    except NotReached:
        return
    assert run.noted("summary")["database_bound"] <= TARGET


@pytest.mark.parametrize("seed", [2, 4, 5])
@pytest.mark.parametrize("target", [0.5, pytest.param(1.0, marks=pytest.mark.long), 1.8])
def test_small_strata_have_a_release_or_a_typed_refusal(target, seed):
    """Where the weights sum to little more than p + 1 a posterior just exists, and some of its draws are enormous."""
    for records in range(1, 21):
        try:
            run = Run(Stratum(men=records, women=0, seed=seed), target=target, key=Key(bytes([records, seed])))
        except (Improper, NotReached):
            continue
        assert run.noted("summary")["database_bound"] <= target
        assert all(np.isfinite(theta["covariance"]).all() for theta in run.released.parameters)
