"""One weight search: on the same records the refit for standard errors ends with the weights that `protect` ends with.

Both see the same draws here: of the same number, from streams of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_jobs import said, unchecked
from small_runs import run
from test_clamped import Notes

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Floats
from dpdist.engine.protocol import Carry, Pass, drive
from dpdist.job import WEIGHT_RULES
from dpdist.job.checks import contradictions
from dpdist.mechanisms.pseudo_posterior.on_reference import learn_weights
from dpdist.mechanisms.pseudo_posterior.post import UNMEASURED
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.models.protocol import Redraw, redrawing
from dpdist.privacy import weights as searches
from dpdist.privacy.weights import NotReached, with_outcomes
from dpdist.publish import refit as rerun
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.quality.calibrate import knobs_of
from dpdist.sampling.samplers import IndependentSampler

FAMILIES = ("lognormal", "poisson", "bernoulli", "scores")
"""Families whose refits exist: in closed form."""
CONSTANT = [name for name, rule in WEIGHT_RULES.items() if "c" in rule.constants]
"""Rules whose constant c may be given."""
ADJUSTED = {"scale": 0.9, "shift": 0.01, "reweight": 0.95}


@pytest.fixture(scope="module")
def releases(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReleasedObject]:
    """One of every family, by name."""
    made = dict[str, ReleasedObject]()
    for family in FAMILIES:
        workspace = tmp_path_factory.mktemp(family) / "work"
        run(family, said("weighted", "zero_out", family), inputs, workspace)
        made[family] = read_released(workspace / "public" / "released")
    return made


def under(release: ReleasedObject, mechanism: str, weights: dict[str, Any], reference: bool = False) -> ReleasedObject:
    """The release, as if its job had said another rule."""
    job, aim = said("weighted", "zero_out", release.job.family), {}
    if reference:
        job["reference"] = {"path": "earlier.parquet", "period": "2017"}
        aim = {"aim": 0.4} if mechanism == "weighted" else {}
    if job["model"]["family"] == "bernoulli":  # whose bounds are small
        job["budget"]["epsilon"] = "4"
    changed = unchecked(job | {"mechanism": {"name": mechanism, "weights": weights} | aim})
    assert contradictions(changed) == []
    return replace(release, job=changed)


def sample_of(release: ReleasedObject) -> tuple[Any, Records, Key]:
    """The model of the first stratum, a synthetic sample of it, and the key of the search."""
    model, own = release.model(0), release.crosstab.rows_of(0)
    key = release.seed.child("test")
    rows, _ = rerun._subsample(release, own)
    redraw = redraw_of(release, model, key.child("search"))
    fits = rerun._fit_twice(release, model, release.theta(model, 0, 0), rows, key, redraw)
    return model, fits.records, key.child("search")


def redraw_of(release: ReleasedObject, model: Any, key: Key) -> Redraw:
    draws = min(rerun.SEARCH_DRAWS, release.job.sampler.draws)
    return redrawing(model, draws, lambda: key.generator("posterior"))


def in_refit(release: ReleasedObject) -> Floats:
    model, records, key = sample_of(release)
    return rerun._weights(release, model, records, redraw_of(release, model, key))


def in_protect(release: ReleasedObject) -> Floats:
    """Weights that the mechanism's own rounds end with, on the sample that the refit has; where none reach the target, the
    last that were tried."""
    model, records, key = sample_of(release)
    job, carry = release.job, Carry()
    rounds = learn_weights(job, model) if job.frozen else MECHANISMS[job.mechanism.name].protect(job, model, Notes())

    def visit(request: Pass) -> Floats:
        return request.kernel(records, carry, Notes())

    def silent(request: object) -> Floats:
        raise AssertionError("a weight search draws no noise")

    sampler = IndependentSampler(min(rerun.SEARCH_DRAWS, job.sampler.draws))
    with suppress(NotReached):
        drive(rounds, model, sampler, key, "", visit, silent)
    return carry["alpha"]


def _searches() -> list[tuple[str, dict[str, Any], bool]]:
    """Every rule under `weighted`, tuned and adjusted; with its constant given; cut off; and fixed on a reference."""
    made: list[tuple[str, dict[str, Any], bool]] = []
    for rule in WEIGHT_RULES:
        said = {"rule": rule}
        if rule == "none":
            made.append(("weighted", said, False))
            continue
        made += [("weighted", said, False), ("weighted", said, True), ("weighted", said | ADJUSTED, False)]
        if rule in CONSTANT:
            made += [("weighted", said | {"c": 0.7}, False), ("weighted_e", said, False), ("weighted_e", said, True)]
    return made


@pytest.mark.parametrize(("mechanism", "weights", "reference"), _searches(), ids=str)
@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_the_refit_ends_with_the_weights_that_protect_ends_with(
    releases: dict[str, ReleasedObject], family: str, mechanism: str, weights: dict[str, Any], reference: bool
) -> None:
    release = under(releases[family], mechanism, weights, reference)
    own, again = in_protect(release), in_refit(release)
    assert np.array_equal(own, again)
    assert (own < 1).any() or weights["rule"] in ("none", "inverse"), "weights that are all 1 would agree in any search"


@pytest.mark.parametrize("weights", [{"rule": "fixed_point"}, {"rule": "cluster"} | ADJUSTED], ids=str)
def test_so_it_does_under_a_score_model_whose_weights_are_fixed_on_its_reference(
    releases: dict[str, ReleasedObject], weights: dict[str, Any]
) -> None:
    release = under(releases["scores"], "weighted", weights, reference=True)
    own = in_protect(release)
    assert np.array_equal(own, in_refit(release))
    assert (own < 1).any()


def test_another_rule_or_another_constant_gives_other_weights(releases: dict[str, ReleasedObject]) -> None:
    """Control: a rule that were changed on one side would be seen."""
    plain = under(releases["lognormal"], "weighted", {"rule": "linear"})
    alpha = in_refit(plain)
    for other in ({"rule": "inverse"}, {"rule": "linear", "reweight": 0.95}, {"rule": "linear", "c": 0.7}):
        assert not np.array_equal(alpha, in_protect(under(plain, "weighted", other)))


def thinned(steps: Any) -> Iterator[Any]:
    """The search, told every other outcome."""
    search, reply = searches.informed(steps), None
    with suppress(StopIteration):
        while True:
            step = search.send(reply)
            reply = yield step
            reply = reply[::2] if isinstance(step, searches.AllOutcomes) else reply


def test_a_search_that_is_changed_in_the_refit_alone_is_seen(
    releases: dict[str, ReleasedObject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: what the one side does with a step, the other does not."""
    release = under(releases["lognormal"], "weighted", {"rule": "cluster"})
    assert np.array_equal(in_protect(release), in_refit(release))
    monkeypatch.setattr(rerun, "informed", thinned)
    assert not np.array_equal(in_protect(release), in_refit(release))


def test_a_search_that_is_changed_where_it_stands_is_changed_for_both(
    releases: dict[str, ReleasedObject], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = under(releases["lognormal"], "weighted", {"rule": "cluster"})
    before = in_refit(release)
    monkeypatch.setattr(searches, "with_outcomes", lambda step, outcomes: with_outcomes(step, outcomes[::2]))
    assert not np.array_equal(before, in_refit(release))
    assert np.array_equal(in_protect(release), in_refit(release))


def test_every_rule_says_which_constants_it_has_and_has_a_step_for_them() -> None:
    for rule, facts in WEIGHT_RULES.items():
        for name in ("c", "g", "radius"):
            mechanism = {"name": "weighted", "weights": {"rule": rule, name: 0.5}}
            job = unchecked(said("weighted", "zero_out", "lognormal") | {"mechanism": mechanism})
            refused = name in {fault.where[-1] for fault in job.mechanism.against_weights(job)}
            assert refused == (name not in facts.constants), (rule, name)


@pytest.mark.parametrize("rule", CONSTANT)
def test_a_rule_whose_losses_nobody_measured_says_so(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is new has no figures: its statement says that instead. Control: with figures it does not."""
    job = unchecked(said("weighted", "zero_out", "lognormal") | {"mechanism": {"name": "weighted", "weights": rule}})
    unmeasured = UNMEASURED.format(rule)
    assert unmeasured not in MECHANISMS["weighted"].promise(job).cautions
    monkeypatch.setattr(WEIGHT_RULES[rule], "exceeds", "")
    assert unmeasured in MECHANISMS["weighted"].promise(job).cautions


@pytest.mark.parametrize("rule", CONSTANT)
def test_calibration_tunes_every_constant_that_a_rule_has(rule: str) -> None:
    job = unchecked(said("weighted", "zero_out", "lognormal") | {"mechanism": {"name": "weighted", "weights": rule}})
    knobs = {knob.path for knob in knobs_of(job)}
    assert {f"weights.{name}" for name in WEIGHT_RULES[rule].constants & {"c", "g"}} <= knobs
