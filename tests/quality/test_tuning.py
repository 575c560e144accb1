"""The search for constants: which there are, scan then bisect, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.job import Job, Mechanism
from dpdist.quality.calibrate import REFUSED, Knob, Trials, between, knobs_of, search, with_value

SAID = {
    "dataset": "test",
    "period": "2",
    "columns": {"y": {"bounds": [0, 1]}},
    "outcome": "y",
    "model": {"family": "beta"},
    "budget": {"epsilon": "4"},
    "sampler": {"name": "grid"},
    "tables": [{"name": "t", "statistics": ["count"]}],
}


def job(reference: bool = False, **mechanism: object) -> Job:
    said = {**SAID, "mechanism": mechanism}
    return Job.model_validate(said | ({"reference": {"path": "before"}} if reference else {}))


KNOBS = [
    (job(name="unweighted"), []),
    (job(name="censor_uw"), []),
    (job(name="perturbed_histogram"), ["bins"]),
    (job(name="centred", reference=True), []),
    (job(name="weighted", weights="fixed_point"), ["weights.reweight", "weights.scale", "weights.shift"]),
    (job(name="weighted", reference=True), ["aim", "weights.reweight", "weights.scale", "weights.shift"]),
    (job(name="weighted_e"), ["weights.c", "weights.g", "weights.scale", "weights.shift"]),
    (job(name="censor_w"), ["weights.c", "weights.g", "weights.reweight", "weights.scale", "weights.shift"]),
    (job(name="weighted", weights="inverse"), ["weights.c", "weights.reweight", "weights.scale", "weights.shift"]),
]


@pytest.mark.parametrize(("said", "expected"), KNOBS)
def test_a_mechanism_has_the_constants_that_no_budget_decides(said: Job, expected: list[str]) -> None:
    assert [knob.path for knob in knobs_of(said)] == expected


def test_c_is_scanned_down_from_where_the_rule_would_start() -> None:
    (inverse, *_), (linear, *_) = (knobs_of(job(name="weighted", weights=rule)) for rule in ("inverse", "linear"))
    assert (inverse.grid[0], linear.grid[0]) == (2.0, 1.0)
    assert list(inverse.grid) == sorted(inverse.grid, reverse=True)
    assert inverse.required
    assert not knobs_of(job(name="weighted", weights={"rule": "inverse", "c": 1.0}))[0].required


def test_a_scan_finds_a_second_valley_and_bisection_its_floor() -> None:
    """Not monotone, refused in between: descent from the start would stop at .9."""

    def loss(mechanism: Mechanism) -> float:
        c = mechanism.weights.c
        assert c is not None
        if 0.5 < c < 0.8:
            return REFUSED
        return abs(c - 0.9) + 0.2 if c >= 0.8 else abs(c - 0.33)

    ticks: list[int] = []
    trials = Trials(loss, ticks.append)
    knob = Knob("weights.c", (1.0, 0.9, 0.7, 0.5, 0.3, 0.1))
    best, least = search(job(name="censor_w").mechanism, [knob], trials)
    assert best.weights.c == pytest.approx(0.33, abs=0.02)
    assert least == pytest.approx(0.0, abs=0.02)
    assert len(ticks) == len(trials.losses) <= 6 + 3 * 2
    assert search(best, [knob], Trials(lambda _: REFUSED, ticks.append))[1] == REFUSED


def test_constants_are_sought_one_after_the_other_and_none_is_a_choice() -> None:
    def loss(mechanism: Mechanism) -> float:
        weights = mechanism.weights
        return abs(weights.g - 0.1) + (0.0 if weights.reweight is None else weights.reweight)

    knobs = [Knob("weights.g", (0.0, 0.2)), Knob("weights.reweight", (None, 0.9))]
    best, least = search(job(name="weighted", weights="linear").mechanism, knobs, loss)
    assert (best.weights.g, best.weights.reweight, least) == (0.1, None, 0.0)


def test_whole_numbers_stay_whole() -> None:
    tried = {2.0: 3.0, 5.0: 1.0, 8.0: 2.0}
    assert between(dict(tried), integers=True) == [3.0, 6.0]
    assert with_value(job(name="perturbed_histogram").mechanism, "bins", 3.0).bins == 3
    assert between({2.0: REFUSED, 5.0: REFUSED}, integers=False) == []
    assert np.allclose(between({**tried, None: 0.0}, integers=False), [3.5, 6.5])
