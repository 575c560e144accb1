"""What a reference fixes: exact losses over a grid of parameters, weights recomputed by hand, spurious modes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaln, logsumexp
from test_clamped import KEY, Notes, job, run, shares

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.mechanisms.learning import learned_from
from dpdist.mechanisms.pseudo_posterior.on_reference import (
    KAPPA,
    Centre,
    RecordWeights,
    centre_of,
    dimensions,
    evenly,
    kappa_of,
    spurious,
)
from dpdist.mechanisms.pseudo_posterior.tilted import Gather
from dpdist.models.beta import Beta
from dpdist.models.lognormal.conjugate import draws_of
from dpdist.models.negative_binomial import NegativeBinomial
from dpdist.models.protocol import Clamped, Draws, Spurious
from dpdist.planning.blocks import block_rows
from dpdist.privacy.guarantees import bound_target
from dpdist.privacy.weights import Constant, NotReached, as_weighted
from dpdist.sampling import ReferenceSampler, sampler_of
from dpdist.sampling.samplers import log_density

GRID = np.stack(np.meshgrid(np.linspace(-12, 12, 49), np.linspace(-2.3, 8, 49), indexing="ij"), axis=-1).reshape(-1, 2)
"""Parameters (logit φ, log λ): the loss over them is exact for a posterior on them."""


def referring(name: str, epsilon: str = "1", adjacency: str = "zero_out", **mechanism: object) -> Job:
    said = job(name, epsilon, adjacency=adjacency, **mechanism).model_dump()
    return Job.model_validate({**said, "reference": {"path": "before"}})


def model_of(said: Job, n: int) -> Beta:
    return Beta.build(said, Crosstab({}, {}, np.array([n]), (), ()), slice(0, 1))


def learn(said: Job, y: np.ndarray, current: int = 2000) -> Centre | RecordWeights:
    sampler = ReferenceSampler(said.sampler.total, sampler_of(said, Path("unused")))
    block = block_rows(said.sampler.total)
    return learned_from(said, model_of(said, current), sampler, KEY, "all", Records.of_outcomes(y), current, block)


REFERENCE = shares(1000, seed=50, law=(2, 3))


@pytest.fixture(scope="module", params=["centred", "censor_w"])
def fixed(request: pytest.FixtureRequest) -> tuple[str, dict[str, Centre | RecordWeights]]:
    """What the reference fixes under either adjacency."""
    return request.param, {a: learn(referring(request.param, adjacency=a), REFERENCE) for a in ("zero_out", "substitution")}


def log_posterior(said: Job, learned: Centre | RecordWeights, y: np.ndarray, clamp: float) -> np.ndarray:
    """On the grid, from the rows that the mechanism gathers from this file."""
    model = model_of(said, len(y))
    centred = isinstance(learned, Centre)
    step, theta = (Constant(learned.power), learned.theta) if centred else (learned.frozen, None)
    rows = Gather(model, step, theta)(Records.of_outcomes(y), {}, Notes())
    distinct, count = Clamped(rows, clamp).distinct()
    found = log_density(model, distinct, count, GRID)
    return found - logsumexp(found)


def worst_loss(name: str, learned: Centre | RecordWeights, adjacency: str, share: float = 1.0) -> float:
    """Over files of like records and one that is unlike them, which is switched off or exchanged; in units of ε = 1."""
    said = referring(name, adjacency=adjacency)
    clamp, worst = share * bound_target(said.epsilon_per_set, adjacency), 0.0
    values = (1e-12, 0.01, 0.4, 0.99, 1.0 - 2.0**-53)
    for others in (0, 1, 30):
        for like in values:
            file = np.full(others, like)
            logs = {z: log_posterior(said, learned, np.append(file, z), clamp) for z in values}
            if adjacency == "zero_out":
                without = log_posterior(said, learned, np.append(file, 0.5)[:-1], clamp)
                losses = [np.abs(one - without).max() for one in logs.values()]
            else:
                losses = [np.abs(one - other).max() for one in logs.values() for other in logs.values()]
            worst = max(worst, *losses)
    return worst


@pytest.mark.parametrize("adjacency", ["zero_out", "substitution"])
def test_the_loss_is_at_most_epsilon_and_nearly_that(
    fixed: tuple[str, dict[str, Centre | RecordWeights]], adjacency: str
) -> None:
    """The clamp is ±ε/2, ±ε/4 under substitution. Controls: one that is a tenth too wide; the wrong adjacency's."""
    name, learned = fixed
    assert 0.95 < worst_loss(name, learned[adjacency], adjacency) <= 1.0 + 1e-9
    assert worst_loss(name, learned[adjacency], adjacency, share=1.1) > 1.02
    if adjacency == "substitution":
        assert worst_loss(name, learned[adjacency], adjacency, share=2.0) > 1.5


def bounds(draws: Draws, y: np.ndarray) -> np.ndarray:
    a, b = draws["mean"] * draws["precision"], (1 - draws["mean"]) * draws["precision"]
    terms = np.column_stack([-betaln(a, b), a - 1, b - 1])
    return np.abs(terms @ np.array([np.ones(len(y)), np.log(y), np.log1p(-y)])).max(axis=0)


def test_frozen_weights_are_linear_between_the_references_extremes_and_re_weighted() -> None:
    """By hand (METHODS §3, §4): F under fit 0 of the reference, LW with its min and max, then min(1, .95 α Δ/Δ_i)."""
    learned, y = learn(referring("censor_w", "4"), REFERENCE), shares(300, seed=51, law=(2, 3))
    assert isinstance(learned, RecordWeights)
    first, (_, second) = learned.frozen.unweighted, learned.frozen.steps[1]

    def linear(f: np.ndarray, among: np.ndarray) -> np.ndarray:
        return np.clip(1 - (f - among.min()) / (among.max() - among.min()), 0, 1)

    of_reference = bounds(first, REFERENCE)
    delta = (linear(of_reference, of_reference) * bounds(second, REFERENCE)).max()
    alpha = linear(bounds(first, y), of_reference)
    own = alpha * bounds(second, y)
    expected = np.where(alpha > 0, np.minimum(1, 0.95 * alpha * delta / np.where(own > 0, own, 1)), 0)
    _, found = learned.frozen.weigh(model_of(referring("censor_w"), 300), Records.of_outcomes(y))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert (found == 1).any()
    assert (found < 0.9).any()


@pytest.mark.parametrize(
    "weights", ["fixed_point", "inverse", "scalar", "linear", "cluster", {"rule": "fixed_point", "reweight": 0.95}]
)
def test_on_the_reference_itself_frozen_weights_meet_the_target(weights: object) -> None:
    """Every rule of `weighted`: replayed on the records that they were learned on, they meet what they aimed at."""
    said = referring("weighted", "6", weights=weights)
    y = shares(400, seed=52, law=(2, 3))
    learned = learn(said, y, current=400)
    _, notes, own = run(said, y, learned=learned)
    assert notes["summary"]["database_bound"] <= 3.0
    assert notes["summary"]["diagnostics"]["fits"] == 1
    assert own[0]["bounds"]["privacy_weight"].max() > 0.2


def test_weights_foresee_a_current_files_fit_and_leave_it_a_smaller_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of 8 files of the reference's law and size: less than weights learned under the reference's own fits
    leave, by a tenth and more on average."""
    said, found = referring("weighted", "6", weights="fixed_point"), []
    for patched in (False, True):
        if patched:
            monkeypatch.setattr("dpdist.mechanisms.pseudo_posterior.on_reference.reference_counts", lambda _: as_weighted)
        learned = learn(said, shares(400, seed=60, law=(2, 3)), current=400)
        files = (shares(400, seed=seed, law=(2, 3)) for seed in range(61, 69))
        found.append([run(said, y, learned=learned)[1]["summary"]["database_bound"] for y in files])
    ours, own = np.array(found)
    assert (ours < own).all()
    assert ours.mean() < 0.9 * own.mean()


def test_a_file_that_drifted_far_meets_the_target_no_more() -> None:
    said = referring("weighted", "2")
    learned = learn(said, REFERENCE)
    with pytest.raises(NotReached):
        run(said, shares(400, seed=53, law=(30, 3)), learned=learned)


def test_without_kappa_the_check_refuses_and_with_it_the_power_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the reference alone, at ε = .25, 1, 3; drift up to .66 has the larger κ."""
    for epsilon in ("0.25", "1", "3"):
        assert learn(referring("centred", epsilon), REFERENCE).power <= float(epsilon) / 2 / KAPPA + 1e-12 or epsilon == "3"
    monkeypatch.setattr("dpdist.mechanisms.pseudo_posterior.on_reference.power", lambda *_: 1.0)
    for epsilon in ("0.25", "1"):
        with pytest.raises(Spurious):
            learn(referring("centred", epsilon), REFERENCE)
    assert [kappa_of(drift) for drift in (0.0, 0.25, 0.3, 0.66)] == [1.5, 1.5, 2.0, 2.0]
    assert spurious(np.full(3, np.nan), 2)


def test_a_centre_is_one_parameter_and_its_dimensions_are_the_free_ones() -> None:
    """The aliased coefficient and the lower triangle do not count."""
    coefficients = np.array([[[1.0, 2.0], [np.nan, np.nan], [3.0, 4.0]]] * 2) + np.array([0.0, 1.0])[:, None, None]
    covariance = np.array([[[2.0, 1.0], [1.0, 3.0]], [[4.0, 0.0], [0.0, 1.0]]])
    theta = centre_of(model_of(referring("centred"), 1), draws_of(coefficients, covariance))
    assert theta["covariance"].tolist() == [[[3.0, 0.5], [0.5, 2.0]]]
    assert dimensions(theta) == 4 + 3
    assert dimensions(Draws({"mean": np.ones(1), "precision": np.ones(1)})) == 2


def test_records_are_thinned_evenly() -> None:
    records = Records.of_outcomes(np.linspace(0.1, 0.9, 101))
    assert evenly(records, 101) is records
    assert evenly(records, 5).record.tolist() == [0, 25, 50, 75, 100]


@pytest.mark.parametrize("y", [[0.3], [0.25] * 50, [1e-300] * 5 + [0.5]], ids=["one record", "equal records", "extreme"])
def test_extreme_current_files_have_a_release(y: list[float], fixed: tuple[str, dict[str, Centre | RecordWeights]]) -> None:
    name, learned = fixed
    (theta,), notes, _ = run(referring(name), y, learned=learned["zero_out"])
    assert 0 < theta["mean"][0] < 1
    assert notes["summary"]["database_bound"] <= 0.5


@pytest.mark.parametrize("family", ["beta", "negative_binomial"])
def test_a_centred_draw_is_about_the_unprotected_centre_with_the_variance_of_its_power(family: str) -> None:
    """METHODS §4b: power a, so 1/a times the posterior variance; the reference's own centre, an sd away, is not the draws'.

    400 draws each: 5 standard errors of a mean, 20 % of a sd (5 of them); false alarm under 1e-5. Control: no power at all.
    """
    rng = np.random.default_rng(54)
    y, before = shares(500, seed=55), shares(500, seed=56)
    if family == "negative_binomial":
        y, before = (rng.poisson(20 * rng.gamma(5, 0.2, 500)).astype(float) for _ in range(2))
    said = job("centred", "1", family).model_dump()
    said |= {"reference": {"path": "before"}, "sampler": {"name": "grid", "draws": 400}}
    asked = Job.model_validate(said)
    model = {"beta": Beta, "negative_binomial": NegativeBinomial}[family].build(
        asked, Crosstab({}, {}, np.array([500]), (), ()), slice(0, 1)
    )
    sampler = ReferenceSampler(asked.sampler.total, sampler_of(asked, Path("unused")))
    block = block_rows(asked.sampler.total)
    learned = learned_from(asked, model, sampler, KEY, "all", Records.of_outcomes(before), 500, block)
    assert learned.power == pytest.approx(1 / 3, rel=0.01)
    centred, plain = (run(asked, y, learned=one)[1]["final"]["mean"] for one in (learned, learned._replace(power=1e-9)))
    unprotected = run(job("unweighted", "1", family), y)[1]["final"]["mean"]
    assert abs(centred.mean() - unprotected.mean()) < 5 * centred.std() / 20
    assert centred.std() * np.sqrt(learned.power) == pytest.approx(unprotected.std(), rel=0.2)
    assert plain.std() * np.sqrt(learned.power) > 2 * unprotected.std()


class Impossible(Beta):
    """Its density is 0 or undefined at records below .1."""

    def log_lik(self, draws: Draws, records: Records) -> np.ndarray:
        values = super().log_lik(draws, records)
        values[:, records.outcome < 0.1] = -np.inf
        values[:, records.outcome < 0.05] = np.nan
        return values


def test_a_record_that_is_impossible_under_the_reference_is_not_centred_and_stays_finite() -> None:
    model = Impossible.build(referring("centred"), Crosstab({}, {}, np.array([3]), (), ()), slice(0, 1))
    theta = Draws({"mean": np.array([0.4]), "precision": np.array([5.0])})
    offset = Gather(model, Constant(0.5), theta)(Records.of_outcomes(np.array([0.01, 0.07, 0.3])), {}, Notes())[:, 4]
    assert offset[:2].tolist() == [0.0, 0.0]
    assert offset[2] == Beta.log_lik(model, theta, Records.of_outcomes(np.array([0.3])))[0, 0] != 0
