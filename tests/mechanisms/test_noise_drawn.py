"""The noise that strict mechanisms ask for, and add: scale, size and set as worked out by hand (METHODS §7, §8).

Scales in the comments are sensitivity × UNIT/ε. The noise is known here, and no record lies where rounding would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from test_clamped import KEY, Notes

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import Noise, Pass, Released, drive, fresh_noise
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms import promises
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.promises import NOT_REFUSED, LossExceeded
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal
from dpdist.models.protocol import StratumModel
from dpdist.sampling.samplers import ExactSampler

UNIT = 2**20
CELLS = 3
JOB = """
dataset: noise
period: "2021"
columns:
  field: {{levels: [arts, law, medicine]}}
  salary: {{bounds: [1000, 200000], outside: clip}}
  hours: {{bounds: [1, 80], outside: clip}}
  {weight}
survey: {{weight: weight}}
outcome: {outcome}
model: {model}
mechanism: {{name: {name}{more}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: {sets}
{reference}
tables:
  - {{name: one, by: [field], statistics: [count, {{mean: salary}}]}}
"""
BOUNDED = "weight: {bounds: [1, 1000], outside: clip}"
GAUSSIAN = ", noise: gaussian"
AT_AN_EIGHTH = '2.41909319", rho: "1/8", delta: "1e-6'
"""ε of ρ = 1/8 at that δ."""
FILE = "reference: {path: before.parquet, period: '2020'}"


def said(name: str, adjacency: str, epsilon: str, **other: object) -> Job:
    plain = {"outcome": "salary", "sets": 1, "reference": "", "more": ""} | other
    plain["weight"] = "" if name == "perturbed_histogram" else BOUNDED
    plain["model"] = "{family: lognormal}" if name == "sanitized_statistics" else "null"
    text = JOB.format(name=name, adjacency=adjacency, epsilon=epsilon, **plain)
    if name == "perturbed_histogram":
        text = text.replace("survey: {weight: weight}\n", "").replace("by: [field], ", "")
    return parse_job(text)


def records(seed: int, outcomes: int) -> Records:
    """200 of each of three cells."""
    rng, n = np.random.default_rng(seed), 200 * CELLS
    y, w = np.exp(rng.normal(10.5, 0.5, n)), np.exp(rng.normal(4.0, 0.7, n))
    y = np.column_stack([y, rng.uniform(5.0, 60.0, n)]) if outcomes > 1 else y
    return Records(np.arange(n), np.repeat(np.arange(CELLS, dtype=np.int32), 200), y, w, np.full(n, -1, np.int32))


FRAME = Crosstab(
    {"field": np.arange(CELLS, dtype=np.int32)}, {"field": ("arts", "law", "medicine")}, np.full(CELLS, 200), (), ()
)


def known(number: Noise) -> Floats:
    """Every number its own."""
    return 1e7 * (1 + number.set) + np.arange(number.size, dtype=np.float64) ** 2


def driven(job: Job) -> tuple[list[Noise], list[Floats], StratumModel, Released]:
    """What a mechanism asked for, the exact sums of its passes, and what it released under `known` noise."""
    model = builder_of(job).build(job, FRAME, slice(0, CELLS))
    now, before = (records(seed, len(job.outcomes)) for seed in (1, 2))
    learned = model.learned(before) if isinstance(model, SanitizedLognormal) else None
    asked: list[Noise] = []
    sums: list[Floats] = []

    def visit(request: Pass) -> Floats:
        sums.append(request.kernel(now, {}, Notes()))
        return sums[-1]

    def noise(request: Noise) -> Floats:
        asked.append(request)
        return known(request)

    rounds = MECHANISMS[job.mechanism.name].protect(job, model, Notes(), learned)
    return asked, sums, model, drive(rounds, model, ExactSampler(1), KEY, "all", visit, noise)


Asked = list[tuple[Fraction, int, int] | tuple[Fraction, int, int, str]]


CASES: dict[str, tuple[Job, Asked]] = {
    # locations of three cells and three sums of squares, once for all sets
    "sanitized": (said("sanitized_statistics", "zero_out", "1/2", reference=FILE, sets=3), [(Fraction(2 * UNIT), 9, 1)]),
    "sanitized, exchanged": (
        said("sanitized_statistics", "substitution", "1/2", reference=FILE, sets=3),
        [(Fraction(4 * UNIT), 9, 1)],
    ),
    # σ² = Δ²/2ρ, Δ 1 and 7/4 and what rounding adds
    "sanitized, gaussian": (
        said("sanitized_statistics", "zero_out", AT_AN_EIGHTH, reference=FILE, sets=3, more=GAUSSIAN),
        [(Fraction(2 * UNIT) + Fraction(1, 1000), 9, 1, "gaussian")],
    ),
    "sanitized, gaussian, exchanged": (
        said("sanitized_statistics", "substitution", AT_AN_EIGHTH, reference=FILE, sets=3, more=GAUSSIAN),
        [(Fraction(7 * UNIT, 2) + 6 + Fraction(1, 1000), 9, 1, "gaussian")],
    ),
    # 3/2 of half of ε, on each kind of sum by itself; exchanged 5/2
    "modips": (
        said("modips", "zero_out", "1", sets=2, more=", law: lognormal"),
        [(Fraction(3 * UNIT), size, number) for number, size in enumerate([3, 3, 1] * 2, 1)],
    ),
    "modips, exchanged": (
        said("modips", "substitution", "1", more=", law: lognormal"),
        [(Fraction(5 * UNIT, 2), size, number) for number, size in enumerate([3, 3, 1], 1)],
    ),
    # a record enters its cell and the total: 2 · 2/ε, eight figures
    "noisy tables": (
        said("laplace_composed", "substitution", "1/2", more=", sensitivity: public"),
        [(Fraction(8 * UNIT), 8, 1)],
    ),
    # a bin by 1, or two bins, every set at half of ε
    "histogram": (said("perturbed_histogram", "zero_out", "1", sets=2), [(Fraction(2), 7, 1), (Fraction(2), 7, 2)]),
    "histogram, exchanged": (
        said("perturbed_histogram", "substitution", "1", sets=2),
        [(Fraction(4), 7, 1), (Fraction(4), 7, 2)],
    ),
}


def plain(request: Noise) -> Noise:
    """Without what it is bound to."""
    return request._replace(query="", sums="")


def expected(case: str, sums: list[Floats]) -> list[Noise]:
    """Of histograms the number of counts is that of the bins: all of them are noised."""
    return [Noise(scale, size or sums[-2].size, *rest) for scale, size, *rest in CASES[case][1]]


@pytest.mark.parametrize("case", CASES)
def test_a_mechanism_asks_for_noise_of_the_scale_that_its_promise_needs(case: str) -> None:
    asked, sums, *_ = driven(CASES[case][0])
    assert [plain(one) for one in asked] == expected(case, sums)


@pytest.mark.parametrize("case", CASES)
def test_noise_a_fifth_smaller_than_its_query_states_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "Noise", lambda scale, *rest: Noise(scale * Fraction(4, 5), *rest))
    with pytest.raises(LossExceeded, match="does not state what its noise loses"):
        driven(CASES[case][0])


@pytest.mark.parametrize(("case", "told"), [("sanitized", True), ("modips", False)])
def test_that_a_reference_was_not_refused_is_said_to_be_outside_of_the_budget(case: str, told: bool) -> None:
    job = CASES[case][0]
    assert (NOT_REFUSED in MECHANISMS[job.mechanism.name].promise(job).assumptions) == told


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Fraction, int]]:
    """Scale and size of what OpenDP is asked for."""
    from dpdist.privacy.noise import whole_laplace

    found: list[tuple[Fraction, int]] = []

    def recording(scale: Fraction, size: int, draw: Callable[[Fraction, int], Floats] = whole_laplace) -> Floats:
        found.append((scale, size))
        return draw(scale, size)

    monkeypatch.setattr("dpdist.privacy.noise.whole_laplace", recording)
    return found


def test_what_is_asked_for_is_what_is_drawn(recorded: list[tuple[Fraction, int]]) -> None:
    noise = fresh_noise(Noise(Fraction(7, 3), 5, 2))
    assert (recorded, noise.shape) == ([(Fraction(7, 3), 5)], (5,))
